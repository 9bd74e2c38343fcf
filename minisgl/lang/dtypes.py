"""`gen(dtype=...)`: a Python type, as the pattern that its values match and the way to read them.

int, float, bool, str       a bounded pattern; the variable is its text, as in SGLang
Literal["a", "b"]           one of the texts
an Enum                     the text of a member's value; the variable is the member
a dataclass, a pydantic model   JSON by its schema; the variable is an object of it
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from minisgl.lang.ir import REGEX_BOOL, REGEX_STR

_BY_NAME = {kind.__name__: kind for kind in (int, float, bool, str)}
_NUMBERS = {
    int: (r"[-+]?[0-9]{1,18}", "+-"),
    float: (r"[-+]?[0-9]{0,18}\.?[0-9]{1,18}", "+-."),
}


@dataclass(frozen=True)
class Reading:
    """How values of a type are generated and read.

    settings: of the gen, fields of `SamplingParams`.
    stop: texts that end the answer besides the gen's own.
    parse: the value of an answer's text; None: the text.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None


def reading_of(dtype: Any) -> Reading:
    """How values of `dtype` are generated and read.

    >>> from typing import Literal
    >>> reading_of(Literal["yes", "no"]).settings
    {'regex': '(yes|no)'}

    Raises:
        ValueError: no such type, with those that there are.
    """
    if isinstance(dtype, str):
        dtype = _BY_NAME.get(dtype, dtype)
    if get_origin(dtype) is Literal:
        return Reading({"regex": _one_of(get_args(dtype))})
    if dtype in (int, float):
        return _number(*_NUMBERS[dtype])
    if dtype in (bool, str):
        return Reading({"regex": REGEX_BOOL if dtype is bool else REGEX_STR})
    if isinstance(dtype, type):
        return _object(dtype)
    raise _unknown(dtype)


def _object(kind: Any) -> Reading:
    if issubclass(kind, Enum):
        members = {str(member.value): member for member in kind}
        return Reading({"regex": _one_of(members)}, parse=partial(_read, kind, members.get))
    if hasattr(kind, "model_validate_json"):  # a pydantic model
        schema = _closed(kind.model_json_schema())
        return Reading(
            {"json_schema": schema}, parse=partial(_read, kind, kind.model_validate_json)
        )
    if dataclasses.is_dataclass(kind):
        build = partial(_read, kind, lambda text: _build(kind, json.loads(text)))
        return Reading({"json_schema": kind}, parse=build)
    raise _unknown(kind)


def _unknown(dtype: Any) -> ValueError:
    return ValueError(
        f"dtype={dtype!r}: choose int, float, bool, str, Literal[...], an Enum, a dataclass or a "
        "pydantic model"
    )


def _number(pattern: str, inside: str) -> Reading:
    """A number, after which the model may go on with what it wants to say: there the answer stops.

    If nothing could follow, a model that wants to say "24 hours", and has no token for "24 " alone,
    would rather say 240000.  The whole next token is in the pattern, and none of it in the answer.
    """
    ends = [c for c in map(chr, (9, 10, *range(32, 127))) if not c.isdigit() and c not in inside]
    first = "".join(map(re.escape, ends))
    return Reading({"regex": rf"{pattern}([{first}][\s\S]{{0,15}})?"}, stop=tuple(ends))


def _closed(schema: Any) -> Any:
    """The schema of a class that has these fields and no others."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def _read(kind: Any, parse: Callable[[str], Any], text: str) -> Any:
    try:
        value = parse(text)
        if value is not None:
            return value
    except ValueError as error:
        raise ValueError(_no_value(kind, text)) from error
    raise ValueError(_no_value(kind, text))


def _no_value(kind: Any, text: str) -> str:
    return f"the answer {text!r} is no {kind.__name__}; if it was cut off, give more max_tokens"


def _one_of(values: Any) -> str:
    # Python's escape, without what it escapes needlessly: patterns are read by people too.
    return "(" + "|".join(re.escape(str(value)).replace(r"\ ", " ") for value in values) + ")"


def _build(kind: Any, value: Any) -> Any:
    """`value`, as JSON has it, as a value of the type `kind`.

    >>> _build(tuple[int, str], [1, "a"])
    (1, 'a')
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _build_one_of(args, value)
    if isinstance(value, dict) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{name: _build(hints[name], item) for name, item in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if origin is list:
        return [_build(args[0], item) for item in value]
    if origin is tuple:
        return tuple(_build(each, item) for each, item in zip(args, value, strict=True))
    if origin is dict:
        return {name: _build(args[1], item) for name, item in value.items()}
    if kind in (int, float, bool, str, type(None)) and not _is_of(kind, value):
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return float(value) if kind is float else value


def _build_one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        try:
            return _build(kind, value)
        except (TypeError, ValueError, KeyError):
            continue
    raise ValueError(f"{value!r} is none of {kinds}")


def _is_of(kind: type, value: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
