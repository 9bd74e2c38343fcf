"""The best hit rate there can be for requests that are known (paper, theorem 3.1).

A batch of prompts is a tree, and each token on its edges has to be computed once: no order computes
fewer, and a walk of the tree depth first computes no more.  Three things that the theorem leaves
out, because they are no matter of order:

* The token whose logits the answer begins with is computed for each request, cached or not; where
  log-probabilities of the prompt are asked for, all from that place on.
* What a request computed for its logits' sake, others find in the cache.
* So they do with the answer: a conversation's next prompt begins with it, and nobody computes that
  as part of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from minisgl.engine.engine import Engine
from minisgl.engine.req import Req

Trie = dict[tuple[object, int], int]  # (a prefix, or a namespace; the next token): a longer prefix


@dataclass(frozen=True)
class Asked:
    """One request.

    logits_from: the first position of the prompt whose logits are wanted.
    cached: how many tokens of the prompt an engine found in its cache.
    """

    prompt: Sequence[int]
    logits_from: int
    output: Sequence[int] = ()
    cached: int = 0
    namespace: str | None = None

    def prefixes(self, trie: Trie) -> Iterator[int]:
        """What stands for each prefix of prompt and answer in `trie`, which gets the new ones."""
        prefix: object = self.namespace
        for token in (*self.prompt, *self.output):
            prefix = number = trie.setdefault((prefix, token), len(trie))
            yield number


def least_computed(requests: Iterable[Asked]) -> int:
    """Tokens of all prompts that must be computed, in whatever order, with whatever memory.

    >>> least_computed([Asked([1, 2, 3], 2), Asked([1, 2, 4], 2)])  # 1, 2, 3 and 4
    4
    >>> least_computed([Asked([1, 2], 1, output=[3, 4]), Asked([1, 2, 3, 4], 3)])  # 1, 2 and 4
    3
    """
    trie: Trie = {}
    computed, wanted, known = 0, set[int](), set[int]()
    for asked in requests:
        prefixes, length = list(asked.prefixes(trie)), len(asked.prompt)
        computed += length - asked.logits_from
        wanted.update(prefixes[: asked.logits_from])
        known.update(prefixes[asked.logits_from : length])
        known.update(prefixes[length:-1])  # the last token's keys and values nobody computes
    return computed + len(wanted - known)


def part_of_tree(requests: Sequence[Asked], share: float) -> int:
    """Slots for a share of what all prompts and answers leave in a radix tree; enough for the
    longest of them alone, and for a quarter of it besides.

    >>> part_of_tree([Asked([1, 2, 3, 4], 3), Asked([1, 2, 5, 6], 3), Asked([7] * 6, 5)], 0.75)
    9
    """
    trie: Trie = {}
    longest = max(sum(1 for _ in asked.prefixes(trie)) for asked in requests)
    return max(round(share * len(trie)), longest + longest // 4)


def hit_rates(requests: Sequence[Asked]) -> tuple[float, float]:
    """(achieved, optimal): cached over all tokens of prompts."""
    total = sum(len(asked.prompt) for asked in requests)
    return sum(asked.cached for asked in requests) / total, 1 - least_computed(requests) / total


@contextmanager
def recorded(engine: Engine) -> Iterator[list[Asked]]:
    """What `engine` is asked in the block; read it after the block, when all has been answered."""
    submit, seen, requests = engine.loop.submit, list[tuple[Req, int]](), list[Asked]()

    def note(reqs: Sequence[Req]) -> None:
        seen.extend((req, req.logits_from) for req in reqs)
        submit(reqs)

    engine.loop.submit = note  # type: ignore[method-assign]
    try:
        yield requests
    finally:
        del engine.loop.submit
    requests += [
        Asked(req.prompt_ids, start, req.output_ids, req.cached_tokens, req.params.namespace)
        for req, start in seen
    ]
