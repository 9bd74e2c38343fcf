"""The pictures: valid XML, drawn from live objects, and those in docs/pictures up to date."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl import Engine, SamplingParams, svg
from minisgl.cache.radix_cache import RadixCache
from scripts.show import automata, masking, radix, schedule, trace

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


def groups(picture: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Every <g> of that class."""
    return [g for g in picture.iter(f"{SVG}g") if name in g.get("class", "").split()]


def words(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def kinds(panel: ElementTree.Element) -> dict[str, list[str]]:
    """What the nodes of a panel are -> how their texts begin."""
    found: dict[str, list[str]] = {}
    for node in groups(panel, "node"):
        found.setdefault(node.get("class", "").split()[1], []).append(words(node)[0][:12])
    return found


# ---------------------------------------------------------------------- the paper's figure 3


def test_figure_3_tells_the_papers_story() -> None:
    picture = ElementTree.fromstring(radix.figure_3())
    panels = groups(picture, "panel")
    assert len(panels) == 9
    told = [kinds(panel) for panel in panels]
    system, hello, tree = "You are a he", "Hello! Assis", "User: What i"
    joke, another, shots = "Tell me a jo", "User: Anothe", "Add step by "
    assert told == [
        {},  # 1: empty
        {"new": [system]},  # 2: prompt and answer in one node
        {"used": [system], "new": [tree]},  # 3: the first turn is found
        {"used": [system], "kept": [hello, tree], "new": [joke]},  # 4: cut where two chats part
        {"used": [system, joke], "kept": [hello], "evicted": [tree], "new": [another]},  # 5
        {"kept": [system, hello, joke, another], "new": [shots]},  # 6: nothing shared
        {"used": [shots], "kept": [system, hello, joke, another, "8+5? 8+2=10,"],
         "new": ["7+6? 7+3=10,", "17+5? 17+3=2"]},  # 7: the examples are shared
        {"used": [system, hello], "new": [tree], "evicted": [joke, another],
         "kept": [shots, "8+5? 8+2=10,", "7+6? 7+3=10,", "17+5? 17+3=2"]},  # 8
        {"used": [shots, "17+5?"], "evicted": ["8+5? 8+2=10,", "7+6? 7+3=10,"],
         "new": ["15+5=20, 20+", "10+5=15, 15+", "7+5=12, 12+1"],
         "kept": [system, hello, tree, "17+3=20, 20+"]},  # 9: samples of one answer
    ]  # fmt: skip


def test_every_panel_counts_its_tokens_and_none_is_over_capacity() -> None:
    picture = ElementTree.fromstring(radix.figure_3())
    for panel in groups(picture, "panel"):
        shown = next(int(w.split()[0]) for w in words(panel) if re.fullmatch(r"\d+ tokens", w))
        tokens = Counter[str]()
        for node in groups(panel, "node"):
            tokens[node.get("class", "").split()[1]] += int(words(node)[1])
        assert shown == tokens.total() - tokens["evicted"] <= radix.CAPACITY


def test_a_memory_too_small_for_one_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens don't fit"):
        radix.Memory(4).serve([("a b", "c"), ("d e", "f")])


# ---------------------------------------------------------------------- any live tree


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=8), st.data())
def test_a_live_tree_is_drawn_node_for_node(prompts: list[list[int]], data: st.DataObject) -> None:
    tree = RadixCache()
    for prompt in prompts:
        tree.insert(prompt, range(len(prompt)))
    if prompts:
        tree.lock(tree.match_prefix(data.draw(st.sampled_from(prompts))).node)
    before = str(tree)
    picture = ElementTree.fromstring(
        radix.draw(tree, lambda ids: "".join("<&\x00"[i] for i in ids))
    )
    assert str(tree) == before
    nodes = groups(picture, "node")
    assert len(nodes) == len(list(tree.nodes()))
    for kind, tokens in (("locked", tree.protected_size), ("free", tree.evictable_size)):
        assert sum(int(words(node)[1]) for node in groups(picture, kind)) == tokens


