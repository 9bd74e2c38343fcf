"""Figure 9: what requests share, beside what the engine found."""

from __future__ import annotations

import doctest
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.bench.figures import Options, kv_sharing
from scripts.bench.results import Result

SVG = "{http://www.w3.org/2000/svg}"
REQUESTS = {
    "few-shot learning": 3,
    "self-consistency": 4,
    "multi-turn chat": 2 * 3,
    "tree of thought": 2 + 4 + 8,
}


@pytest.fixture(scope="module")
def result(tiny_model_dir: Path) -> Result:
    result = kv_sharing.run(Options(model=str(tiny_model_dir), device="cpu"))
    for request in chain.from_iterable(result.raw.values()):
        for part in ("prompt", "answer"):
            request[part] = tuple(map(int, request[part].split()))
    return result


def test_what_is_found_is_shared_and_each_token_is_computed_once(result: Result) -> None:
    for name, requests in result.raw.items():
        assert len(requests) == REQUESTS[name]
        for one in requests:
            tokens = one["prompt"] + one["answer"]
            others = [r["prompt"] + r["answer"] for r in requests if r is not one]
            longest = max(n for n in range(len(tokens) + 1)
                          if any(other[:n] == tokens[:n] for other in others))  # fmt: skip
            assert one["found"] <= one["shared"] == longest
            assert one["found"] < len(one["prompt"])  # the last is computed for its logits
        # Whatever one request computes of the prompts, no other does, but for last tokens.
        prefixes = {r["prompt"][:n] for r in requests for n in range(1, len(r["prompt"]) + 1)}
        computed = sum(len(r["prompt"]) - r["found"] for r in requests)
        assert computed <= len(prefixes) + len(requests)


def test_the_kinds_of_programs_share_what_the_paper_says(result: Result) -> None:
    few, samples, chats, thoughts = (result.raw[name] for name in REQUESTS)
    examples = {one["prompt"][: one["shared"]] for one in few}
    assert len({one["prompt"] for one in few}) == 3 and min(map(len, examples)) > 20
    assert len({one["prompt"] for one in samples}) == 1
    assert sorted(one["found"] for one in samples)[0] == 0  # and the others, all but the last token
    assert all(one["found"] in (0, len(one["prompt"]) - 1) for one in samples)
    assert sum(one["found"] == 0 for one in chats) == 1  # two chats have one system prompt
    assert sum(one["found"] == 0 for one in thoughts) == 1
    (table,) = result.tables
    assert [row[:2] for row in table.rows] == [[name, n] for name, n in REQUESTS.items()]


def test_every_part_is_drawn_as_wide_as_it_has_tokens(result: Result) -> None:
    picture = ElementTree.fromstring(result.pictures["requests"])
    groups = list(picture.iter(f"{SVG}g"))
    programs = [g for g in groups if g.get("class") == "program"]
    for program, requests in zip(programs, result.raw.values(), strict=True):
        rows = [g for g in program.iter(f"{SVG}g") if g.get("class") == "request"]
        longest = max(len(one["prompt"] + one["answer"]) for one in requests)
        for row, one in zip(rows, requests, strict=True):
            width = sum(float(box.get("width", "")) for box in row.iter(f"{SVG}rect"))
            tokens = len(one["prompt"] + one["answer"])
            assert width == pytest.approx(kv_sharing.WIDTH * tokens / longest, abs=1)
    words = {text.text for text in picture.iter(f"{SVG}text")}
    assert {what for _, _, what in kv_sharing.KINDS.values()} <= words


def test_parts_and_a_request_that_is_alone() -> None:
    assert doctest.testmod(kv_sharing).failed == 0
    alone = kv_sharing.Request((1, 2), (3,), found=0)
    assert kv_sharing.shared_by([alone]) == [0]
    assert [part.kind for part in kv_sharing.parts_of(alone, 0)] == ["own", "answer"]
