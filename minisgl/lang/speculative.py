"""API speculative execution (the paper's section 3): many gens, one call.

    s += "Name:" + gen("name", stop="\\n") + "\\nJob:" + gen("job", stop="\\n")

    asked     ... Name:          without the stop, and for more
    said      " Ada Lovelace\\nJob: mathematician\\nBorn: 1815"
    name       -------------
    constant                 ------
    job                            --------------

A model behind an API is asked anew for every gen, and the whole prompt is paid for again.  So the
first gen lets the model go on, and what it says beyond the answer is kept with the context
(`Ahead`).  A later gen finds its answer there if the program, up to that gen, has said word for
word what the model had said.  If it differs by one character, the gen makes its own exact call.

An answer is cut out only where it is certain to be the one that an own call would have given:
stop strings by the text, `max_tokens` by the model's tokens.  So it is right as far as a model,
asked to go on from its own words, goes on as it did; by temperature 0 it does, and above it the
answers come from the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.context import Context
from minisgl.lang.stops import cut
from minisgl.lang.usage import Tally
from minisgl.sampling import SamplingParams

TRIES = 3  # of a reply that has to begin with the assistant's words

# What a gen may ask for and be answered out of a longer text: each its own end, and all the same
# distribution.  Anything else (a regex, several answers, log-probabilities, penalties for what the
# answer holds) needs a call of its own.
_OWN: dict[str, Any] = {"stop": (), "max_tokens": None}
_SHARED = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "logit_bias", "seed",
    "skip_special_tokens", "namespace",
)  # fmt: skip


@dataclass(frozen=True)
class Ahead:
    """What a model has said, from the beginning of the context to the end of its words."""

    text: str
    start: int  # where the model's words begin
    ends: tuple[int, ...] | None  # where its tokens end, in the text; None: the API doesn't tell
    tokens: int  # how many they are, or the most that they can be
    limit: int  # its max_tokens
    stopped: bool  # the model has ended by itself, before that limit
    sampling: SamplingParams
    prompt_tokens: int
    role_start: int
    media: int
    served: int = 0  # gens that were answered from it, after the one that asked

    @staticmethod
    def of(context: Context, said: Answer, params: SamplingParams) -> Ahead:
        """Of an answer to `params`, which had no stop strings."""
        assert params.max_tokens is not None
        tokens = said.meta.get("completion_tokens")
        reason = said.meta.get("finish_reason") or {}
        return Ahead(
            context.text + said.text,
            len(context.text),
            _token_ends(said, len(context.text)),
            params.max_tokens if tokens is None else tokens,
            params.max_tokens,
            reason.get("type") != "length",
            replace(params, **_OWN, logprobs=None),
            said.meta.get("prompt_tokens") or 0,
            context.role_start,
            len(context.media),
        )

    def answer(self, context: Context, params: SamplingParams) -> Answer | None:
        """What an own call of `params` after `context` would have given; None: it is not known."""
        assert params.max_tokens is not None
        start = len(context.text)
        has_said = self.text.startswith(context.text) and (
            start == self.start or self.start < start < len(self.text)
        )
        place = (context.role_start, len(context.media), replace(params, **_OWN))
        if not has_said or place != (self.role_start, self.media, self.sampling):
            return None
        end, is_limit = self._reach(start, params.max_tokens)
        said, matched = cut(self.text[start:end], params.stop)
        if matched is None and is_limit:
            reason: dict[str, Any] = {"type": "length", "length": params.max_tokens}
        elif matched is not None or (self.stopped and end == len(self.text)):
            reason = {"type": "stop", "matched": matched}
        else:
            return None  # the model has not said enough
        tokens = self.tokens_between(start, start + len(said) + len(matched or ""))
        return Answer(said, {"completion_tokens": tokens, "finish_reason": reason})

    def tokens_between(self, start: int, end: int) -> int:
        """How many tokens a part of the model's words has; in proportion, if that is not told."""
        if self.ends is not None:
            begins = (self.start, *self.ends)
            return sum(b < end and e > start for b, e in zip(begins, self.ends, strict=False))
        return round(self.tokens * (end - start) / max(1, len(self.text) - self.start))

    def _reach(self, start: int, max_tokens: int) -> tuple[int, bool]:
        """Up to where the text surely is within `max_tokens` tokens from `start`, and whether just
        so many tokens end there."""
        size = len(self.text)
        if start == self.start and max_tokens == self.limit:
            return size, not self.stopped
        if self.ends is not None:
            after = [end for end in self.ends if end > start]
            return (after[max_tokens - 1], True) if len(after) >= max_tokens else (size, False)
        if self.tokens <= max_tokens:
            return size, False
        # It is not told where tokens end, but each has a byte at least.
        sure = self.text[start:].encode()[:max_tokens].decode(errors="ignore")
        return start + len(sure), False


@dataclass(frozen=True)
class Outcome:
    """Of a gen: its answers, what is known ahead after it, what was spent on it, and what its own
    call would have been."""

    answers: list[Answer]
    ahead: Ahead | None
    spent: Tally
    without: Tally


class Ask(Protocol):
    """Makes a call."""

    async def __call__(
        self, context: Context, params: SamplingParams, show_until: Sequence[str] = ()
    ) -> list[Answer]:
        """The answers; a streamed one is shown as it comes, up to one of the texts `show_until`."""


