"""Figure 3: the nine steps of the radix tree, by a real engine of a tiny model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from scripts.bench.figures import Options
from scripts.bench.figures.radix_steps import STEPS, run
from scripts.bench.results import Result

SVG = "{http://www.w3.org/2000/svg}"

# A line for each node: depth as dots, what it is, and how its text begins ("*": an answer).
SYSTEM, HELLO, TREE = "You are a", "Hello!", "What is a radix"
JOKE, ANOTHER, SHOTS = "Tell me a joke", "Another one!", "Add step by step"
FIRST_CHAT = [f".. kept {HELLO}", "... kept *"]
EXPECTED = [
    [],
    [f". new {SYSTEM}", ".. new *"],
    [f". used {SYSTEM}", ".. used *", f"... new {TREE}", ".... new *"],
    [f". used {SYSTEM}", *FIRST_CHAT, f".... kept {TREE}", "..... kept *",
     f".. new {JOKE}", "... new *"],
    [f". used {SYSTEM}", *FIRST_CHAT, f".... kept {TREE}", "..... evicted *",
     f".. used {JOKE}", "... used *", f".... new {ANOTHER}", "..... new *"],
    [f". kept {SYSTEM}", *FIRST_CHAT, f".... kept {TREE}",
     f".. kept {JOKE}", "... kept *", f".... kept {ANOTHER}", "..... kept *",
     f". new {SHOTS}", ".. new *"],
    [f". kept {SYSTEM}", *FIRST_CHAT, f".... kept {TREE}",
     f".. kept {JOKE}", "... kept *", f".... kept {ANOTHER}", "..... kept *",
     f". used {SHOTS}", ".. kept 8+5?", "... kept *",
     ".. new 7+6?", "... new *", ".. new 17+5?", "... new *"],
    [f". used {SYSTEM}", f".. evicted {JOKE}", "... evicted *",
     f".... evicted {ANOTHER}", "..... evicted *",
     f".. used {HELLO}", "... used *", f".... used {TREE}", "..... new *", "...... new *",
     f". kept {SHOTS}", ".. kept 8+5?", "... kept *",
     ".. kept 7+6?", "... kept *", ".. kept 17+5?", "... kept *"],
    [f". kept {SYSTEM}", *FIRST_CHAT, f".... kept {TREE}", "..... kept *", "...... kept *",
     f". used {SHOTS}", ".. evicted 8+5?", "... evicted *",
     ".. evicted 7+6?", "... evicted *",
     ".. used 17+5", "... used ?"],  # and the answers, which may begin alike
]  # fmt: skip


@pytest.fixture(scope="module")
def result(tiny_model_dir: Path) -> Result:
    return run(Options(model=str(tiny_model_dir), device="cpu"))


def test_the_tree_has_the_papers_shape_at_every_step(result: Result) -> None:
    told = [list(nodes) for nodes in result.raw["nodes"]]
    samples = told[-1][len(EXPECTED[-1]) :]
    del told[-1][len(EXPECTED[-1]) :]
    for nodes, expected in zip(told, EXPECTED, strict=True):
        for (kind, depth, _, text), line in zip(nodes, expected, strict=True):
            dots, what, words = line.split(" ", 2)
            assert (depth, kind) == (len(dots), what), nodes
            assert words == "*" or words in text
    # All answers to the last question hang below it, as deep as they begin alike.
    assert sum(kind == "new" for kind, _, _, _ in samples) >= 1
    assert all(depth > 3 and kind != "evicted" for kind, depth, _, _ in samples)


def test_what_the_engine_counts_is_what_the_tree_shows(result: Result) -> None:
    capacity, steps = result.raw["capacity"], result.raw["steps"]
    assert [step["evicted"] > 0 for step in steps] == [n in (5, 8, 9) for n in range(1, 10)]

    def tokens(nodes: list[Any], *kinds: str) -> int:
        return sum(count for kind, _, count, _ in nodes if kind in kinds)

    for step, nodes in zip(steps, result.raw["nodes"], strict=True):
        assert step["in the tree"] == tokens(nodes, "new", "used", "kept") <= capacity
        assert step["prompt tokens"] == step["reused"] + step["computed"]
        # The last token of an answer is never fed; that of a cached prompt is in the tree already.
        fed = step["computed"] + step["written"] - step["requests"]
        if step["step"] == 9:
            assert 0 < tokens(nodes, "new") <= fed - step["requests"]
        else:
            assert tokens(nodes, "new") == fed
    for (before, after), nodes in zip(pairwise(steps), result.raw["nodes"][1:], strict=True):
        grown = after["in the tree"] - before["in the tree"]
        assert grown == tokens(nodes, "new") - after["evicted"]
    # A batch computes the examples once: each of the two questions finds them.
    assert steps[6]["computed"] == 9 and steps[8]["computed"] == 3


def test_the_picture_has_nine_panels_with_their_words(result: Result) -> None:
    picture = ElementTree.fromstring(result.pictures["steps"])
    panels = [g for g in picture.iter(f"{SVG}g") if g.get("class") == "panel"]
    assert len(panels) == 9
    for panel, nodes, (caption, _) in zip(panels, result.raw["nodes"], STEPS, strict=True):
        words = [text.text or "" for text in panel.iter(f"{SVG}text")]
        assert set(filter(None, caption)) <= set(words)
        drawn = [g for g in panel.iter(f"{SVG}g") if (g.get("class") or "").startswith("node ")]
        assert [g.get("class") for g in drawn] == [f"node {kind}" for kind, _, _, _ in nodes]
