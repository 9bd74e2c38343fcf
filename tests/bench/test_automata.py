"""Figure 4: the automata, and the tokens that walk them, beside a count by hand."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from minisgl.tokenizer import Tokenizer
from scripts.bench.figures import Options, automata
from scripts.bench.results import Result

SVG = "{http://www.w3.org/2000/svg}"
FORCED = '{"age": '


@pytest.fixture(scope="module")
def result(tiny_model_dir: Path) -> Result:
    return automata.run(Options(model=str(tiny_model_dir)))


def test_both_walks_spell_the_text_and_the_compressed_one_asks_at_the_digits(
    result: Result,
) -> None:
    assert (result.raw["states"], result.raw["states, compressed"]) == (12, 5)
    for way in ("plain", "compressed"):
        moves = result.raw[way]
        assert "".join(token for move in moves for token in move["tokens"]) == automata.TEXT
        assert [move["start"] for move in moves[1:]] == [move["stop"] for move in moves[:-1]]
    assert all(len(move["tokens"]) == 1 and move["allowed"] for move in result.raw["plain"])
    asked = [move["start"] for move in result.raw["compressed"] if move["allowed"] is not None]
    assert asked == [len(FORCED), len(FORCED) + 1]
    assert f"{len(result.raw['plain'])} passes by the plain FSM, 2 by the compressed one" in (
        result.notes
    )


def test_a_mask_leaves_the_tokens_that_a_match_can_go_on_with(
    result: Result, tiny_model_dir: Path
) -> None:
    tokenizer = Tokenizer(tiny_model_dir)
    matches = [f"{FORCED}{number}}}" for number in range(100)] + [
        f"{FORCED}0{digit}}}" for digit in range(10)
    ]
    for move in result.raw["plain"]:
        written = automata.TEXT[: move["start"]]
        rests = {text[len(written) :].encode() for text in matches if text.startswith(written)}
        allowed = [
            i
            for i in range(tokenizer.vocab_size)
            if i not in tokenizer.special_ids
            and any(rest.startswith(tokenizer.token_bytes(i)) for rest in rests)
        ]
        assert move["allowed"] == len(allowed)


def test_the_picture_of_the_walk_has_a_state_for_each_place_and_a_box_for_each_move(
    result: Result,
) -> None:
    picture = ElementTree.fromstring(result.pictures["walk"])
    groups = list(picture.iter(f"{SVG}g"))

    def texts(group: ElementTree.Element) -> list[str]:
        return [text.text or "" for text in group.iter(f"{SVG}text")]

    states = [texts(g)[0] for g in groups if g.get("class") == "state"]
    assert states == [str(n) for n in range(9)] + ["9", "10", "11"]
    lanes = [g for g in groups if g.get("class") == "walk"]
    for lane, way in zip(lanes, ("plain", "compressed"), strict=True):
        kinds = [g.get("class") for g in lane.iter(f"{SVG}g") if g is not lane]
        asked = [move["allowed"] is not None for move in result.raw[way]]
        assert kinds == [f"move {'model' if each else 'forced'}" for each in asked]
        shown = [text for text in texts(lane) if text.startswith("of ")]
        assert shown == [f"of {m['allowed']}" for m in result.raw[way] if m["allowed"] is not None]
    assert result.pictures["automata"].count('class="automaton"') == 2
