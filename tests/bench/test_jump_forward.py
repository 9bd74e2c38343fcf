"""Figure 10: what each pass wrote, as told by two real engines."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minisgl import Engine, SamplingParams
from scripts.bench.figures import Options, jump_forward
from scripts.show import passes
from scripts.show.passes import COLOURS, Growth, draw, watch

SVG = "{http://www.w3.org/2000/svg}"
PATTERNS = (
    r'\{"name": "[A-Z][a-z]{1,5}", "alive": (true|false)\}',
    r"(the engine|the token|remembered|understood){3}",
    r"[ab]{3}\n  (the capital|capital) é\n",
    r"[0-9]{2}",
)


@pytest.fixture(scope="module")
def engines(tiny_model_dir: Path) -> Iterator[dict[bool, Engine]]:
    path, settings = str(tiny_model_dir), {"dtype": "float32", "kv_tokens": 512}
    with (
        Engine(path, **settings, jump_forward=False) as plain,
        Engine(path, **settings) as jumps,
    ):
        yield {False: plain, True: jumps}


def grown(engine: Engine, pattern: str, prompt: str) -> Growth:
    return watch(engine, prompt, SamplingParams(temperature=0.0, max_tokens=90, regex=pattern))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_told_is_the_answer_and_both_ways_tell_the_same(
    engines: dict[bool, Engine], pattern: str
) -> None:
    plain, jumps = (grown(engine, pattern, "Once upon") for engine in engines.values())
    for growth in (plain, jumps):
        assert growth.done is not None
        assert [token.id for token in growth.tokens] == growth.done.token_ids
        assert growth.passes == growth.done.forward_passes
        after = [token.after for token in growth.tokens]
        assert after == sorted(after) and after[-1] <= growth.passes
    assert [(t.id, t.origin) for t in plain.tokens] == [(t.id, t.origin) for t in jumps.tokens]
    assert plain.rewrites == jumps.rewrites
    # Each pass gives a token, of the model's choice or (plain) forced; some were replaced.
    replaced = sum(len(was) for was, _ in jumps.rewrites)
    assert jumps.passes == jumps.count("model") + replaced
    assert plain.passes == len(plain.tokens) + replaced
    assert len({token.after for token in plain.tokens}) == len(plain.tokens)


def test_a_word_that_was_begun_otherwise_is_told_as_rewritten(
    engines: dict[bool, Engine],
) -> None:
    growths = [
        grown(engines[True], r"(understood|remembered) (engine|capital)", prompt)
        for prompt in ("A", "What is", "Two requests", "Once upon a time")
    ]
    told = [(growth, pair) for growth in growths for pair in growth.rewrites]
    assert told and all(len(growth.notes()) == len(growth.rewrites) for growth in growths)
    for growth, (was, became) in told:
        assert was != became and "".join(became).startswith("".join(was))
        assert set(became) <= {t.text for t in growth.tokens if t.origin == "rewritten"}


def test_without_a_pattern_there_is_nothing_to_watch(engines: dict[bool, Engine]) -> None:
    with pytest.raises(ValueError, match="without one nothing is forced"):
        watch(engines[True], "Hi", SamplingParams())


def test_every_token_is_drawn_line_by_line(engines: dict[bool, Engine]) -> None:
    growth = grown(engines[True], PATTERNS[2], "Once")
    picture = ElementTree.fromstring(draw({"one": growth, "two": growth}, "a & b", beside=True))
    assert picture.findtext(f"{SVG}title") == "a & b"
    lanes = [g for g in picture.iter(f"{SVG}g") if g.get("class") == "lane"]
    assert len(lanes) == 2
    for lane in lanes:
        tokens = [g for g in lane.iter(f"{SVG}g") if (g.get("class") or "").startswith("token")]
        boxes = [box for g in tokens for box in g.iter(f"{SVG}rect")]
        assert len({box.get("y") for box in boxes}) == 2  # two lines
        words = "".join(next(g.iter(f"{SVG}text")).text or "" for g in tokens)
        assert words == "".join(t.text for t in growth.tokens).replace(" ", "␣").replace("\n", "↵")
        for origin in COLOURS:
            drawn = [g for g in tokens if g.get("class") == f"token {origin}"]
            assert len(drawn) >= growth.count(origin)
    words = {text.text for text in picture.iter(f"{SVG}text")}
    assert {what for _, _, what in COLOURS.values()} <= words


def test_the_figure(tiny_model_dir: Path) -> None:
    assert doctest.testmod(jump_forward).failed == doctest.testmod(passes).failed == 0
    result = jump_forward.run(Options(model=str(tiny_model_dir), device="cpu"))
    counts, by_pass = result.tables
    plain, jumps = (dict(zip(counts.columns, row, strict=True)) for row in counts.rows)
    assert plain["tokens"] <= plain["forward passes"] > jumps["forward passes"]
    replaced = sum(len(was) for was, _ in result.raw["rewrites"])
    assert jumps["forward passes"] == jumps["chosen"] + replaced
    assert jumps["chosen"] + jumps["forced"] + jumps["tokenized anew"] == jumps["tokens"]
    ids = [[token[0] for token in result.raw[way]] for way in ("plain FSM", "compressed FSM")]
    same = "the same" if ids[0] == ids[1] else "NOT the same"  # half precision may tell them apart
    assert f"the two answers are {same}, token for token" in result.notes
    assert by_pass.rows[0][:4] == [0, "", "", '`{"name": "`']
    assert len(by_pass.rows) <= jumps["forward passes"] + 1
    text = "".join(token[1] for token in result.raw["compressed FSM"])
    assert text == "".join(str(cell)[1:-1] for row in by_pass.rows for cell in row[1:])
    lanes = result.pictures["tokens"].count('class="lane"')
    assert lanes == 2
