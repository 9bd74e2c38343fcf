"""The goals, end to end on a random model: every workload runs on both systems, and each goal has a
verdict."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.bench.figures import Options, goals
from scripts.bench.fsm import HARRY_POTTER
from scripts.bench.workloads import Size
from scripts.make_tiny_model import make_tiny_model

MMLU = 'On which river is it?,Lim,Dun,Arve,Sorn,B\n"What, if any?",one,two,three,none,D\n'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A little of each file, laid out as the real ones."""
    for kind in ("dev", "test"):
        (tmp_path / "mmlu" / kind).mkdir(parents=True)
        (tmp_path / "mmlu" / kind / f"rivers_{kind}.csv").write_text(MMLU)
    for name, text in {
        "json/characters.txt": "Ada Thornwick\nBram Ottery\nClea Marsh\n",
        "mt_bench/question.jsonl": '{"turns": ["Hi", "And you?"]}\n' * 4,
        "hellaswag/hellaswag_val_1000.jsonl": (
            '{"ctx": "A river", "label": 1, "endings": ["sings.", "flows.", "is.", "ends."]}\n' * 4
        ),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_jobs_of_real_data(data: Path) -> None:
    names = [job.arguments["name"] for job in goals.characters(data, 2, 1.0)]
    assert names == ["Ada Thornwick", "Bram Ottery"]
    turns = [job.arguments["turns"] for job in goals.conversations(data, 2, 1.0)]
    assert turns == [["Hi", "And you?"] * 2] * 2
    with pytest.raises(ValueError, match=r"characters\.txt is missing"):
        goals.characters(data / "mmlu", 2, 1.0)


def test_sizes() -> None:
    """Of the table in full, and what two cores do in a minute or two."""
    full, quick = ([goals.size_of(row, Options(quick=q)) for row in goals.ROWS] for q in (0, 1))
    assert [count for count, _ in full] == [16, 16, 16, 16, 8]
    assert sum(count for count, _ in quick) < sum(count for count, _ in full)


def test_every_workload_runs_on_both(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_model(tmp_path / "tiny", max_position=4096)
    small = [
        replace(row, workload=replace(row.workload, quick=Size(2, 1, 0.1))) for row in goals.ROWS
    ]
    monkeypatch.setattr(goals, "ROWS", small)
    peers = (("transformers", sys.executable),)
    result = goals.run(Options(quick=True, model=str(model), device="cpu", data=data, peers=peers))

    seconds, wanted = result.tables
    assert seconds.columns == ["workload", "programs", "ours", "transformers"]
    assert [row[1] for row in seconds.rows] == [1, 2, 2, 2, 2]
    assert all(row[2] > 0 and row[3] > 0 for row in seconds.rows)
    for (title, goal, stretch), row in zip(wanted.rows, goals.ROWS, strict=True):
        assert title == row.title
        verdicts = f"{goal}; {stretch}".split("; ")
        for verdict, each in zip(verdicts, row.goals + row.stretch, strict=True):
            form = r"\S+x .*: (not measured|\S+x, (met|missed))"
            assert re.fullmatch(form, verdict)
            is_there = each.against in (goals.BEST, "transformers")
            assert is_there != verdict.endswith("not measured")
    assert [len(each["ours"]) for each in result.raw["seconds"].values()] == [1] * 5
    free = [note for note in result.notes if "has no patterns" in note]
    assert len(free) == 2 and all(re.search(r"writes [1-9]\d* tokens", note) for note in free)
    assert sum("of 2 answers of transformers equal ours" in note for note in result.notes) == 3


def test_character_follows_its_pattern(tmp_path: Path) -> None:
    import minisgl.lang as sgl

    model = make_tiny_model(tmp_path / "tiny", max_position=2048)
    with sgl.Runtime(str(model), device="cpu") as ours:
        (job,) = goals.characters(None, 1, 1.0)
        state = job.program.run(**job.arguments, backend=ours, temperature=0, max_tokens=1500)
        assert goals.CHARACTER.answers(state) == [state["json"]]
        assert re.fullmatch(HARRY_POTTER, state["json"])
