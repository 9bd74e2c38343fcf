"""Figure 11: several answers by both FSMs, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisgl import SamplingParams
from scripts.bench.figures import Options, constrained, decoding_process
from scripts.bench.figures.decoding_process import COMPRESSED, PLAIN

PATTERN = r'\{\n  "name": "[A-Z][a-z]{1,6}",\n  "alive": (true|false)\n\}'


def test_each_character_takes_fewer_passes_and_says_the_same(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=90, regex=PATTERN)
    case = constrained.Case("wizards", ["Ada is one.", "Bram is another."], greedy)
    monkeypatch.setattr(decoding_process, "cases", lambda options: [case])
    result = decoding_process.run(Options(model=str(tiny_model_dir), device="cpu", rounds=2))
    (table,) = result.tables
    assert [row[0] for row in table.rows] == ["Ada", "Bram"]
    # How many are the same depends on the machine's half precision.
    assert any(note.endswith("of 2 answers are the same both ways") for note in result.notes)
    for name, told in zip(("Ada", "Bram"), result.raw["characters"], strict=True):
        assert told["name"] == name
        assert told[PLAIN]["forward passes"] > told[COMPRESSED]["forward passes"] > 0
        assert len(told[PLAIN]["seconds"]) == len(told[COMPRESSED]["seconds"]) == 2
    (chart,) = result.charts
    assert chart.x == ["Ada", "Bram"]
    assert chart.series[COMPRESSED] == [
        row[table.columns.index("compressed")] for row in table.rows
    ]
    assert result.pictures["tokens"].count('class="lane"') == 2
    assert "Ada, token by token" in result.pictures["tokens"]
