"""Arrays of a JSON schema: items by place, how many, and which of them must be among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minisgl.fsm.json_objects import Compile
from minisgl.fsm.json_strings import counts
from minisgl.fsm.json_text import EMPTY, Layout, optional, sequence
from minisgl.fsm.nodes import Choice, Look, Node, Repeat
from minisgl.fsm.schema_keywords import fail, nothing_valid


def array_node(schema: Mapping[str, Any], path: str, layout: Layout, compile: Compile) -> Node:
    """The arrays that a schema's keywords allow."""
    node = layout.listed("[", _items(schema, path, layout, compile), "]")
    if "contains" in schema:
        least = schema.get("minContains", 1)
        if least > 0 or "maxContains" in schema:
            # Both at once: an array's end is one and the same for the two.
            containing = layout.listed("[", _containing(schema, path, layout, compile), "]")
            is_plain = not {"items", "prefixItems", "minItems", "maxItems"} & set(schema)
            ahead = Look(containing, behind=False, negative=False)
            node = containing if is_plain else sequence(ahead, node)
    if schema.get("uniqueItems"):
        fail(path, "'uniqueItems' can't be enforced")
    return node


def _items(schema: Mapping[str, Any], path: str, layout: Layout, compile: Compile) -> Node:
    low, high = counts(schema, "minItems", "maxItems", path)
    fixed, items = schema.get("prefixItems", []), schema.get("items", True)
    if not isinstance(fixed, list):
        fail(path, f"'prefixItems' is a list of schemas, not {fixed!r}")
    if items is False:
        high = len(fixed) if high is None else min(high, len(fixed))
    fixed = fixed if high is None else fixed[:high]
    if high is not None and high < low:
        nothing_valid(path, f"at least {low} and at most {high} items are asked for")
    nodes = [compile(item, f"{path}/prefixItems/{i}") for i, item in enumerate(fixed)]
    more: Node = EMPTY
    first: Node = EMPTY
    if items is not False:
        item = compile(items, f"{path}/items")
        after = sequence(layout.comma(), item)
        left = None if high is None else high - len(fixed)
        more = Repeat(after, max(low - len(fixed), 0), left)
        first = layout.repeated(item, low, high)
    for i, item in reversed(list(enumerate(nodes))):
        must = i < low
        here = sequence(item, more)
        first = here if must else optional(here)
        following = sequence(layout.comma(), here)
        more = following if must else optional(following)
    return first


def _containing(schema: Mapping[str, Any], path: str, layout: Layout, compile: Compile) -> Node:
    """Items of which so many are valid by `contains`; of the others, where it matters, none is."""
    low, high = counts(schema, "minContains", "maxContains", path, default=1)
    wanted = compile(schema["contains"], f"{path}/contains")
    other = compile(True if high is None else {"not": schema["contains"]}, f"{path}/contains")
    comma = layout.comma()
    others = Repeat(sequence(other, comma), 0, None)
    more_others = Repeat(sequence(comma, other), 0, None)
    none = optional(sequence(other, more_others))
    if high == 0:
        return none
    again = Repeat(
        sequence(more_others, comma, wanted), max(low - 1, 0), None if high is None else high - 1
    )
    some = sequence(others, wanted, again, more_others)
    return some if low else Choice((some, none))
