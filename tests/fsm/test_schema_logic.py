"""Random schemas and values: what we let through is what `jsonschema` calls valid, and no more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from minisgl.fsm import SchemaError, TooComplexError, compile_json_schema
from minisgl.fsm.merge_schemas import merged
from minisgl.fsm.schema_keywords import NothingValidError
from minisgl.fsm.schema_refs import local_refs

names = st.sampled_from("abc")
scalars = st.sampled_from([None, True, False, 0, 1, 2, -1, 0.5, 2.5, "", "a", "ab", "b"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
_types = st.sampled_from(
    ["string", "number", "integer", "boolean", "null", "object", "array"]
)  # fmt: skip
_small = st.integers(0, 3)
_bound = st.sampled_from([-1, 0, 0.5, 1, 2, 2.5])


def _asking(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A schema of one to three keywords."""
    schemas = st.lists(inner, min_size=1, max_size=2)
    by_name = st.dictionaries(names, inner, min_size=1, max_size=2)
    keyword: dict[str, st.SearchStrategy[Any]] = {
        "type": _types | st.lists(_types, min_size=1, max_size=3, unique=True),
        "enum": st.lists(scalars, min_size=1, max_size=3),
        "const": scalars,
        "minimum": _bound,
        "exclusiveMaximum": _bound,
        "multipleOf": st.sampled_from([1, 2, 0.5, 1.5]),
        "minLength": _small,
        "maxLength": _small,
        "pattern": st.sampled_from(["^a", "b$", "^ab?$", "."]),
        "minItems": _small,
        "maxItems": _small,
        "items": inner,
        "prefixItems": schemas,
        "contains": inner,
        "properties": by_name,
        "required": st.lists(names, max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["a", "[bc]"]), inner, max_size=1),
        "propertyNames": st.sampled_from([{"enum": ["a", "b"]}, {"pattern": "[ab]"}, False]),
        "minProperties": _small,
        "maxProperties": _small,
        "allOf": schemas,
        "anyOf": schemas,
        "oneOf": schemas,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "dependentRequired": st.dictionaries(names, st.lists(names, max_size=1), max_size=1),
        "dependentSchemas": st.dictionaries(names, inner, max_size=1),
        "$ref": st.just("#/$defs/x"),
    }
    return st.lists(st.sampled_from(sorted(keyword)), min_size=1, max_size=3, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({k: keyword[k] for k in chosen})
    )


schemas = st.recursive(
    st.booleans() | st.builds(lambda t: {"type": t}, _types), _asking, max_leaves=6
)


def written(value: Any) -> Iterator[str]:
    """The value with its properties in every order, compact."""
    match value:
        case dict():
            pairs = [[f"{json.dumps(k)}:{text}" for text in written(v)] for k, v in value.items()]
            for order in itertools.permutations(pairs):
                yield from ("{" + ",".join(texts) + "}" for texts in itertools.product(*order))
        case list():
            for texts in itertools.product(*([*written(item)] for item in value)):
                yield "[" + ",".join(texts) + "]"
        case _:
            yield json.dumps(value)


def allows(schema: Any, value: Any) -> bool:
    automaton = compile_json_schema(schema, max_space=0)
    return any(
        automaton.accepts(automaton.walk(automaton.start, text.encode()))
        for text in itertools.islice(written(value), 200)
    )


@given(schemas, schemas, st.lists(values, min_size=1, max_size=6))
def test_what_is_allowed_is_what_is_valid(schema: Any, referred: Any, values: list[Any]) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"x": referred}}
    validator = jsonschema.Draft202012Validator(schema)
    try:
        is_valid = [validator.is_valid(value) for value in values]
    except RecursionError:
        assume(False)
    try:
        compile_json_schema(schema, max_space=0)
    except NothingValidError:
        event("nothing is valid")
        assert not any(is_valid), schema
        return
    except SchemaError as error:
        event("refused: " + str(error).partition(": ")[2][:40])
        return
    except ValueError as error:
        assert "no text matches" in str(error)
        assert not any(is_valid), schema
        return
    for value, expected in zip(values, is_valid, strict=True):
        event(f"valid: {expected}")
        try:
            assert allows(schema, value) == expected, (schema, value)
        except TooComplexError as error:  # what looks ahead is searched within a budget
            event(f"too complex: {error}")


