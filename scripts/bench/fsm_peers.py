"""The libraries that people would pick instead, behind one small interface; each is optional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Matcher(Protocol):
    """One answer's place in its pattern."""

    def mask(self) -> None: ...
    def advance(self, token: int) -> bool: ...


class Peer(Protocol):
    """A library, with the model's vocabulary loaded."""

    def compiled(self, pattern: str, *, is_schema: bool) -> Callable[[], Matcher]: ...


class LLGuidance:
    """Rust: derivatives and an Earley parser, masks by a walk of the vocabulary's tree."""

    def __init__(self, directory: Path, pieces: Sequence[bytes], stop_ids: Sequence[int]) -> None:
        import llguidance

        self._library = llguidance
        self._tokenizer = llguidance.LLTokenizer(
            str(directory / "tokenizer.json"), n_vocab=len(pieces), eos_token=list(stop_ids)
        )
        self._buffer = np.zeros((1, -(-len(pieces) // 32)), np.int32)

    def compiled(self, pattern: str, *, is_schema: bool) -> Callable[[], Matcher]:
        kind = self._library.LLMatcher
        grammar = kind.grammar_from_json_schema if is_schema else kind.grammar_from_regex
        inner = kind(self._tokenizer, grammar(pattern), log_level=0)
        if inner.is_error():
            raise ValueError(inner.get_error())
        return lambda: _LLMatcher(inner.deep_copy(), self._buffer)


class _LLMatcher:
    def __init__(self, inner: Any, buffer: np.ndarray) -> None:
        self._inner = inner
        self._target = (buffer.ctypes.data, buffer.nbytes)

    def mask(self) -> None:
        self._inner.unsafe_compute_mask_ptr(*self._target)

    def advance(self, token: int) -> bool:
        return bool(self._inner.consume_token(token))


class XGrammar:
    """C++: a pushdown automaton, token sets computed when a grammar is compiled."""

    def __init__(self, directory: Path, pieces: Sequence[bytes], stop_ids: Sequence[int]) -> None:
        import xgrammar

        self._library = xgrammar
        info = xgrammar.TokenizerInfo(
            list(pieces), xgrammar.VocabType.RAW, stop_token_ids=list(stop_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._buffer = xgrammar.allocate_token_bitmask(1, len(pieces))

    def compiled(self, pattern: str, *, is_schema: bool) -> Callable[[], Matcher]:
        if is_schema:
            compiled = self._compiler.compile_json_schema(pattern)
        else:
            compiled = self._compiler.compile_regex(pattern)
        return lambda: _XMatcher(self._library.GrammarMatcher(compiled), self._buffer)


class _XMatcher:
    def __init__(self, inner: Any, buffer: Any) -> None:
        self._inner, self._buffer = inner, buffer

    def mask(self) -> None:
        self._inner.fill_next_token_bitmask(self._buffer)

    def advance(self, token: int) -> bool:
        return bool(self._inner.accept_token(token))


class OutlinesCore:
    """Rust: a table of all states and tokens, made when a pattern is compiled."""

    def __init__(self, directory: Path, pieces: Sequence[bytes], stop_ids: Sequence[int]) -> None:
        import outlines_core

        self._library = outlines_core
        ids: dict[bytes, list[int]] = {}
        for i, data in enumerate(pieces):
            if data and i not in stop_ids:
                ids.setdefault(data, []).append(i)
        self._vocabulary = outlines_core.Vocabulary(stop_ids[0], ids)
        self._buffer = np.zeros(-(-len(pieces) // 32), np.int32)

    def compiled(self, pattern: str, *, is_schema: bool) -> Callable[[], Matcher]:
        if is_schema:
            pattern = self._library.json_schema.build_regex_from_schema(pattern)
        index = self._library.Index(pattern, self._vocabulary)
        return lambda: _OutlinesMatcher(self._library.Guide(index), self._buffer)


class _OutlinesMatcher:
    def __init__(self, inner: Any, buffer: np.ndarray) -> None:
        self._inner = inner
        self._target = (buffer.ctypes.data, buffer.size, buffer.itemsize)

    def mask(self) -> None:
        self._inner.write_mask_into(*self._target)

    def advance(self, token: int) -> bool:
        try:
            self._inner.advance(token, return_tokens=False)
        except ValueError:
            return False
        return True


PEERS = {"llguidance": LLGuidance, "xgrammar": XGrammar, "outlines-core": OutlinesCore}


def installed(
    names: Sequence[str], directory: Path, pieces: Sequence[bytes], stop_ids: Sequence[int]
) -> dict[str, Peer]:
    """Those of the named ones that can be imported."""
    found: dict[str, Peer] = {}
    for name in names:
        try:
            found[name] = PEERS[name](directory, pieces, stop_ids)
        except ImportError as error:
            print(f"{name} isn't measured: {error}")
    return found
