"""The picture of a program: its streams, drawn from a run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

import minisgl.lang as sgl
from scripts.show import program

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "program.svg"
SVG = "{http://www.w3.org/2000/svg}"


def rehearsed(story: str) -> list[program.Event]:
    function, arguments = program.STORIES[story]
    return program.watch(function, arguments, program.Rehearsal(), temperature=0.0, max_tokens=32)


def test_the_picture_is_current(tmp_path: Path) -> None:
    program.main(["essay_judge", str(tmp_path / "p.svg")])
    kept, drawn = (file.read_text(encoding="utf-8") for file in (PICTURE, tmp_path / "p.svg"))
    assert drawn == kept, "python -m scripts.show.program essay_judge docs/pictures/program.svg"


def test_the_judge_forks_waits_for_all_and_goes_on() -> None:
    told = program.times(rehearsed("essay_judge"))
    judgments = [bar for bar in told.bars if bar[0].words == "judgment"]
    (report,) = (bar for bar in told.bars if bar[0].words == "report")
    (kind,) = (bar for bar in told.bars if bar[0].what == "select")
    assert {begin for _, begin, _ in judgments} == {kind[2]} == {1}  # all six at once
    assert len(judgments) == 6
    assert report[1] == max(end for _, _, end in judgments)
    assert told.end == report[2] == told.waits[-1][1]
    # The function does nothing but wait.
    assert told.waits[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(told.waits))


def test_a_join_of_texts_holds_up_the_stream_and_not_the_function() -> None:
    told = program.times(rehearsed("document_qa"))
    (answer,) = (bar for bar in told.bars if bar[0].words == "answer")
    notes = [end for event, _, end in told.bars if event.words == "note"]
    assert answer[1] == max(notes) > min(notes)
    assert told.waits == [(0, told.end)]  # once, at the end


def test_branches_of_branches_are_drawn_below_them() -> None:
    events = rehearsed("tree_of_thought")
    picture = ElementTree.fromstring(program.draw(events, "a & b"))
    names = [text.text for text in picture.iter(f"{SVG}text")]
    streams = ["s", "0", "1", "0.0", "0.1", "0.0.0", "0.0.1", "0.1.0", "0.1.1", "1.0", "1.1"]
    assert [name for name in names if name in streams] == streams
    bars = [g for g in picture.iter(f"{SVG}g") if g.get("class") == "gen"]
    assert len(bars) == 2 + 4 + 8
    assert picture.findtext(f"{SVG}title") == "a & b"


def test_a_bar_is_as_long_as_the_answer_of_a_real_model(tiny_model_dir: Path) -> None:
    @sgl.function
    def two(s, topic):
        s += topic + sgl.gen(max_tokens=5) + "and"
        forks = s.fork(2)
        forks += sgl.gen("x", max_tokens=7, n=2)
        forks.join()

    with sgl.Runtime(str(tiny_model_dir), dtype="float32", kv_tokens=512) as runtime:
        events = program.watch(two, {"topic": "Once"}, runtime, temperature=0, ignore_eos=True)
    bars = [(e.stream.name, e.words, begin, end) for e, begin, end in program.times(events).bars]
    assert bars == [("s", "gen_0", 0, 5), ("0", "x", 5, 12), ("1", "x", 5, 12)]


def test_the_command_runs_a_model(tiny_model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.svg"
    program.main(["document_qa", str(file), "--model", str(tiny_model_dir), "--max-tokens", "4"])
    picture = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    assert len([g for g in picture.iter(f"{SVG}g") if g.get("class") == "gen"]) == 4
    with pytest.raises(SystemExit):
        program.main(["nothing", str(file)])
