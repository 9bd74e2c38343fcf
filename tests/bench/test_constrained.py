"""The figure of constrained decoding: the ways answer alike, in fewer passes with jumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisgl import SamplingParams
from scripts.bench.figures import Options, constrained
from scripts.bench.figures.constrained import FREE, JUMP, MASKED, NO_REUSE, WALK, Case

PATTERN = r'\{"name": "[A-Z][a-z]{1,6}", "house": "(Gryffindor|Slytherin)", "alive": (true|false)\}'


def test_the_five_ways(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=90, regex=PATTERN)
    case = Case("wizards", ["Ada: ", "Bram, too: "], greedy)
    monkeypatch.setattr(constrained, "cases", lambda options: [case])
    result = constrained.run(Options(model=str(tiny_model_dir), device="cpu", rounds=2))
    raw = result.raw["wizards"]
    assert raw["equal"] == 2
    assert all(jump < walk for jump, walk in zip(*raw["passes"].values(), strict=True))
    ways = [JUMP, WALK, FREE, MASKED, NO_REUSE]
    assert list(raw["seconds"]) == list(raw["processor seconds"]) == ways
    assert all(len(each) == 2 for each in raw["seconds"].values())
    assert [row[1] for row in result.tables[0].rows] == ways
    passes = {row[1]: row[2] for row in result.tables[0].rows}
    assert passes[JUMP] == passes[NO_REUSE] < passes[WALK] == passes[MASKED] == passes[FREE]
    assert "wizards: the same answer with jumps and without: 2 of 2" in result.notes
    by_passes = result.charts[1]
    assert by_passes.series[WALK][0] > by_passes.series[JUMP][0]


def test_what_is_asked_by_data_and_size(tmp_path: Path) -> None:
    quick, full = (constrained.cases(Options(device="cpu", quick=q)) for q in (True, False))
    assert [case.name for case in quick] == ["characters", "pages"]
    for few, many in zip(quick, full, strict=True):
        assert 0 < len(few.prompts) < len(many.prompts)
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "characters.txt").write_text("Xander\nYsolde\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"wiki_docs\.jsonl"):
        constrained.cases(Options(data=tmp_path))
    (tmp_path / "wiki").mkdir()
    page = '{"title": "Zell", "document": "Zell lies on the Lim."}\n'
    (tmp_path / "wiki" / "wiki_docs.jsonl").write_text(page, encoding="utf-8")
    characters, pages = constrained.cases(Options(device="cpu", data=tmp_path))
    assert [prompt.split()[0] for prompt in characters.prompts] == ["Xander", "Ysolde"]
    assert "Zell lies on the Lim." in pages.prompts[0]
