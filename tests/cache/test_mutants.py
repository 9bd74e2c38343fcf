"""The tests beside this one kill every mutant of the cache."""

from __future__ import annotations

import pytest

from scripts import mutants


@pytest.mark.slow
def test_every_mutant_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main() == 0, capsys.readouterr().out


def test_every_mutant_still_finds_its_line() -> None:
    for mutant in mutants.MUTANTS:
        source = (mutants.ROOT / "minisgl" / "cache" / mutant.file).read_text(encoding="utf-8")
        assert source.count(mutant.old) == 1, mutant.what
