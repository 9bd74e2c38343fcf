"""Constrained decoding: a pattern, and what a model may write to match it.  Usable alone.

    regex.py, json_schema.py -> nodes.py -> rests.py -> automaton.py -> byte_automaton.py
    byte_automaton.py, vocab_index.py -> masks.py -> guide.py
    vocab_index.py walks a tree of the tokens (token_tree.py) or cuts them by sets (wide_walk.py)

>>> from minisgl.fsm import Guide, VocabIndex, compile_regex
>>> vocab = VocabIndex([b"yes", b"no", b"ye", b"s", b""], stop_ids=[4])
>>> guide = Guide(compile_regex("yes|no"), vocab)
>>> vocab.ids(guide.allowed())
[0, 1, 2]
>>> guide.advance(2)
>>> guide.jump()
b's'
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from minisgl.fsm.automaton import Automaton
from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.guide import Guide
from minisgl.fsm.json_schema import as_schema, parse_schema
from minisgl.fsm.regex import parse
from minisgl.fsm.regex_chars import PatternError
from minisgl.fsm.rests import TooComplexError
from minisgl.fsm.schema_keywords import SchemaError
from minisgl.fsm.vocab_index import VocabIndex


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> ByteAutomaton:
    """The automaton of a pattern in Python's syntax; compiled once, then shared.

    Raises:
        PatternError: a ValueError that names the place of what is wrong or can't be an automaton.
        ValueError: no text matches the pattern, or it is too complex.
    """
    try:
        return ByteAutomaton(Automaton(parse(pattern)))
    except PatternError:
        raise
    except ValueError as error:
        shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        raise type(error)(f"regex {shown!r}: {error}") from error


def compile_json_schema(schema: Any, *, max_space: int = 32) -> ByteAutomaton:
    """The automaton of the JSON texts that are valid by a schema; compiled once, then shared.

    Args:
        schema: a dict or a boolean, JSON text of one, a dataclass, or a pydantic model.
        max_space: how many characters of white space may stand where JSON allows any; 0: none.

    Raises:
        SchemaError: a ValueError that names the place of what is wrong or can't be enforced.
        ValueError: no JSON at all is valid by it, or it is too complex.
    """
    return _compile_schema(json.dumps(as_schema(schema)), max_space)


@lru_cache(maxsize=256)
def _compile_schema(schema: str, max_space: int) -> ByteAutomaton:
    try:
        return ByteAutomaton(Automaton(parse_schema(schema, max_space=max_space)))
    except SchemaError:
        raise
    except ValueError as error:
        raise type(error)(f"JSON schema: {error}") from error


__all__ = [
    "Automaton", "ByteAutomaton", "Guide", "PatternError", "SchemaError", "TooComplexError",
    "VocabIndex", "compile_json_schema", "compile_regex", "parse", "parse_schema",
]  # fmt: skip
