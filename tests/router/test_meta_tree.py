"""The meta tree beside a plain set of prefixes for each worker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minisgl.router.meta_tree import MetaTree

WORKERS = 3
tokens = st.lists(st.integers(0, 2), max_size=8)
worker = st.integers(0, WORKERS - 1)


class MetaTreeMachine(RuleBasedStateMachine):
    """Everything that a worker has, as the set of its prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = MetaTree()
        self.prefixes: list[set[tuple[int, ...]]] = [set() for _ in range(WORKERS)]

    @rule(tokens=tokens, worker=worker)
    def add(self, tokens: list[int], worker: int) -> None:
        self.tree.add(tokens, worker)
        self.prefixes[worker] |= {tuple(tokens[:i]) for i in range(1, len(tokens) + 1)}

    @rule(tokens=tokens, worker=worker, keep=st.integers(0, 8))
    def evicted(self, tokens: list[int], worker: int, keep: int) -> None:
        self.tree.evicted(tokens, worker, keep)
        # The first prefix past `keep` that it had is gone, with all that goes on from it.
        gone = tuple(tokens[: keep + 1])
        if len(gone) > keep:
            n = len(gone)
            self.prefixes[worker] = {p for p in self.prefixes[worker] if p[:n] != gone}

    @rule(worker=worker)
    def drop(self, worker: int) -> None:
        self.tree.drop(worker)
        self.prefixes[worker] = set()

    @rule(worker=worker, capacity=st.integers(0, 20))
    def trim(self, worker: int, capacity: int) -> None:
        before = self.prefixes[worker]
        self.tree.trim(worker, capacity)
        assert self.tree.sizes.get(worker, 0) <= capacity
        left = {p for p in before if self.tree.match(p).get(worker, 0) == len(p)}
        assert left == before or len(before) > capacity  # nothing is forgotten without need
        self.prefixes[worker] = left

    @rule(tokens=tokens)
    def match(self, tokens: list[int]) -> None:
        want = {
            w: max(n for n in range(1, len(tokens) + 1) if tuple(tokens[:n]) in has)
            for w, has in enumerate(self.prefixes)
            if tuple(tokens[:1]) in has
        }
        assert self.tree.match(tokens) == (want if tokens else {})

    @invariant()
    def holds_together(self) -> None:
        self.tree.check()
        for w, has in enumerate(self.prefixes):
            assert self.tree.sizes.get(w, 0) == len(has)


TestMetaTree = MetaTreeMachine.TestCase
TestMetaTree.settings = settings(stateful_step_count=30)


@given(st.lists(tokens.filter(bool), min_size=2, max_size=8, unique_by=tuple))
def test_trim_forgets_what_was_longest_not_sent(prompts: list[list[int]]) -> None:
    tree = MetaTree()
    for prompt in prompts:
        tree.add(prompt, 0)
    tree.trim(0, len(prompts[-1]))
    assert tree.match(prompts[-1]) == {0: len(prompts[-1])}  # the last one is what stays
    assert tree.sizes[0] == len(prompts[-1])
