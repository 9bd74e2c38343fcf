"""JSON schemas: what they allow, what they forbid, and what is refused by its name."""

from __future__ import annotations

import enum
import json
import random
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.fsm import ByteAutomaton, Guide, SchemaError, VocabIndex, compile_json_schema
from minisgl.fsm.json_text import integers_between

ANY = compile_json_schema(True)


def valid(schema: Any, text: str, **options: Any) -> bool:
    automaton = compile_json_schema(schema, **options)
    return automaton.accepts(automaton.walk(automaton.start, text.encode()))


def obj(required: list[str] | None = None, *, closed: bool = True, **properties: Any) -> Any:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": not closed,
    }


STR, INT, NUM = {"type": "string"}, {"type": "integer"}, {"type": "number"}
NODE = {
    "type": "object",
    "properties": {"v": INT, "next": {"$ref": "#"}},
    "additionalProperties": False,
}
CASES = [
    (
        STR,
        ['""', r'"a\"\\\/\b\f\n\r\t"', r'"\u00e9é😊\ud83d\ude0a"'],
        ["a", '"', '"\n"', r'"\x"', r'"\ud83d"', '"\\"'],
    ),
    (INT, ["0", "-1", "120"], ["01", "1.5", "+1", "", "-", "1e5"]),
    (NUM, ["0", "-0.5", "1e5", "1.5E-7", "-0"], ["1.", ".5", "1e", "--1", "NaN", "3.5.5", "1e5.2"]),
    ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
    ({"type": "null"}, ["null"], ["None", "nul"]),
    ({"type": ["string", "null"]}, ['"x"', "null"], ["1"]),
    ({}, ['{"a": [1, {"b": []}]}', "1"], ["{", "[1,]", '{"a":1,}', "{1:2}"]),
    ({"const": False}, ["false"], ["true", "0"]),
    ({"const": None}, ["null"], ["0"]),
    ({"const": 'a"\\b'}, [r'"a\"\\b"'], ['"a"\\b"']),
    ({"const": {"a": [1, 2]}}, ['{"a":[1,2]}', '{ "a" : [ 1 , 2 ] }'], ['{"a":[2,1]}', "{}"]),
    (
        {"enum": ["é", 1, 2.5, [], {}]},
        ['"é"', r'"\u00e9"', "1", "2.5", "[]", "{}"],
        ['"e"', "2", "null"],
    ),
    ({"enum": [1, "a", None], "type": "string"}, ['"a"'], ["1", "null"]),
    (
        obj(a=INT),
        ['{"a":1}', '{ "a" : 1 }', '{\n  "a": 1\n}'],
        ["{}", '{"a":1,"b":2}', '{"a":"1"}', '{"a":1,}'],
    ),
    (
        obj([], a=INT, b=INT, c=INT),
        ["{}", '{"a":1}', '{"b":1}', '{"a":1,"c":2}'],
        ['{"b":1,"a":2}', '{"a":1 "b":2}', '{,"a":1}'],
    ),
    (
        obj(["b"], a=INT, b=INT, c=INT),
        ['{"b":1}', '{"a":0,"b":1,"c":2}'],
        ["{}", '{"a":1}', '{"c":1}'],
    ),
    (
        obj([], closed=False, a=INT, ab=INT),
        ["{}", '{"x":[]}', '{"a":1,"x":2,"abc":"s"}', '{"":0}', '{"b":1}'],
        ['{"x":1,"a":"no"}', '{"a":"no"}', r'{"\u0061":"no"}', '{"ab":null}'],
    ),
    ({"type": "object", "additionalProperties": INT}, ["{}", '{"x":1,"y":2}'], ['{"x":"1"}']),
    ({"type": "object", "required": ["a"]}, ['{"a":null}', '{"a":1,"z":2}'], ["{}", '{"b":1}']),
    (
        obj([], closed=False, **{'q"/\\': INT}),
        [r'{"q\"/\\":1}', '{"q":"s"}'],
        [r'{"q\"/\\":"s"}', r'{"q\"\/\\":"s"}'],
    ),
    (
        {"type": "array", "items": INT, "minItems": 1, "maxItems": 3},
        ["[1]", "[ 1 , 2,3 ]"],
        ["[]", "[1,2,3,4]", '["a"]'],
    ),
    ({"type": "array", "items": INT}, ["[]", "[1]", str([1] * 50)], ["[1,]", "[,1]"]),
    ({"type": "array", "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
    (
        {"type": "array", "prefixItems": [INT, STR], "items": False},
        ["[]", "[1]", '[1,"a"]'],
        ['["a"]', '[1,"a",2]'],
    ),
    (
        {"type": "array", "prefixItems": [INT, STR], "minItems": 2},
        ['[1,"a"]', '[1,"a",null,{}]'],
        ["[1]", "[]"],
    ),
    ({"type": "array", "items": [INT], "additionalItems": STR}, ["[]", '[1,"a","b"]'], ["[1,2]"]),
    (
        {"type": "array", "prefixItems": [INT], "items": STR, "minItems": 3, "maxItems": 3},
        ['[1,"a","b"]'],
        ['[1,"a"]', '[1,"a","b","c"]'],
    ),
    ({"anyOf": [INT, STR]}, ["1", '"a"'], ["null"]),
    ({"oneOf": [{"type": "null"}, obj(a=INT)]}, ["null", '{"a":1}'], ["1"]),
    (
        {"oneOf": [obj(k={"const": "x"}, v=INT), obj(k={"const": "y"}, v=STR)]},
        ['{"k":"x","v":1}', '{"k":"y","v":"s"}'],
        ['{"k":"x","v":"s"}'],
    ),
    (
        {
            "allOf": [
                {"type": ["string", "null"], "minLength": 2},
                {"type": "string", "maxLength": 3},
            ]
        },
        ['"ab"', '"abc"'],
        ['"a"', '"abcd"', "null"],
    ),
    (
        {"allOf": [obj(["a"], closed=False, a=NUM), obj(["b"], closed=False, a=INT, b=STR)]},
        ['{"a":1,"b":""}'],
        ['{"a":1.5,"b":""}', '{"a":1}'],
    ),
    (
        {"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 4}]},
        ['"a"', '"abcd"'],
        ['"ab"', "1"],
    ),
    ({"$ref": "#/$defs/x", "maxLength": 2, "$defs": {"x": STR}}, ['"ab"'], ['"abc"', "1"]),
    ({"$ref": "#/$defs/a~1b~0", "$defs": {"a/b~": INT}}, ["1"], ["null"]),
    (NODE, ["{}", '{"v":1,"next":{"next":{"v":2}}}'], ['{"next":1}']),
    (
        {"type": "array", "items": {"$ref": "#"}},
        ["[]", "[[[]],[]]", "[" * 60 + "]" * 60],
        ["[1]", "[[]"],
    ),
    (
        {**STR, "minLength": 2, "maxLength": 3},
        ['"ab"', r'"\u00e9\n"', '"😊世é"', r'"\ud83d\ude0a\\"'],
        ['"a"', '"abcd"', r'"\n"'],
    ),
    ({**STR, "pattern": "^[a-f]+$", "maxLength": 4}, ['"abcd"'], ['"abcde"', '""', '"g"']),
    ({**STR, "pattern": "b+"}, ['"b"', '"abc"', r'"\"b"'], ['"a"', '""']),
    ({**STR, "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xa"', '"bx"']),
    ({**STR, "pattern": r"^\d\w\s$"}, ['"1a "'], ['"٣a "', '"1é "']),
    ({**STR, "pattern": r'^[^a]"\n\\$'}, [r'"x\"\n\\"'], ['"x"']),
    ({**STR, "pattern": "^(?=.*[0-9])(?!x)[a-z0-9]{3}$"}, ['"ab1"'], ['"abc"', '"x12"', '"ab"']),
    (obj(a={**STR, "pattern": r"^(?=.*[0-9])"}, b=INT), ['{"a":"x1","b":1}'], ['{"a":"x","b":1}']),
    ({**STR, "pattern": r"\bfoo\b"}, ['"a foo"', '"foo"'], ['"afoo"']),
    (
        {**STR, "format": "date"},
        ['"2024-02-29"', '"2023-12-31"'],
        ['"2023-02-29"', '"2023-13-01"', '"٢023-01-01"'],
    ),
    (
        {**STR, "format": "time"},
        ['"23:59:59Z"', '"01:02:03.5+01:00"'],
        ['"24:00:00Z"', '"01:02:03"'],
    ),
    ({**STR, "format": "date-time"}, ['"2024-01-01T00:00:00Z"'], ['"2024-01-01"']),
    ({**STR, "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567"']),
    ({**STR, "format": "email"}, ['"a.b@c.de"'], ['"a@b"', '"@c.de"', '"a..b@c.de"']),
    ({**STR, "format": "ipv4"}, ['"10.0.0.255"'], ['"10.0.0.256"', '"10.0.0.01"']),
    (
        {**STR, "format": "ipv6"},
        ['"::1"', '"2001:db8::8:800:200c:417a"', '"1:2:3:4:5:6:7:8"', '"::"', '"1::"'],
        ['"1:2"', '"1::2::3"', '"12345::"'],
    ),
    (
        {**STR, "format": "ipv6"},
        ['"::1.2.3.4"', '"1::d6:192.168.0.1"', '"1:2:3:4:5:6:1.2.3.4"', '"1:2:3:4:5::1.2.3.4"'],
        ['"1.2.3.4"', '"1:2:3:4:5:6:7:1.2.3.4"', '"::1.2.3"', '"1::2:3:4:5:6:1.2.3.4"'],
    ),
    (
        {**STR, "format": "duration"},
        ['"P1Y2M3DT4H"', '"PT5S"', '"P2W"'],
        ['"P"', '"P1D2H"', '"1D"'],
    ),
    ({**STR, "format": "json-pointer"}, ['""', '"/a~1/0"'], ['"a"', '"/~2"']),
    ({**STR, "format": "relative-json-pointer"}, ['"0"', '"1/a"', '"2#"'], ['"/a"', '"01"']),
    ({**STR, "format": "time"}, ['"23:59:60Z"'], ['"22:59:60Z"']),
    ({**STR, "format": "uri"}, ['"https://a.de/x?y#z"'], ['"no uri"', '"://x"']),
    ({**STR, "format": "ipv4", "maxLength": 7}, ['"1.2.3.4"'], ['"10.2.3.4"']),
    ({**INT, "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13", "-3"]),
    ({**INT, "exclusiveMinimum": 3, "exclusiveMaximum": 5}, ["4"], ["3", "5"]),
    ({**INT, "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
    ({**INT, "minimum": 0.5, "maximum": 2.5}, ["1", "2"], ["0", "3"]),
    ({**NUM, "minimum": 0, "exclusiveMaximum": 1}, ["0", "0.0", "0.999"], ["1", "1.0", "-0.1"]),
    (
        {**NUM, "minimum": -2, "maximum": 3},
        ["-2", "-2.00", "-1.9", "-0.5", "0", "3.0", "2.99"],
        ["-2.1", "3.01", "4"],
    ),
    ({**NUM, "exclusiveMinimum": 0}, ["0.001", "5", "12.5"], ["0", "0.0", "-1"]),
    ({**INT, "multipleOf": 7}, ["0", "7", "-14", "7007"], ["8", "07", "1"]),
    (
        {**INT, "multipleOf": 5, "minimum": 10, "maximum": 20},
        ["10", "15", "20"],
        ["5", "12", "25", "100"],
    ),
    ({**NUM, "multipleOf": 0.01}, ["1.25", "3", "0.5"], ["1.255"]),
    ({**NUM, "multipleOf": 0.3}, ["0.3", "-0.60", "3", "1.2"], ["0.4", "1", "0.31"]),
    ({**NUM, "multipleOf": 2.5, "minimum": 3}, ["5", "7.5"], ["2.5", "6"]),
    (
        {**NUM, "minimum": 0.25, "exclusiveMaximum": 1.5},
        ["0.25", "0.3", "1", "1.4999", "0.250"],
        ["0.2", "0.2499", "1.5", "1.50", "2", "-0.3"],
    ),
    (
        {**NUM, "minimum": -1.5, "maximum": -1.25},
        ["-1.5", "-1.3", "-1.25"],
        ["-1.6", "-1.2", "1.3"],
    ),
    ({**NUM, "exclusiveMinimum": 0.19, "maximum": 0.2}, ["0.191", "0.2"], ["0.19", "0.21", "0"]),
    ({"const": -2.0}, ["-2", "-2.0"], ["2", "-2.5"]),
    ({"enum": ["a", "abc", 3, 7], "minLength": 2, "maximum": 5}, ['"abc"', "3"], ['"a"', "7"]),
    ({"not": INT}, ['"a"', "1.5", "null", "[]"], ["1", "-3"]),
    ({**STR, "not": {"const": "no"}}, ['"n"', '"nope"', '""'], ['"no"', "1"]),
    ({**STR, "not": {"pattern": "^x"}}, ['"ax"', '""'], ['"x"', '"xa"']),
    ({**INT, "not": {"enum": [1, 2]}}, ["0", "12", "-1"], ["1", "2"]),
    ({"not": {"required": ["a"]}}, ['{"b":1}', "{}"], ['{"a":1}', '{"b":1,"a":2}', "[]", "1"]),
    ({"not": {"minimum": 3}, "type": "number"}, ["2.9", "-1"], ["3", "4"]),
    (
        {
            **obj(["kind"], closed=False, kind={"enum": ["a", "b"]}),
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["x"]},
            "else": {"required": ["y"]},
        },
        ['{"kind":"a","x":1}', '{"kind":"b","y":1}', '{"kind":"b","y":1,"x":2}'],
        ['{"kind":"a","y":1}', '{"kind":"b","x":1}', "{}"],
    ),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}', '{"a":1,"c":1}'],
        ["{}", '{"a":1,"b":2}'],
    ),
    ({"oneOf": [STR, {**STR, "maxLength": 2}]}, ['"abc"'], ['"ab"', '""']),
    (
        {**obj([], a=INT, b=INT), "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b":1}', '{"a":1,"b":1}'],
        ['{"a":1}'],
    ),
    (
        {"type": "object", "patternProperties": {"^n": INT}, "additionalProperties": False},
        ["{}", '{"n":1,"nm":2}'],
        ['{"m":1}', '{"n":"a"}'],
    ),
    (
        {**obj([], closed=False, ab=STR), "patternProperties": {"^a": {"maxLength": 1}}},
        ['{"ab":"x"}', '{"ac":1}', '{"c":"long"}', '{"ac":"x"}'],
        ['{"ab":"xy"}', '{"ab":1}', '{"ac":"xy"}'],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"ab":1}'], ['{"A":1}']),
    (
        {**obj([], a=INT, b=INT, c=INT), "minProperties": 1, "maxProperties": 2},
        ['{"a":1}', '{"a":1,"c":1}', '{"b":1}'],
        ["{}", '{"a":1,"b":1,"c":1}'],
    ),
    ({"type": "object", "minProperties": 1}, ['{"x":1,"y":2}', '{"x":1}'], ["{}"]),
    (
        {"type": "array", "items": INT, "contains": {"const": 7}, "maxItems": 3},
        ["[7]", "[1,7]", "[7,7,1]"],
        ["[]", "[1]", "[1,2,3,7]"],
    ),
    ({"contains": STR, "maxContains": 1}, ['["a"]', '[1,"a",2]', "1"], ["[]", '["a","b"]']),
    ({"contains": STR, "minContains": 2}, ['["a",1,"b"]'], ['["a"]', "[1]"]),
    ({"contains": STR, "minContains": 0}, ["[]", "[1]", '["a"]'], ["["]),
    (
        {"allOf": [{"prefixItems": [{"minimum": 3}]}], "items": {"minimum": 5}},
        ["[5,5]", "[5]"],
        ["[3]", "[5,3]"],
    ),
    (
        {"allOf": [{**STR, "pattern": "a"}, {"pattern": "b", "format": "hostname"}]},
        ['"ab"', '"ba"'],
        ['"a"', '"b"', '"a b"'],
    ),
    (
        {**obj([], v=INT, l={"anyOf": [{"$ref": "#"}, {"type": "null"}]})},
        ['{"v":1,"l":{"l":{"v":2,"l":null}}}', "{}"],
        ['{"l":1}', '{"l":{"v":null}}'],
    ),
    (
        {
            "$ref": "#/$defs/p",
            "unevaluatedProperties": False,
            "$defs": {"p": {"type": "object", "properties": {"a": INT}}},
        },
        ['{"a":1}'],
        ['{"a":1,"b":2}'],
    ),
    (
        {"$id": "http://a/b", "$ref": "c#x", "$defs": {"y": {"$id": "c", "$anchor": "x", **INT}}},
        ["1"],
        ["null"],
    ),
    ({"properties": {"a": False}, "type": "object"}, ["{}", '{"b":1}'], ['{"a":1}']),
    (
        {"anyOf": [obj(a={"allOf": [STR, INT]}), obj(b=INT)]},
        ['{"b":1}'],
        ['{"a":1}', '{"a":""}'],
    ),
    ({**STR, "title": "t", "description": "d", "default": 1, "x-more": {}}, ['"s"'], ["1"]),
]


@pytest.mark.parametrize(("schema", "yes", "no"), CASES)
def test_what_a_schema_allows(schema: Any, yes: list[str], no: list[str]) -> None:
    for text in yes:
        assert valid(schema, text), text
    for text in no:
        assert not valid(schema, text), text


def test_white_space_in_a_pattern_is_that_of_javascript() -> None:
    """As JSON Schema has it, and unlike `re`, by which `jsonschema` judges."""
    schema = {**STR, "pattern": r"^\s$"}
    assert all(valid(schema, text) for text in ('"\ufeff"', '"\u2003"', r'"\n"'))
    assert not any(valid(schema, text) for text in ('"\x85"', '"a"'))


def test_a_number_that_is_not_whole() -> None:
    """Exactly: no rounding as in a validator that reads it as a float."""
    assert valid({"oneOf": [INT, NUM]}, "1.5")
    assert valid({"not": INT}, "12345678901234567890.00000001")
    assert not valid({"oneOf": [INT, NUM]}, "1")
    assert not valid({"oneOf": [INT, NUM]}, "1.0")


REFUSED = [
    ({"not": {**STR, "format": "date"}}, "'not' of 'format'"),
    ({"not": {"const": {"a": 1}}}, "'not' of {'a': 1}"),
    ({"not": {"not": {"not": {}}}}, "no value is valid"),
    ({**STR, "contentEncoding": "base64"}, "contentEncoding"),
    ({"$schema": "http://mine/schema"}, "dialect"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({**STR, "format": "color"}, "'color'"),
    ({"type": "object", "patternProperties": {c: {} for c in "abcde"}}, "at most 4"),
    ({"patternProperties": {"(": {}}}, "position 0"),
    ({"if": STR, "then": 5}, "not 5"),
    ({"type": "text"}, "'text'"),
    ({"oneOf": [STR, STR]}, "no text matches"),
    ({"type": "object", "minProperties": 2}, "could be one twice"),
    ({"oneOf": [{**STR, "format": "date"}, {**STR, "format": "time"}]}, "'not' of 'format'"),
    ({**NUM, "minimum": 1e99}, "40 digits"),
    ({**NUM, "multipleOf": 0.123456789}, "multipleOf"),
    ({**NUM, "multipleOf": -1}, "above 0"),
    (
        {"anyOf": [{"type": "object"}], "unevaluatedProperties": False, "if": {}, "then": {}},
        "conditions",
    ),
    ({**STR, "pattern": "(a)\\1"}, "position 3: the back-reference"),
    ({"$ref": "http://a/b"}, "parts of this"),
    ({"$ref": "#/$defs/no"}, "leads nowhere"),
    ({**STR, "minLength": 3, "maxLength": 2}, "'minLength' is 3"),
    ({**STR, "minLength": -1}, "from 0 up"),
    ({**INT, "minimum": 3, "maximum": 2}, "no number"),
    ({"allOf": [STR, INT]}, "no value"),
    ({"enum": []}, "'enum'"),
    ({"enum": [1], "type": "string"}, "none of"),
    ({"enum": ["a"], "minLength": 2}, "none of"),
    ({"enum": [{"a": 1}], "minProperties": 2}, "beside"),
    ({"anyOf": []}, "'anyOf'"),
    ({"type": []}, "lists nothing"),
    (3, "not int"),
    ("{", "no JSON"),
    ({"items": 5, "type": "array"}, "#/items"),
    (
        obj(a={"properties": {"b": {"uniqueItems": True}}, "type": "object"}),
        "#/properties/a/properties/b: 'uniqueItems'",
    ),
    ({"type": "object", "required": ["x"], "additionalProperties": False}, "'x' is required"),
    ({**STR, "maxLength": "9"}, "'9'"),
    (False, "no text matches"),
    ({"$ref": "#"}, "no text matches"),
    (obj(x={"$ref": "#"}), "no text matches"),
    (
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        "leads to itself",
    ),
]


@pytest.mark.parametrize(("schema", "what"), REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        compile_json_schema(schema)


def test_deep_schemas_are_refused_and_deep_references_are_not() -> None:
    deep: Any = STR
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaError, match="60 deep"):
        compile_json_schema(deep)
    linked = {
        "$defs": {
            f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(99)
        }
    }
    linked["$defs"]["d99"] = STR
    assert valid({"$ref": "#/$defs/d0", **linked}, "[" * 99 + '"x"' + "]" * 99)


def test_white_space_is_bounded() -> None:
    schema = obj(a=INT)
    assert valid(schema, '{"a":1}', max_space=0)
    assert not valid(schema, '{"a": 1}', max_space=0)
    assert valid(schema, "{" + " " * 32 + '"a":1}')
    assert not valid(schema, "{" + " " * 33 + '"a":1}')
    with pytest.raises(ValueError, match="max_space is -1"):
        compile_json_schema(schema, max_space=-1)


def test_lengths_of_a_hundred_thousand_are_as_cheap_as_short_ones() -> None:
    automaton = compile_json_schema(
        obj(a={**STR, "maxLength": 100_000}, b={"type": "array", "items": STR, "maxItems": 10**6})
    )
    assert automaton.walk(automaton.start, b'{"a": "' + b"x" * 50)
    assert automaton.num_states < 100


def test_an_enum_of_many_strings() -> None:
    names = [f"name {i} of {i * 7919 % 5003}" for i in range(5_000)]
    assert valid({"enum": names}, json.dumps(names[1234]))
    assert not valid({"enum": names}, json.dumps(names[1234] + "1"))
    assert not valid({"enum": names}, json.dumps("name"))


def test_twelve_optional_arrays() -> None:
    names = [f"field{i}" for i in range(12)]
    schema = obj([], **{name: {"type": "array", "items": STR} for name in names})
    automaton = compile_json_schema(schema)
    assert automaton.num_states == 2
    assert valid(schema, json.dumps({n: ["a", "b"] for n in names[::2]}))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(json_values, st.sampled_from([None, 2]), st.booleans(), st.data())
def test_any_json_and_nothing_else(
    value: Any, indent: int | None, ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for whole in (text, json.dumps(text)):
        assert ANY.accepts(ANY.walk(ANY.start, whole.encode()))
    at = data.draw(st.integers(0, len(text)))
    broken = text[:at] + data.draw(st.sampled_from('{}[]",:\\0-e\n\x01 t')) + text[at + 1 :]
    try:
        json.loads(broken)
        expected = broken == broken.strip()  # ours has no space around the whole
    except ValueError:
        expected = False
    if r"\ud" not in broken.lower():  # half a pair, which Python reads
        assert ANY.accepts(ANY.walk(ANY.start, broken.encode())) == expected, broken


@given(json_values)
def test_a_const_is_its_value(value: Any) -> None:
    assert valid({"const": value}, json.dumps(value))
    assert valid({"const": value}, json.dumps(value, ensure_ascii=False, indent=1))


@given(
    st.none() | st.integers(-3000, 3000),
    st.none() | st.integers(-3000, 3000),
    st.integers(-3100, 3100),
)
def test_bounds_of_integers(low: int | None, high: int | None, number: int) -> None:
    pattern = integers_between(low, high)
    inside = (low is None or low <= number) and (high is None or number <= high)
    if low is None or high is None or low <= high:
        assert (
            valid(
                {
                    **INT,
                    **({} if low is None else {"minimum": low}),
                    **({} if high is None else {"maximum": high}),
                },
                str(number),
            )
            == inside
        )
    else:
        assert pattern == ""


@given(
    st.integers(-30, 30),
    st.integers(0, 40),
    st.booleans(),
    st.booleans(),
    st.decimals(-80, 80, places=2),
)
def test_bounds_of_numbers(
    low: int, width: int, without_low: bool, without_high: bool, number: Any
) -> None:
    high = low + width + 1
    schema = {
        **NUM,
        "exclusiveMinimum" if without_low else "minimum": low,
        "exclusiveMaximum" if without_high else "maximum": high,
    }
    inside = (low < number if without_low else low <= number) and (
        number < high if without_high else number <= high
    )
    if number != 0:  # -0.00 is a matter of taste
        assert valid(schema, str(number)) == inside, (schema, number)


VOCAB = VocabIndex(
    [*(bytes([b]) for b in range(256)), b'": "', b'", "', b"]}", b" [", b"true", b""], [261]
)


def shortest_end(automaton: ByteAutomaton, state: int) -> bytes:
    """The bytes of the nearest way to a complete text."""
    ways = {state: b""}
    queue = [state]
    for at in queue:  # grows on the way, nearest first
        if automaton.accepts(at):
            return ways[at]
        for byte in range(256):
            following = automaton.step(at, byte)
            if following and following not in ways:
                ways[following] = ways[at] + bytes([byte])
                queue.append(following)
    raise AssertionError("no way to an end")


@pytest.mark.parametrize("schema", [case[0] for case in CASES], ids=str)
def test_random_walks_are_valid(schema: Any) -> None:
    rnd = random.Random(str(schema))
    old = "additionalItems" in str(schema) or "'exclusiveMinimum': True" in str(schema)
    validator = jsonschema.Draft4Validator if old else jsonschema.Draft202012Validator
    for _ in range(5):
        guide = Guide(compile_json_schema(schema, max_space=1), VOCAB)
        data = b""
        while not guide.is_finished and len(data) < 60:
            token = rnd.choice(VOCAB.ids(guide.allowed()))
            guide.advance(token)
            data += VOCAB.text_of(token)
        if not guide.is_finished:
            data += shortest_end(guide.masks.automaton, guide.state)
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(data))


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Tree:
    name: str
    color: Color
    kind: Literal["leaf", "branch"]
    size: float | None = None
    children: list[Tree] = field(default_factory=list)
    pair: tuple[int, str] = (0, "")


def test_a_dataclass() -> None:
    leaf = '{"name":"x","color":"red","kind":"leaf"}'
    assert valid(Tree, leaf)
    assert valid(Tree, leaf[:-1] + f',"size":null,"children":[{leaf},{leaf}],"pair":[1,"a"]}}')
    assert not valid(Tree, leaf.replace("red", "green"))
    assert not valid(Tree, leaf[:-1] + ',"more":1}')

    @dataclass
    class Odd:
        what: complex

    with pytest.raises(ValueError, match="complex"):
        compile_json_schema(Odd)


def test_a_pydantic_model() -> None:
    model = pydantic.create_model("Point", x=(int, ...), y=(int, 0))
    assert valid(model, '{"x":1,"y":2}')
    assert not valid(model, '{"x":"1"}')
