"""Scoring: which tokens are a continuation's, where text gives no border between it and its prompt.

    prompt "Hi "          ▁Hi  ▁                     the tokens of "Hi there" are not those of "Hi "
    + "there"             ▁Hi  ▁there                and some more: they differ from the second on,
    + "5"                 ▁Hi  ▁  5                  so both continuations are scored from there
                               ^ start

A text is scored as the model would have read it, whole.  All continuations of one prompt start at
the same place, or one would be spared a token that another has to pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minisgl.cache.tree_node import common_prefix_len
from minisgl.engine.output import Completion, Score
from minisgl.engine.prompt import AnyPrompt, as_list, is_single, text_of


def join(
    encode: Callable[[str], list[int]],
    prompts: AnyPrompt | Sequence[AnyPrompt],
    continuations: Sequence[str | Sequence[int]],
) -> list[tuple[list[int], int]]:
    """(ids of prompt and continuation, where the scored ones start) for each continuation.

    >>> join(str.split, "a b", ["c", " d"])  # "a bc" is not "a b" and something
    [(['a', 'bc'], 1), (['a', 'b', 'd'], 1)]
    >>> join(str.split, [7, 8], [[9], [10, 11]])
    [([7, 8, 9], 2), ([7, 8, 10, 11], 2)]

    Raises:
        ValueError: not as many prompts as continuations, text mixed with ids, a continuation that
            adds nothing, or one that leaves no token of its prompt before it.
    """
    if isinstance(continuations, str):
        raise ValueError(f"continuations={continuations!r}: give a list of them")
    each = as_list(prompts) * (len(continuations) if is_single(prompts) else 1)
    if len(each) != len(continuations):
        raise ValueError(f"{len(each)} prompts, but {len(continuations)} continuations")
    bare: dict[Any, list[int]] = {}
    start: dict[Any, int] = {}
    together: list[list[int]] = []
    keys = []
    for given, continuation in zip(each, continuations, strict=True):
        prompt, added = _alike(text_of(given), continuation)
        if prompt not in bare:
            bare[prompt] = _ids(encode, prompt)
            start[prompt] = len(bare[prompt])
        ids = _ids(encode, prompt + added)
        start[prompt] = min(start[prompt], common_prefix_len(tuple(bare[prompt]), tuple(ids)))
        together.append(ids)
        keys.append(prompt)
    for prompt, continuation, ids in zip(keys, continuations, together, strict=True):
        if len(ids) <= start[prompt]:
            raise ValueError(f"continuation {continuation!r} of {prompt!r} adds no token to score")
        if start[prompt] == 0:
            raise ValueError(
                f"prompt {prompt!r} with continuation {continuation!r}: no token of the prompt is "
                "left before the scored ones; give a longer prompt, or token ids"
            )
    return [(ids, start[prompt]) for ids, prompt in zip(together, keys, strict=True)]


def score_of(completion: Completion) -> Score:
    """From the answer to a request that asked for the log-probabilities of its prompt."""
    told = [each for each in completion.prompt_logprobs or () if each is not None]
    return Score(tuple(t.token_id for t in told), tuple(t.logprob for t in told))


def _alike(prompt: str | Sequence[int], continuation: str | Sequence[int]) -> tuple[Any, Any]:
    """Both as strings or both as tuples of ids: either can be added up, and be a key."""
    if isinstance(prompt, str) and isinstance(continuation, str):
        return prompt, continuation
    if isinstance(prompt, str) or isinstance(continuation, str):
        raise ValueError(
            f"prompt {prompt!r} with continuation {continuation!r}: give both as text or both as "
            "token ids"
        )
    return tuple(prompt), tuple(continuation)


def _ids(encode: Callable[[str], list[int]], text: str | tuple[int, ...]) -> list[int]:
    return encode(text) if isinstance(text, str) else list(text)
