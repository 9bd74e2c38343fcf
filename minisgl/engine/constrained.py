"""Constrained answers in the engine: each request's `Guide`, the masks' table, and jump-forward.

    logits --vocab_mask--> sample --token--> guide --what is forced?--> jump --> next step

Jump-forward (paper, section 4 and appendix B): where only one text can come next, the engine writes
it without asking the model.  How that text is cut into tokens must not depend on where the jump
began, so it is tokenized together with what the model wrote since the last jump:

    final ids | by the model | forced            ... | {"na | me": "
                '------ encode ------'      -->  ... | {" | name | ":     and  "  is held back

What a legal continuation could merge with (here `"`, with the letters to come) is held back: the
model itself writes it next, or a longer token, under the mask.  All before it is *final*.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from minisgl.fsm import (
    Guide,
    TooComplexError,
    VocabIndex,
    compile_json_schema,
    compile_regex,
)
from minisgl.models.hub import cache_dir
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer

MOST_ROWS = 16_384  # masks to keep: 100 MB for 49,152 tokens; then all are dropped, and found anew


@dataclass(frozen=True)
class Jump:
    """The answer's ids from `start` on become `ids`, which begin with the text that was there.

    added: what each of them adds to the text; empty for those that were there.
    """

    start: int
    ids: list[int]
    added: list[bytes]


class Constraint:
    """One answer's place in its pattern.

    Args:
        guide: at the start of the pattern.
        table: the engine's.
        encode: text -> ids, as the continuation of another text.
        forbidden: ids that may not be written without the model either.
        jumps: whether forced tokens are computed in one forward pass, or one in each.

    Attributes:
        final: so many ids of the answer no jump can change any more.
        removed: for each token that the model chose, the share of the distribution that was masked.
        pending: tokens that are written, and wait for a forward pass each: (id, text it adds).
        fault: why its next mask could not be found; the request fails.
    """

    def __init__(
        self,
        guide: Guide,
        table: MaskTable,
        encode: Callable[[str], list[int]],
        forbidden: Collection[int],
        *,
        jumps: bool,
    ) -> None:
        self.guide = guide
        self.table = table
        self.jumps = jumps
        self.final = 0
        self.pending: deque[tuple[int, bytes]] = deque()
        self.fault: TooComplexError | None = None
        self.removed: list[float] = []
        self._encode = encode
        self._forbidden = frozenset(forbidden)
        self._final_state = guide.state  # after the final ids

    def row(self) -> int:
        """The row of the table that says what may come next; -1, with a `fault`, if it is lost."""
        try:
            return self.guide.row
        except TooComplexError as fault:
            self.fault = fault
            return -1

    @property
    def is_complete(self) -> bool:
        """Whether all is written that can be."""
        return self.guide.must_end and not self.pending

    def jump(self, ids: Sequence[int], max_tokens: int) -> Jump | None:
        """What can be written after the answer's `ids` without the model; the guide follows.

        None where the model may choose, or where its choice may change how the text is tokenized.
        `max_tokens`: of the whole answer.
        """
        forced = self.guide.jump()
        if not forced:
            return None
        vocab = self.guide.masks.vocab
        begun = b"".join(map(vocab.text_of, ids[self.final :]))
        text = begun + forced
        new = self._encode(text.decode())
        pieces = [vocab.text_of(i) for i in new]
        if b"".join(pieces) != text:  # a tokenizer that rewrites text (NFC, say) can't be foreseen
            return None
        states = self._states(text)
        most = max_tokens - self.final
        count, stop = _whole_tokens(pieces[:most], text, self._certain(text, states))
        if stop <= len(begun) or not self._forbidden.isdisjoint(new[:count]):
            return None
        self.guide.advance_text(text[len(begun) : stop])
        jump = Jump(self.final, new[:count], _beyond(pieces[:count], len(begun)))
        self.final += count
        self._final_state = states[stop]
        return jump

    def _states(self, text: bytes) -> list[int]:
        """The automaton's states before, between and after the bytes that follow the final ids."""
        states = [self._final_state]
        for byte in text:
            states.append(self.guide.masks.automaton.step(states[-1], byte))
        return states

    def _certain(self, text: bytes, states: Sequence[int]) -> int:
        """How much of `text` no legal token can reach beyond the end from."""
        masks = self.guide.masks
        first = max(0, len(text) - masks.vocab.reach)
        for start in range(first, len(text)):
            if masks.allows_longer(states[start], text[start:]):
                return start
        return len(text)


