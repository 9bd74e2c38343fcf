"""Every mutant of the code is killed by the tests of its room."""

from __future__ import annotations

import pytest

from scripts import mutants


@pytest.mark.slow
def test_every_mutant_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main([]) == 0, capsys.readouterr().out


def test_every_mutant_still_finds_its_line() -> None:
    for mutant in mutants.MUTANTS:
        source = (mutants.ROOT / "minisgl" / mutant.file).read_text(encoding="utf-8")
        assert source.count(mutant.old) == 1, mutant.what
