"""Answers of a type: what the model may write, and what a program reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl import Engine
from minisgl.lang import ir
from minisgl.lang.dtypes import _build, reading_of
from tests.engine.common import fp32


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark (blue)"


@dataclass
class Point:
    x: int
    y: float


@dataclass
class Shape:
    name: Literal["square", "circle"]
    corners: list[Point]
    colour: Colour | None = None
    size: tuple[int, str] = (0, "cm")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with fp32(str(tiny_model_dir)) as engine:
        yield engine


def run(engine: Engine, seed: int = 0, **gen: Any) -> sgl.ProgramState:
    @sgl.function
    def f(s: sgl.ProgramState) -> None:
        s += "The answer is " + sgl.gen("x", seed=seed, **gen)

    return f.run(backend=engine)


class TestOnAnEngine:
    """A random model would write anything: what it may not, it does not."""

    @pytest.mark.parametrize(
        ("dtype", "pattern"),
        [
            (int, r"[-+]?[0-9]{1,18}"),
            ("int", r"[-+]?[0-9]{1,18}"),
            (float, r"[-+]?[0-9]{0,18}\.?[0-9]{1,18}"),
            (bool, "True|False"),
            (Literal["yes", "no", "may.be"], r"yes|no|may\.be"),
        ],
    )
    def test_plain_types_are_texts(self, engine: Engine, dtype: Any, pattern: str) -> None:
        seen = set()
        for seed in range(6):
            state = run(engine, seed, dtype=dtype)
            assert re.fullmatch(pattern, state["x"]), state["x"]
            assert state.text() == "The answer is " + state["x"]
            seen.add(state["x"])
        assert len(seen) > 1

    def test_strings_are_json(self, engine: Engine) -> None:
        for seed in range(6):
            assert isinstance(json.loads(run(engine, seed, dtype=str)["x"]), str)

    def test_an_enum_is_its_member(self, engine: Engine) -> None:
        state = run(engine, dtype=Colour)
        assert isinstance(state["x"], Colour)
        assert state.text().endswith(state["x"].value)

    def test_a_dataclass_and_a_pydantic_model_are_objects(self, engine: Engine) -> None:
        for seed in range(3):
            point = run(engine, seed, dtype=Point, max_tokens=200, json_space=0)["x"]
            assert isinstance(point, Point) and isinstance(point.y, float)
            person = run(engine, seed, dtype=Person, max_tokens=200, json_space=0)["x"]
            assert isinstance(person, Person) and 0 <= person.age <= 150

    def test_several_objects(self, engine: Engine) -> None:
        state = run(engine, dtype=Colour, n=3)
        assert all(isinstance(value, Colour) for value in state["x"])

    def test_a_cut_answer_is_no_object_and_says_so(self, engine: Engine) -> None:
        with pytest.raises(
            ValueError, match=r"is no Point; if it was cut off, give more max_tokens"
        ):
            run(engine, dtype=Point, max_tokens=2)

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
             "additionalProperties": False},
            '{"enum": [{"a": true}, {"a": false}]}',
        ],
    )  # fmt: skip
    def test_a_schema_is_text(self, engine: Engine, schema: Any) -> None:
        state = run(engine, json_schema=schema, json_space=0)
        assert isinstance(json.loads(state["x"])["a"], bool)

    def test_a_regex_is_text(self, engine: Engine) -> None:
        ip = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
        assert re.fullmatch(ip, run(engine, regex=ip)["x"])

    def test_streamed_it_is_the_same(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "It is " + sgl.gen("x", dtype=Colour, temperature=0) + sgl.gen("n", dtype=int)

        state = f.run(backend=engine, stream=True, temperature=0)
        assert "".join(state.text_iter("x")) == state["x"].value
        assert state["x"] is f.run(backend=engine, temperature=0)["x"]

    def test_a_pattern_that_can_not_be_is_an_error_of_the_program(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="regex"):
            run(engine, regex=r"(a)\1")


class TestNumbers:
    def test_end_where_the_model_goes_on(self, default_model_dir: Path) -> None:
        """The number that it says is the one that it would say without a pattern."""

        @sgl.function
        def f(s: sgl.ProgramState, beginning: str) -> None:
            free, number = s.fork(2)
            free += beginning + sgl.gen("free", max_tokens=8)
            number += beginning + sgl.gen_int("number")
            match = re.match(r"[-+]?[0-9]+", free["free"])
            assert match and match[0] == number["number"]
            number += "."
            assert number.text() == beginning + match[0] + "."

        beginnings = ["The number of hours in a day is ", "A year has ", "2, 3, 4, "]
        with Engine() as engine:
            f.run_batch([(b,) for b in beginnings], backend=engine, temperature=0)

    @given(st.from_regex(r"[-+]?[0-9]{1,18}", fullmatch=True), st.text(max_size=8))
    def test_the_pattern_is_a_number_and_whatever_follows(self, number: str, rest: str) -> None:
        """A stop is the first character after the number, so the number is what is left."""
        for dtype in (int, float):
            reading = reading_of(dtype)
            match = re.fullmatch(reading.settings["regex"], number + rest)
            ends = [i for stop in reading.stop if (i := (number + rest).find(stop)) >= 0]
            if match and ends:
                assert dtype((number + rest)[: min(ends)]) is not None
            assert re.fullmatch(reading.settings["regex"], number)
            assert not any(stop in number for stop in reading.stop)


def test_constants_of_the_ir_match_what_their_names_say() -> None:
    for pattern, yes, no in (
        (ir.REGEX_INT, ["1", "-12", "+3 "], ["", "1.5", "a"]),
        (ir.REGEX_FLOAT, ["1", "-1.5", ".5\n"], ["", "1.", "."]),
        (ir.REGEX_BOOL, ["True", "False"], ["true", ""]),
        (ir.REGEX_STR, ['""', '"a b"', r'"\n \" \\"', '"ü"'], ['"', '"a"b"', '"\\"', '"\n"']),
    ):
        assert all(re.fullmatch(pattern, text) for text in yes), pattern
        assert not any(re.fullmatch(pattern, text) for text in no), pattern
    assert all(json.loads(text) is not None for text in ('""', r'"\n \" \\"'))


class TestReading:
    def test_nested_values(self) -> None:
        text = (
            '{"name": "circle", "corners": [{"x": 1, "y": 2}], "colour": "red", "size": [3, "m"]}'
        )
        parse = reading_of(Shape).parse
        assert parse is not None
        shape = parse(text)
        assert shape == Shape("circle", [Point(1, 2.0)], Colour.RED, (3, "m"))
        assert isinstance(shape.corners[0].y, float)
        assert parse('{"name": "square", "corners": []}') == Shape("square", [])

    @pytest.mark.parametrize(
        ("kind", "value", "expected"),
        [
            (dict[str, Point], {"a": {"x": 1, "y": 2}}, {"a": Point(1, 2.0)}),
            (int | str, "a", "a"),
            (Point | None, None, None),
            (Colour | int, 5, 5),
            (list[Any], [1, "a"], [1, "a"]),
            (bool | int, True, True),
        ],
    )
    def test_values_of_types(self, kind: Any, value: Any, expected: Any) -> None:
        assert _build(kind, value) == expected

    def test_a_value_of_no_type(self) -> None:
        with pytest.raises(ValueError, match="none of"):
            _build(int | bool, "a")

    def test_mistakes(self) -> None:
        for dtype in (list[int], complex, "integer", 5):
            with pytest.raises(ValueError, match="choose int, float, bool, str, Literal"):
                sgl.gen("x", dtype=dtype)
        for other in ({"regex": "a"}, {"json_schema": {}}):
            with pytest.raises(ValueError, match="dtype is a pattern itself"):
                sgl.gen("x", dtype=int, **other)
        with pytest.raises(ValueError, match="give one"):
            sgl.gen("x", regex="a", json_schema={})

    def test_the_gens_own_stop_stays(self) -> None:
        for stop in ("END", ["END"]):
            node = sgl.gen("x", dtype=int, stop=stop)
            assert isinstance(node, ir.Gen)
            assert node.settings["stop"][0] == "END" and " " in node.settings["stop"]