def _whole_tokens(pieces: Sequence[bytes], text: bytes, most: int) -> tuple[int, int]:
    """The most tokens within text[:most] that end with a whole character, and where they end.

    >>> _whole_tokens([b"a", b"bc", b"d"], b"abcd", 3)
    (2, 3)
    >>> _whole_tokens([b"a", b"\\xc3", b"\\xa9"], "aé".encode(), 2)
    (1, 1)
    """
    best, end = (0, 0), 0
    for count, piece in enumerate(pieces, start=1):
        end += len(piece)
        if end > most:
            break
        if end == len(text) or text[end] & 0xC0 != 0x80:
            best = (count, end)
    return best


def _beyond(pieces: Sequence[bytes], known: int) -> list[bytes]:
    """What each piece adds to the first `known` bytes of all of them.

    >>> _beyond([b"ab", b"cd", b"e"], 3)
    [b'', b'd', b'e']
    """
    added = []
    for piece in pieces:
        added.append(piece[known:])
        known = max(0, known - len(piece))
    return added


class MaskTable:
    """The masks of an engine's vocabulary, on its device: each travels once, when it is new."""

    def __init__(self, vocab: VocabIndex, device: torch.device) -> None:
        self.vocab = vocab
        self.device = device
        self._sent = torch.zeros((0, vocab.num_words), dtype=torch.int32, device=device)
        self._num_sent = 0
        self._generation = vocab.generation

    def rows(self, constraints: Sequence[Constraint]) -> tuple[torch.Tensor, list[int]]:
        """The table [R, W], and which row of it says what each may write next."""
        if self.vocab.num_rows > MOST_ROWS:
            self.vocab.forget()
        numbers = [constraint.row() for constraint in constraints]
        return self._on_device(), numbers

    def _on_device(self) -> torch.Tensor:
        rows, num_rows = self.vocab.rows, self.vocab.num_rows
        if self._generation != self.vocab.generation:
            self._generation, self._num_sent = self.vocab.generation, 0
        if len(self._sent) < len(rows):
            larger = self._sent.new_zeros(rows.shape)
            larger[: self._num_sent] = self._sent[: self._num_sent]
            self._sent = larger
        if self._num_sent < num_rows:
            new = torch.from_numpy(rows[self._num_sent : num_rows])
            if self.device.type == "cuda":
                new = new.pin_memory()
            self._sent[self._num_sent : num_rows].copy_(new, non_blocking=True)
            self._num_sent = num_rows
        return self._sent


class Constrainer:
    """Makes the constraints of an engine's requests.  Any thread may ask.

    Patterns are compiled once (`minisgl.fsm` keeps them), and the vocabulary is indexed when the
    first pattern comes.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, device: torch.device, *, jumps: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._device = device
        self._jumps = jumps
        self._table: MaskTable | None = None
        self._lock = threading.Lock()

    @property
    def table(self) -> MaskTable:
        """Of all masks."""
        with self._lock:
            if self._table is None:
                texts = [self._tokenizer.token_bytes(i) for i in range(self._vocab_size)]
                special = self._tokenizer.special_ids
                vocab = VocabIndex(texts, special_ids=special, cache=cache_dir())
                self._table = MaskTable(vocab, self._device)
            return self._table

    def make(self, params: SamplingParams, stop_ids: Collection[int]) -> Constraint | None:
        """The constraint of one request; None if it has no pattern.

        Args:
            stop_ids: what ends the answer, allowed only where the text is complete.

        Raises:
            ValueError: a pattern or a schema that can't be used; names the place and the reason.
        """
        if params.regex is not None:
            automaton = compile_regex(params.regex)
        elif params.json_schema is not None:
            automaton = compile_json_schema(params.json_schema, max_space=params.json_space)
        else:
            return None
        if params.max_tokens == 0:
            return None
        never = {i for i, bias in params.logit_bias if bias == float("-inf")}
        return Constraint(
            Guide(automaton, self.table.vocab, stop_ids),
            self.table,
            self._tokenizer.encode_continuation,
            never.union(stop_ids),
            # The log-probability of a token is read from a forward pass that ends before it.
            jumps=self._jumps and params.logprobs is None,
        )