def test_a_tree_deeper_than_the_stack_is_drawn() -> None:
    tree, leaf = RadixCache(), None
    for slot in range(1100):
        leaf = tree.append(leaf or tree.root, [7], [slot])
    picture = ElementTree.fromstring(radix.draw(tree, lambda ids: "x" * len(ids)))
    assert len(groups(picture, "node")) == 1100


@given(st.text())
def test_any_text_can_stand_in_a_picture(anything: str) -> None:
    words = svg.printable(anything, 30)
    assert len(words) <= 30
    whole = svg.document(10, 10, [svg.text(0, 0, words)], title=words)
    assert ElementTree.fromstring(whole).findtext(f"{SVG}text") == words


def test_the_command_draws_an_engines_tree(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tree.svg"
    radix.main([str(file), "--model", str(tiny_model_dir), "Once upon a time", "Once more"])
    assert capsys.readouterr().out == f"written: {file}\n"
    picture = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    texts = [words(node)[0] for node in groups(picture, "free")]
    assert {"Once", " upon a time", " more"} <= set(texts)
    assert groups(picture, "locked") == []
    with pytest.raises(SystemExit):
        radix.main([str(file), "a prompt"])
    assert "prompts need --model" in capsys.readouterr().err


# ---------------------------------------------------------------------- a trace


@pytest.fixture(scope="module")
def traced(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with a retraction, and a request that was found cached."""
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with Engine(str(tiny_model_dir), kv_tokens=100, prefill_budget=8, trace=file) as engine:
        engine.generate([list(range(10, 26)), list(range(30, 46))], params)
        engine.generate(list(range(10, 20)), params)
        assert engine.stats().retractions > 0
    return file


@pytest.mark.parametrize("by", ["time", "step"])
def test_a_trace_is_drawn_step_for_step(traced: Path, by: str) -> None:
    events = trace.load(traced)
    picture = ElementTree.fromstring(trace.draw(events, by=by))
    steps = [e for e in events if e["ph"] == "X" and "args" in e]
    drawn = groups(picture, "step")
    assert [g.get("class", "").split()[1] for g in drawn] == [e["name"] for e in steps]
    boxes = [next(g.iter(f"{SVG}rect")) for g in drawn]
    left = [float(box.get("x", "")) for box in boxes]
    width = [float(box.get("width", "")) for box in boxes]
    assert left == sorted(left) and min(width) > 0
    if by == "step":
        assert max(width) - min(width) < 0.01
    lives = {e["id"] for e in events if e["ph"] == "b"}
    assert len([w for w in words(picture) if re.match(r"request \d+", w)]) == len(lives) == 3
    assert len(groups(picture, "waiting")) >= 1
    assert any(re.fullmatch(r"request \d+, \d+ cached", w) for w in words(picture))


def test_an_excerpt_and_a_trace_that_was_cut_off(traced: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text(traced.read_text().removesuffix("\n]\n"))
    assert trace.load(cut) == trace.load(traced)
    picture = ElementTree.fromstring(trace.draw(trace.load(cut), first=3, last=7, by="step"))
    drawn = groups(picture, "step")
    assert [words(g)[0] for g in drawn] == ["3", "4", "5", "6", "7"]
    assert 'width="172"' in ElementTree.tostring(drawn[0]).decode()  # 860 pixels for five steps
    with pytest.raises(ValueError, match="no steps from 1000"):
        trace.draw(trace.load(cut), first=1000, by="time")
    file = tmp_path / "cut.svg"
    trace.main([str(cut), str(file), "--first", "3", "--last", "7", "--by", "step"])
    assert file.read_text(encoding="utf-8") == trace.draw(
        trace.load(cut), first=3, last=7, by="step"
    )


# ---------------------------------------------------------------------- automata


def test_a_chain_of_forced_characters_is_one_edge_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    above, below = groups(ElementTree.fromstring(automata.draw("abc(d|ef)")), "automaton")
    edges = [{w.strip('"') for w in words(half)} - set("0123456") for half in (above, below)]
    assert edges == [{"a", "b", "c", "d", "e", "f"}, {"abc", "d", "e", "f"}]
    file = tmp_path / "picture.svg"
    automata.main([str(file), "abc(d|ef)"])
    assert file.read_text(encoding="utf-8") == automata.draw("abc(d|ef)")
    with pytest.raises(SystemExit):
        automata.main([str(file), "a(b"])
    assert "position 1" in capsys.readouterr().err


# ---------------------------------------------------------------------- what a mask does


def test_every_choice_is_told_with_what_was_removed(tiny_model_dir: Path) -> None:
    params = SamplingParams(temperature=0.0, regex="([ab]xyz){3}(yes|no)")
    with Engine(str(tiny_model_dir), dtype="float32") as engine:
        done, made = masking.choices(engine, "Say it", params)
        again = engine.generate(  # the same answer, and nobody looks over its shoulder
            engine.chat_template.encode([{"role": "user", "content": "Say it"}], engine.tokenizer),
            params,
        )
    assert done.token_ids == again.token_ids
    assert [each.removed for each in made] == done.removed
    assert again.removed == pytest.approx(done.removed, abs=1e-4)  # from a cached prompt
    assert len(made) >= 4
    for each in made:  # what was forced may have been written anew since, but spells the same
        assert done.text.startswith(each.before + each.chosen)
        assert 0 < each.likely <= 1 and (each.chosen == each.favourite or each.removed > 0)
    assert masking.mean(made) == pytest.approx(sum(done.removed) / len(made))
    with pytest.raises(ValueError, match="without one nothing is removed"):
        masking.choices(engine, "Say it", SamplingParams())


def test_the_table_of_choices(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masking.main(["--model", str(tiny_model_dir), "--regex", "[ab]{2}!", "One", "Two"])
    assert doctest.testmod(masking).failed == 0
    out = capsys.readouterr().out
    assert out.count("written before") == out.count("Removed on average: ") == 2
    assert re.search(r"^Two\n  [ab]{2}!\n", out, re.MULTILINE)


# ---------------------------------------------------------------------- docs/pictures


def test_the_radix_picture_is_current() -> None:
    kept = (PICTURES / "radix.svg").read_text(encoding="utf-8")
    assert radix.figure_3() == kept, "python -m scripts.show.radix docs/pictures/radix.svg"


def test_the_picture_of_automata_is_current() -> None:
    kept = (PICTURES / "automata.svg").read_text(encoding="utf-8")
    drawn = automata.draw(automata.PATTERN)
    assert drawn == kept, "python -m scripts.show.automata docs/pictures/automata.svg"


@pytest.mark.parametrize(("story", "name"), [("mixed", "schedule.svg"), ("tight", "retract.svg")])
def test_the_schedulers_pictures_are_current(story: str, name: str, tmp_path: Path) -> None:
    schedule.main([story, str(tmp_path / name)])
    kept, drawn = ((folder / name).read_text(encoding="utf-8") for folder in (PICTURES, tmp_path))
    assert drawn == kept, f"python -m scripts.show.schedule {story} docs/pictures/{name}"


def test_the_stories_are_what_the_tour_says() -> None:
    scheduler, arrivals = schedule.mixed()
    steps = schedule.simulate(scheduler, arrivals)
    computed = Counter[int]()
    for extend in (extend for step in steps for extend in step.extends):
        computed[extend.req.id] += extend.stop - extend.start
    assert computed == {1: 6, 2: 28, 3: 14, 4: 2, 5: 1}  # 4 shares with 3, 5 is known but a token
    assert any(step.decodes and step.extends for step in steps)
    scheduler, arrivals = schedule.tight()
    steps = schedule.simulate(scheduler, arrivals)
    assert scheduler.retractions == 1
    assert [len(step.decodes) for step in steps[34:36]] == [2, 1]
    assert [(e.req.id, e.start, e.stop) for e in steps[60].extends] == [(2, 16, 51)]


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda p: p.name)
def test_pictures_are_well_formed_and_shown_somewhere(picture: Path) -> None:
    ElementTree.parse(picture)
    pages = [p.read_text(encoding="utf-8") for p in (ROOT / "docs").rglob("*.md")]
    assert any(f"pictures/{picture.name}" in page for page in pages)