class Speculation:
    """How one run asks its backend: for `tokens` at least, since more gens may come."""

    def __init__(self, backend: Backend, tokens: int, *, is_streaming: bool) -> None:
        self._backend = backend
        self._tokens = tokens
        self._is_streaming = is_streaming

    async def generate(self, context: Context, params: SamplingParams, ask: Ask) -> Outcome:
        """The answers to a gen, from what is known ahead or by a call."""
        ahead = context.ahead
        if not _can_be_cut(params):
            return await exactly(context, params, ask)
        if ahead is not None and (answer := ahead.answer(context, params)) is not None:
            return _from(ahead, answer, context)
        if context.words and not self._backend.can_continue:
            return await self._from_the_role_on(context, params)
        if ahead is not None and not ahead.served and ahead.role_start == context.role_start:
            # The program does not go on as the model would: no second bet on it.
            return await exactly(context, params, ask)
        return await self._with_more(context, params, ask)

    async def _with_more(self, context: Context, params: SamplingParams, ask: Ask) -> Outcome:
        """Ask for the answer and what comes after it."""
        assert params.max_tokens is not None
        # Beyond its own max_tokens only if the answer can be cut there, and in time.
        most = params.max_tokens
        if self._backend.tells_tokens and not self._is_streaming:
            most = max(most, self._tokens)
        asked = self._open(params, most)
        (said,) = await ask(context, asked, params.stop)
        ahead = Ahead.of(context, said, asked)
        answer = ahead.answer(context, params)
        spent = Tally.of_call(said.meta)
        if answer is None:
            exact = await exactly(context, params, ask)
            return replace(exact, ahead=ahead, spent=spent + exact.spent)
        return _cut_out(answer, said, ahead, spent)

    async def _from_the_role_on(self, context: Context, params: SamplingParams) -> Outcome:
        """Of an API that can't go on with the assistant's words: its reply has to begin with them.

        Raises:
            ValueError: it does not, or does not hold the answer.
        """
        assert params.max_tokens is not None
        before, words = context.before_role, context.words
        asked = self._open(params, max(params.max_tokens, self._tokens) + len(words.encode()))
        spent = Tally()
        for _ in range(TRIES):
            (said,) = await self._backend.generate(before, asked)
            spent += Tally.of_call(said.meta)
            ahead = Ahead.of(before, said, asked)
            answer = ahead.answer(context, params)
            if answer is not None:
                return _cut_out(answer, said, ahead, spent)
        raise ValueError(
            f"{self._backend.name} can't go on with words that the assistant has begun, and in "
            f"{TRIES} tries its own reply was not {words[:80]!r} and then an answer that ends "
            f"within max_tokens={params.max_tokens}, but {said.text[:80]!r}. Tell the model the "
            "form of its reply, or let the assistant's role begin with gen"
        )

    def _open(self, params: SamplingParams, max_tokens: int) -> SamplingParams:
        """Without an end but `max_tokens`."""
        logprobs = 0 if self._backend.tells_tokens else None
        return replace(params, stop=(), max_tokens=max_tokens, logprobs=logprobs)


async def exactly(context: Context, params: SamplingParams, ask: Ask) -> Outcome:
    """A gen's own call."""
    answers = await ask(context, params)
    spent = Tally.of_call(*(answer.meta for answer in answers))
    return Outcome(answers, context.ahead, spent, spent)


def _from(ahead: Ahead, answer: Answer, context: Context) -> Outcome:
    """An answer without a call."""
    prompt = ahead.prompt_tokens + ahead.tokens_between(ahead.start, len(context.text))
    own = Tally(1, prompt, completion_tokens=answer.meta["completion_tokens"])
    meta = {"prompt_tokens": prompt, "from_api_speculation": True, **answer.meta}
    later = replace(ahead, served=ahead.served + 1)
    return Outcome([Answer(answer.text, meta)], later, Tally(), own)


def _cut_out(answer: Answer, said: Answer, ahead: Ahead, spent: Tally) -> Outcome:
    """The answer of the gen that asked, out of all that was said."""
    own = replace(Tally.of_call(said.meta), completion_tokens=answer.meta["completion_tokens"])
    # The program did not ask for the tokens of all that was said.
    told = {k: v for k, v in said.meta.items() if not k.startswith("output_") and k != "usage"}
    return Outcome([Answer(answer.text, told | answer.meta)], ahead, spent, own)


def checked_tokens(tokens: int | None) -> int | None:
    """What `num_api_spec_tokens` may be.

    Raises:
        ValueError: it is no number of tokens.
    """
    if tokens is None or (type(tokens) is int and tokens > 0):
        return tokens
    raise ValueError(f"num_api_spec_tokens={tokens!r}: give a whole number above 0, or None")


def _can_be_cut(params: SamplingParams) -> bool:
    """Whether the answer depends on nothing but the text before it and how tokens are drawn."""
    plain = SamplingParams(**{name: getattr(params, name) for name in _SHARED})
    return bool(params.max_tokens) and replace(params, **_OWN) == plain


def _token_ends(said: Answer, start: int) -> tuple[int, ...] | None:
    """Where the tokens of an answer end, if their texts make up its text."""
    told = said.meta.get("output_token_logprobs")
    if told is None:
        return None
    texts = [token[2] for token in told]
    if texts and "".join(texts[:-1]) == said.text:
        texts.pop()  # what ended it, which is no text
    if "".join(texts) != said.text:
        return None  # a token holds half a character
    return tuple(accumulate(map(len, texts), initial=start))[1:]
