"""The arguments of a run, and the settings that come with them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from minisgl.lang.settings import is_setting


def split(
    signature: inspect.Signature, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The program's own arguments, and settings; a name that the program has is the program's."""
    own: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        is_own = name in signature.parameters or not is_setting(name)
        (own if is_own else given)[name] = value
    return own, given


def of_item(item: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of one run of a batch, by position and by name.

    Raises:
        ValueError: neither a dict nor a tuple.
    """
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, (list, tuple)):
        return tuple(item), {}
    raise ValueError(f"batch item {item!r}: give a dict of the program's arguments, or a tuple")


def require_settings(given: Mapping[str, Any], function: str) -> None:
    """Raise TypeError if something else is among them."""
    for name in given:
        if not is_setting(name):
            raise TypeError(f"{function}() has no argument {name!r}, and it is no setting")