def test_a_value_whose_type_leaves_nothing_is_not_allowed() -> None:
    nothing = {"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^a$", "const": "a"}
    with pytest.raises(ValueError):
        compile_json_schema(nothing)
    schema = {"anyOf": [nothing, {"const": None}]}
    assert allows(schema, None)
    assert not allows(schema, "a")


def test_references_by_other_names() -> None:
    schema = {
        "$id": "http://a.b/root.json",
        "properties": {
            "p": {"$ref": "other.json#/$defs/n"},
            "q": {"$ref": "#x"},
            "$ref": {"$ref": "http://a.b/root.json#/$defs/a~1%25"},
            "r": {"$dynamicRef": "#x"},
            "far": {"$ref": "http://elsewhere/x"},
            "enum": {"enum": [{"$ref": "#x"}]},
        },
        "$defs": {
            "other": {"$id": "other.json", "$defs": {"n": {"type": "null"}}},
            "x": {"$anchor": "x"},
            "a/%": {},
        },
    }
    found = local_refs(schema)["properties"]
    assert found["p"] == {"$ref": "#/$defs/other/$defs/n"}
    assert found["q"] == found["r"] == {"$ref": "#/$defs/x"}
    assert found["$ref"] == {"$ref": "#/$defs/a~1%"}
    assert found["far"] == {"$ref": "http://elsewhere/x"}
    assert found["enum"] == {"enum": [{"$ref": "#x"}]}


def test_merging_asks_for_both() -> None:
    assert merged({"minimum": 1, "pattern": "a"}, {"minimum": 2, "pattern": "b"}) == {
        "minimum": 2,
        "pattern": ["a", "b"],
    }
    assert merged({"enum": [1, True]}, {"enum": [1.0]}) == {"enum": [1]}
    assert merged({"enum": [1]}, {"enum": [True]}) is False
    many = {"anyOf": [{"minLength": n} for n in range(40)]}
    with pytest.raises(ValueError, match="1000 combinations"):
        merged(many, {"anyOf": [{"maxLength": n} for n in range(40)]})


def _refers_twice(keyword: str, last: Any) -> dict[str, Any]:
    """Twenty-five schemas, each of which refers to the next one twice: 2^25 ways down."""
    defs: dict[str, Any] = {"d25": last}
    for i in range(25):
        below = {"$ref": f"#/$defs/d{i + 1}"}
        two = {"a": below, "b": below} if keyword == "properties" else [below, below]
        defs[f"d{i}"] = {keyword: two}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def test_hostile_references_end_within_a_budget() -> None:
    with pytest.raises(SchemaError, match="more than 30000 schemas"):
        compile_json_schema(_refers_twice("allOf", {"type": "null"}))
    assert allows(_refers_twice("anyOf", {"type": "null"}), None)
    assert allows(_refers_twice("properties", {"type": "null"}), {"a": {"b": {"a": {}}}})
    for loop in ({"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"not": {"$ref": "#"}}):
        with pytest.raises(ValueError, match=r"leads to itself|no text matches|more than 30000"):
            compile_json_schema(loop)
    with pytest.raises(SchemaError, match="1000 combinations"):
        twelve = [{"anyOf": [{"minLength": i}, {"pattern": "a"}]} for i in range(12)]
        compile_json_schema({"allOf": twelve})


def test_thirty_kinds_told_apart_by_a_constant() -> None:
    kinds = [
        {"properties": {"kind": {"const": f"k{i}"}, f"v{i}": {"type": "integer"}},
         "required": ["kind", f"v{i}"]}
        for i in range(30)
    ]  # fmt: skip
    schema = {"type": "object", "oneOf": kinds}
    assert allows(schema, {"kind": "k7", "v7": 1})
    assert not allows(schema, {"kind": "k7", "v8": 1})
