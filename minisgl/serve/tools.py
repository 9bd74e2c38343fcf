"""Tool calls: how models write them, and how they are found in an answer.

    <tool_call>                                             Hermes, Qwen, SmolLM
    {"name": "weather", "arguments": {"city": "Rome"}}
    </tool_call>
    [TOOL_CALLS][{"name": "weather", "arguments": {...}}]   Mistral
    {"name": "weather", "parameters": {"city": "Rome"}}     Llama 3

Which of these a model was trained on is written in its chat template.  Its special tokens do not
show in an answer's text, so Mistral's is a list there, and Llama's an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from minisgl.serve.openai_types import Tool


@dataclass(frozen=True)
class Call:
    """One call.  arguments: JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Style:
    """How a model writes calls.

    begins: what a call's text begins with, after which nothing is shown as content.
    prefix: what is written for the model if it has to call.
    arguments: the name of the field that holds them.
    is_list: whether the calls are one JSON list.
    """

    begins: str
    prefix: str = ""
    arguments: str = "arguments"
    is_list: bool = False

    def schema(self, tools: Sequence[Tool], *, only_one: bool) -> dict[str, Any]:
        """The JSON that is a call of one of `tools`, after `prefix`."""
        calls: list[dict[str, Any]] = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    self.arguments: tool.function.parameters or {"type": "object"},
                },
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        call = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if not self.is_list:
            return call
        listed = {"type": "array", "items": call, "minItems": 1}
        return {**listed, "maxItems": 1} if only_one else listed


HERMES = Style("<tool_call>", prefix="<tool_call>\n")
MISTRAL = Style("[", prefix="[TOOL_CALLS]", is_list=True)
LLAMA = Style("{", arguments="parameters")


def style_of(template: str) -> Style:
    """What the chat template teaches.

    >>> style_of("... {{ '<tool_call>' }} ...") is HERMES, style_of("[TOOL_CALLS]") is MISTRAL
    (True, True)
    """
    if "<tool_call>" in template:
        return HERMES
    return MISTRAL if "[TOOL_CALLS]" in template else LLAMA


def parse(text: str, style: Style, names: Collection[str]) -> tuple[str, list[Call]]:
    """(What is said besides, the calls) of an answer.  What is no call of a known tool, whole and
    in valid JSON, is content.

    >>> text = 'Let me see. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    >>> parse(text, HERMES, ["f"])
    ('Let me see.', [Call(name='f', arguments='{"x": 1}')])
    """
    if style is HERMES:
        found = re.findall(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", text, re.DOTALL)
        said = text.partition("<tool_call>")[0].strip()
    else:
        found, said = [text.strip().removeprefix("[TOOL_CALLS]").strip()], ""
    calls: list[Call] = []
    for piece in found:
        try:
            value = json.loads(piece)
        except (ValueError, RecursionError):
            return text, []
        for item in value if style.is_list and isinstance(value, list) else [value]:
            call = _call(item, style, names)
            if call is None:
                return text, []
            calls.append(call)
    return (said, calls) if calls else (text, [])


def _call(item: Any, style: Style, names: Collection[str]) -> Call | None:
    if not isinstance(item, dict) or item.get("name") not in names:
        return None
    arguments = item.get(style.arguments, item.get("arguments", {}))
    if not isinstance(arguments, dict):
        return None
    return Call(item["name"], json.dumps(arguments, ensure_ascii=False))


class Splitter:
    """Content of an answer that grows, up to where a call may begin: all after that waits.

    >>> splitter = Splitter(HERMES)
    >>> [splitter.push(piece) for piece in ("It is <", "b>. <tool", "_call>{", "}")]
    ['It is ', '<b>. ', '', '']
    """

    def __init__(self, style: Style) -> None:
        self._style = style
        self._held = ""
        self._shown = 0
        self._is_call = False

    @property
    def shown(self) -> int:
        """Characters of the answer that were given out."""
        return self._shown

    def push(self, text: str) -> str:
        """What can be shown, now that `text` has come."""
        self._held += text
        if self._is_call:
            return ""
        if self._style is HERMES:
            marker = self._style.begins
            at = self._held.find(marker)
            self._is_call = at >= 0
            if at < 0:
                at = len(self._held) - _overlap(self._held, marker)
        elif self._shown:
            at = len(self._held)
        else:  # a call is the whole answer, or there is none
            begun = self._held.lstrip()
            self._is_call = begun.startswith(self._style.begins)
            at = 0 if self._is_call or not begun else len(self._held)
        shown, self._held = self._held[:at], self._held[at:]
        self._shown += len(shown)
        return shown


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of `text` are the beginning of `marker`.

    >>> _overlap("so <to", "<tool_call>")
    3
    """
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
