"""Programs as files: a graph written as JSON, and read again.

    {"minisgl_program": 1, "graph": {"is": "Graph", "name": "qa", "body": {"is": "Block", ...}}}

A frozen value is an object with its class in "is"; a list of JSON is a tuple, and the few lists and
dicts of Python that settings hold are marked.  What is read is checked before anything of it runs:
a file can name no code but the operations of `values.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minisgl.lang import choices, ir, values
from minisgl.lang import graph as g
from minisgl.lang.settings import settings
from minisgl.lang.speculative import checked_tokens
from minisgl.sampling import SamplingParams

VERSION = 1

_CLASSES: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        g.Graph, g.Block, g.Node, g.Say, g.Begin, g.Fork, g.GetForkItem, g.Join, g.When, g.Repeat,
        ir.Text, ir.Gen, ir.Select, ir.Image, ir.Video, ir.RoleBegin, ir.RoleEnd, ir.ScopeBegin,
        ir.ScopeEnd, values.Constant, values.Argument, values.Ref, values.Call,
    )
}  # fmt: skip
_METHODS: Mapping[str, Any] = {
    name: getattr(choices, name)
    for name in (
        "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized",
    )
}  # fmt: skip


def write(graph: g.Graph, num_api_spec_tokens: int | None = None) -> str:
    """`graph` as text.

    Raises:
        ValueError: it holds what can't be written, and which node does.
    """
    stored = {
        "minisgl_program": VERSION,
        "num_api_spec_tokens": num_api_spec_tokens,
        "graph": _plain(graph),
    }
    return json.dumps(stored, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(text: str, name: str = "the program") -> tuple[g.Graph, int | None]:
    """The graph of a text, and its `num_api_spec_tokens`.

    Args:
        name: of where it comes from, for errors.

    Raises:
        ValueError: it is no program, or one of another version.
    """
    try:
        stored = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is no JSON: {error}") from None
    if not isinstance(stored, dict) or "minisgl_program" not in stored:
        raise ValueError(f'{name} is no program: it has no "minisgl_program"')
    if stored["minisgl_program"] != VERSION:
        raise ValueError(
            f"{name} is a program of version {stored['minisgl_program']!r}: this minisgl knows "
            f"version {VERSION}; compile it again"
        )
    try:
        graph, tokens = _value(stored["graph"]), checked_tokens(stored["num_api_spec_tokens"])
        if not isinstance(graph, g.Graph):
            raise ValueError("its graph is none")
        for node in graph.nodes:
            if isinstance(node.op, ir.Gen | g.Begin):
                settings(node.op.settings)
        for fault in g.faults(graph):
            raise ValueError(fault)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{name} is damaged: {error}") from error
    return graph, tokens


def _plain(value: Any) -> Any:  # noqa: PLR0912  # a case for each kind
    """As JSON has it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [_plain(item) for item in value]
        case list():
            return {"list": [_plain(item) for item in value]}
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                return {"pairs": [[_plain(k), _plain(v)] for k, v in value.items()]}
            return {"dict": {key: _plain(item) for key, item in value.items()}}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case Path():
            return str(value)
        case g.Node():
            try:
                return _plain_fields(replace(value, line=_short(value.line)))
            except ValueError as error:
                raise ValueError(f"{value} can't be saved: {error} ({value.line})") from None
        case ir.Gen():
            return _plain_fields(_portable(value))
        case choices.ChoicesSamplingMethod():
            for name, method in _METHODS.items():
                if value is method:
                    return {"method": name}
            raise ValueError("a choices_method of the program's own is code")
        case _ if type(value) in _CLASSES.values():
            return _plain_fields(value)
        case _:
            raise ValueError(f"{value!r} is a {type(value).__name__}, which JSON has no word for")


def _plain_fields(value: Any) -> dict[str, Any]:
    assert is_dataclass(value)
    given = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {"is": type(value).__name__, **given}


def _portable(gen: ir.Gen) -> ir.Gen:
    """With its schema as text, whatever it was given as."""
    if gen.parse is not None:
        raise ValueError("its answer is made into a Python type; with json_schema it is text")
    asked = dict(gen.settings)
    if "json_schema" in asked:
        asked["json_schema"] = SamplingParams(json_schema=asked["json_schema"]).json_schema
    return replace(gen, settings=MappingProxyType(asked))


def _short(line: str) -> str:
    """Without the folders of whoever wrote the program."""
    return line.replace("\\", "/").rpartition("/")[2]


def _value(stored: Any) -> Any:
    """What `_plain` was given."""
    match stored:
        case None | bool() | int() | float() | str():
            return stored
        case list():
            return tuple(map(_value, stored))
        case {"list": list(items)} if len(stored) == 1:
            return list(map(_value, items))
        case {"dict": dict(items)} if len(stored) == 1:
            return {key: _value(item) for key, item in items.items()}
        case {"pairs": list(pairs)} if len(stored) == 1:
            return {_value(key): _value(item) for key, item in pairs}
        case {"bytes": str(text)} if len(stored) == 1:
            return base64.b64decode(text)
        case {"method": str(name)} if len(stored) == 1:
            return _METHODS[name]
        case {"is": str(name)} if name in _CLASSES:
            kind = _CLASSES[name]
            given = {key: _value(item) for key, item in stored.items() if key != "is"}
            if set(given) != {field.name for field in fields(kind)}:
                raise ValueError(f"a {name} with {sorted(given)}")
            return _checked(kind(**given))
        case _:
            raise ValueError(f"unknown: {str(stored)[:60]}")


def _checked(value: Any) -> Any:
    """Raise if a value that comes from a file names what there is not."""
    match value:
        case values.Call(operation) if operation not in values.OPERATIONS:
            raise ValueError(f"operation {operation!r}")
        case ir.Gen(parse=parse) if parse is not None:
            raise ValueError("a gen with code")
        case g.Node(id, stream) if not (isinstance(id, int) and isinstance(stream, int)):
            raise ValueError(f"node {id!r} of stream {stream!r}")
        case _:
            return value
