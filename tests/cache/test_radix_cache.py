"""The radix tree, example by example; in test_radix_model.py Hypothesis finds the examples."""

from __future__ import annotations

import random
import sys

import pytest

from minisgl.cache.kv_pool import KVPool, PoolFull
from minisgl.cache.radix_cache import RadixCache, TreeNode
from minisgl.cache.tree_node import common_prefix_len


def keys(cache: RadixCache) -> set[tuple[int, ...]]:
    return {node.key for node in cache.nodes()}


def test_an_empty_tree_matches_nothing() -> None:
    cache = RadixCache()
    match = cache.match_prefix([1, 2, 3])
    assert match.slots == [] and match.node is cache.root
    assert cache.match_prefix([]).slots == []
    assert cache.evict(5) == []
    cache.check()


def test_insert_says_how_much_was_there_and_keeps_its_own_slots() -> None:
    cache = RadixCache()
    assert cache.insert([1, 2, 3], [10, 11, 12]) == 0
    assert cache.insert([1, 2, 3, 4], [20, 21, 22, 23]) == 3  # the caller frees 20, 21, 22
    assert cache.match_prefix([1, 2, 3, 4]).slots == [10, 11, 12, 23]
    assert cache.insert([1, 2, 3, 4], [30, 31, 32, 33]) == 4
    assert cache.insert([], []) == 0
    assert cache.total_size == 4
    cache.check()


def test_insert_in_the_middle_of_a_run_splits_it() -> None:
    cache = RadixCache()
    cache.insert([1, 2, 3, 4], [10, 11, 12, 13])
    assert cache.insert([1, 2, 7], [20, 21, 22]) == 2
    assert keys(cache) == {(1, 2), (3, 4), (7,)}
    assert cache.match_prefix([1, 2, 3, 4]).slots == [10, 11, 12, 13]
    assert cache.match_prefix([1, 2, 7]).slots == [10, 11, 22]
    cache.check()


def test_a_full_prompt_hit_matches_all_but_the_token_the_engine_recomputes() -> None:
    cache = RadixCache()
    prompt = list(range(8))
    cache.insert(prompt, list(range(8)))
    assert len(cache.match_prefix(prompt).slots) == 8
    match = cache.match_prefix(prompt[:-1])
    assert len(match.slots) == 7
    # The recomputed token has a second slot; the insert at the end says that it is not needed.
    cache.lock(match.node)
    assert cache.insert(prompt, [*match.slots, 99]) == 8
    cache.unlock(match.node)
    assert cache.match_prefix(prompt).slots == list(range(8))
    cache.check()


def test_eviction_takes_the_least_recently_used_leaf() -> None:
    cache = RadixCache()
    for name in (1, 2, 3):
        cache.insert([name, name], [10 * name, 10 * name + 1])
    cache.match_prefix([1, 1])  # 1 is now the youngest
    assert cache.evict(1) == [20, 21]
    assert cache.evict(1) == [30, 31]
    assert cache.evict(1) == [10, 11]
    assert cache.total_size == 0
    cache.check()


def test_eviction_takes_children_before_parents_and_no_more_than_it_must() -> None:
    cache = RadixCache()
    cache.insert([1, 2], [10, 11])
    cache.insert([1, 2, 3], [10, 11, 12])
    cache.insert([1, 2, 4], [10, 11, 13])
    assert cache.evict(2) == [12, 13]
    assert cache.match_prefix([1, 2, 3]).slots == [10, 11]
    assert cache.evict(10) == [10, 11]
    cache.check()


def test_evict_nothing() -> None:
    cache = RadixCache()
    cache.insert([1], [0])
    assert cache.evict(0) == [] and cache.evict(-3) == []
    assert cache.total_size == 1


def test_a_look_does_not_count_as_a_use() -> None:
    cache = RadixCache()
    cache.insert([1, 1, 1], [0, 1, 2])
    cache.insert([2, 2], [3, 4])
    num_tokens, node, is_whole = cache.peek([1, 1, 5])
    assert (num_tokens, node.key, is_whole) == (2, (1, 1, 1), False)
    assert keys(cache) == {(1, 1, 1), (2, 2)}  # nothing was split
    assert cache.evict(1) == [0, 1, 2]  # and the first is still the oldest


def test_locked_paths_stay() -> None:
    cache = RadixCache()
    cache.insert([1, 2, 3], [0, 1, 2])
    cache.insert([1, 2, 4], [0, 1, 3])
    node = cache.match_prefix([1, 2, 3]).node
    cache.lock(node)
    assert (cache.protected_size, cache.evictable_size) == (3, 1)
    assert cache.evict(100) == [3]
    assert cache.match_prefix([1, 2, 3]).slots == [0, 1, 2]
    cache.unlock(node)
    assert (cache.protected_size, cache.evictable_size) == (0, 3)
    assert sorted(cache.evict(100)) == [0, 1, 2]
    cache.check()


def test_locks_nest() -> None:
    cache = RadixCache()
    cache.insert([1], [0])
    node = cache.match_prefix([1]).node
    cache.lock(node)
    cache.lock(node)
    cache.unlock(node)
    assert cache.evict(1) == []
    cache.unlock(node)
    assert cache.evict(1) == [0]


def test_a_lock_survives_a_split_of_its_node() -> None:
    cache = RadixCache()
    cache.insert([1, 2, 3, 4], [0, 1, 2, 3])
    node = cache.match_prefix([1, 2, 3, 4]).node
    cache.lock(node)
    assert cache.match_prefix([1, 2, 9]).slots == [0, 1]
    cache.check()
    assert cache.protected_size == 4 and cache.evict(4) == []
    cache.unlock(node)
    cache.check()
    assert cache.evictable_size == 4


def test_the_root_may_be_locked_and_counts_nothing() -> None:
    cache = RadixCache()
    node = cache.match_prefix([5]).node
    cache.lock(node)
    cache.insert([5], [0])
    assert cache.protected_size == 0
    cache.check()
    cache.unlock(node)
    assert cache.evict(1) == [0]


def test_locking_what_was_evicted_is_an_error() -> None:
    cache = RadixCache()
    cache.insert([1, 2], [0, 1])
    node = cache.match_prefix([1, 2]).node
    cache.evict(2)
    with pytest.raises(ValueError, match="evicted"):
        cache.lock(node)
    with pytest.raises(ValueError, match="evicted"):
        cache.unlock(node)


def test_unlocking_twice_is_an_error() -> None:
    cache = RadixCache()
    cache.insert([1, 2], [0, 1])
    node = cache.match_prefix([1, 2]).node
    cache.lock(node)
    cache.unlock(node)
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(node)
    cache.check()


def test_each_token_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="3 tokens and 2 slots: one slot each"):
        RadixCache().insert([1, 2, 3], [0, 1])


def test_namespaces_share_nothing() -> None:
    cache = RadixCache()
    cache.insert([1, 2, 3], [0, 1, 2])
    assert cache.match_prefix([1, 2, 3], namespace="adapter").slots == []
    assert cache.insert([1, 2, 9], [10, 11, 12], namespace="adapter") == 0
    assert cache.match_prefix([1, 2, 3]).slots == [0, 1, 2]
    assert cache.match_prefix([1, 2, 3], namespace="adapter").slots == [10, 11]
    assert cache.peek([1, 2, 9], namespace="salt") == (0, cache.root, True)
    assert "[adapter]" in str(cache)
    cache.check()
    assert sorted(cache.evict(100)) == [0, 1, 2, 10, 11, 12]


def test_a_token_may_be_a_wide_hash() -> None:
    cat, dog = (1 << 127) + 5, (1 << 126) + 5  # equal in their low 64 bits
    cache = RadixCache()
    cache.insert([7, cat, cat, 8], [0, 1, 2, 3])
    assert cache.match_prefix([7, dog, dog, 8]).slots == [0]
    assert cache.match_prefix([7, cat, cat, 8]).slots == [0, 1, 2, 3]


def test_reset_returns_every_slot_and_refuses_while_locked() -> None:
    cache = RadixCache()
    cache.insert([1, 2, 3], [0, 1, 2])
    cache.insert([1, 5], [0, 3])
    node = cache.match_prefix([1, 5]).node
    cache.lock(node)
    with pytest.raises(ValueError, match="2 tokens are locked"):
        cache.reset()
    cache.unlock(node)
    assert sorted(cache.reset()) == [0, 1, 2, 3]
    assert cache.total_size == 0 and not cache.root.children
    cache.check()


def test_the_eviction_queue_never_outgrows_the_tree() -> None:
    """A lazy heap leaks if each use pushes an entry; here a node has one, however often used."""
    cache = RadixCache()
    for name in range(50):
        cache.insert([name, 0], [2 * name, 2 * name + 1])
    for _ in range(20):
        for name in range(50):
            node = cache.match_prefix([name, 0]).node
            cache.lock(node)
            cache.evict(0)
            cache.unlock(node)
    cache.check()
    assert len(cache._queue) == 50


def test_a_chat_of_many_turns_is_deeper_than_the_recursion_limit() -> None:
    cache = RadixCache()
    turns = sys.getrecursionlimit() + 200
    cache.insert(range(turns), range(turns))
    for turn in reversed(range(1, turns)):
        cache.match_prefix(range(turn))  # splits the last token off the first node
    assert len(list(cache.nodes())) == turns
    cache.check()
    assert len(str(cache).splitlines()) == turns + 1
    assert cache.match_prefix(range(turns)).slots == list(range(turns))
    assert cache.evict(turns) == list(reversed(range(turns)))


@pytest.mark.parametrize("seed", range(20))
def test_common_prefix_len_is_what_a_loop_would_count(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        key = tuple(rng.randrange(3) for _ in range(rng.randrange(200)))
        same = rng.randrange(len(key) + 1)
        start = rng.randrange(4)
        tokens = (
            (9,) * start + key[:same] + tuple(rng.randrange(3) for _ in range(rng.randrange(9)))
        )
        slow = 0
        while slow < min(len(key), len(tokens) - start) and key[slow] == tokens[start + slow]:
            slow += 1
        assert common_prefix_len(key, tokens, start) == slow


def test_the_picture() -> None:
    cache = RadixCache()
    cache.insert([ord(c) for c in "system. hello"], range(13))
    cache.insert([ord(c) for c in "system. bye\n"], [*range(8), 20, 21, 22, 23])
    cache.insert([ord("x")], [30])
    cache.lock(cache.match_prefix([ord(c) for c in "system. bye\n"]).node)
    picture = cache.render(lambda tokens: "".join(map(chr, tokens)))
    assert picture == (
        "18 tokens in 4 nodes (12 protected, 6 evictable)\n"
        "├─ 8 tok · ref 1 · 'system. '\n"
        "│  ├─ 5 tok · ref 0 · 'hello'\n"
        "│  └─ 4 tok · ref 1 · 'bye\\n'\n"
        "└─ 1 tok · ref 0 · 'x'"
    )


def test_the_picture_of_a_long_run_decodes_its_beginning_only() -> None:
    cache = RadixCache()
    cache.insert(range(1000), range(1000))
    longest = 0

    def decode(tokens: object) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))  # type: ignore[arg-type]
        return "word " * 24

    assert cache.render(decode).endswith("…") and longest == 24


# -- check() finds what it says it finds -------------------------------------------------------


def two_branches() -> tuple[RadixCache, TreeNode, TreeNode]:
    cache = RadixCache()
    cache.insert([1, 2, 3], [0, 1, 2])
    cache.insert([1, 2, 4], [0, 1, 3])
    cache.check()
    leaf = cache.match_prefix([1, 2, 3]).node
    assert leaf.parent is not None
    return cache, leaf.parent, leaf


def break_size(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache.evictable_size += 1


def break_protected(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache.protected_size -= 1


def break_slots(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.slots = [*parent.slots[:1]]


def break_slot_count(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.slots = []


def break_parent(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.parent = cache.root


def break_edge(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.key = (9,)


def break_empty(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.key, leaf.slots = (), []


def break_namespace(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    del parent.children[leaf.edge]
    leaf.namespace = "other"
    parent.children[leaf.edge] = leaf


def break_ref_count(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.ref_count = 1


def break_negative(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.ref_count = -1


def break_time(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    leaf.last_used = parent.last_used + 1


def break_future(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    parent.last_used += 100


def break_queue(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache._queue.clear()


def break_queued(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache._queue.clear()
    for node in cache.nodes():
        node.queued = False


def break_queue_twice(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache._queue.append(cache._queue[0])


def break_queue_time(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache._queue = [(at + 100, serial, node) for at, serial, node in cache._queue]


def break_queue_ghost(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache._queue.append((0, -1, TreeNode((5,), [9])))


def break_root_lock(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache.root.ref_count = 1


def break_root(cache: RadixCache, parent: TreeNode, leaf: TreeNode) -> None:
    cache.root.key, cache.root.slots = (5,), [9]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_size, "evictable_size 5, protected_size 0: counted 4 and 0"),
        (break_protected, "evictable_size 4, protected_size -1: counted 4 and 0"),
        (break_slots, "belongs to one token only"),
        (break_slot_count, "one slot for each token"),
        (break_parent, "point at each other"),
        (break_edge, "point at each other"),
        (break_empty, "at least one token"),
        (break_namespace, "within one namespace"),
        (break_ref_count, "also a lock on its parent"),
        (break_negative, "never negative"),
        (break_time, "also a use of its parent"),
        (break_future, "used in the future"),
        (break_queue, "`queued` tells what is in the queue"),
        (break_queued, "every evictable leaf waits"),
        (break_queue_twice, "at most once"),
        (break_queue_time, "never younger than its node"),
        (break_queue_ghost, "nodes of the tree only"),
        (break_root_lock, "the root is never counted"),
        (break_root, "the root carries no tokens"),
    ],
)
def test_check_names_the_broken_invariant(damage, words) -> None:  # type: ignore[no-untyped-def]
    cache, parent, leaf = two_branches()
    damage(cache, parent, leaf)
    with pytest.raises(AssertionError, match=words):
        cache.check()


# -- figure 3 of the paper ---------------------------------------------------------------------


class Words:
    """A toy server over a tree and a pool of slots: its tokens are words."""

    def __init__(self, num_slots: int) -> None:
        import torch

        self.cache = RadixCache()
        self.pool = KVPool(num_slots, 1, 1, 1, torch.float32, "cpu")
        self.vocab: dict[str, int] = {}
        self.words: list[str] = []

    def encode(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self.vocab:
                self.vocab[word] = len(self.words)
                self.words.append(word)
        return [self.vocab[word] for word in text.split()]

    def serve(self, text: str) -> int:
        """Run one request whose prompt and reply together are `text`; return the cached tokens."""
        tokens = self.encode(text)
        match = self.cache.match_prefix(tokens)
        self.cache.lock(match.node)
        needed = len(tokens) - len(match.slots)
        self.pool.free(self.cache.evict(needed - self.pool.available_size))
        slots = match.slots + self.pool.alloc(needed)
        assert self.cache.insert(tokens, slots) == len(match.slots)
        self.cache.unlock(match.node)
        self.cache.check()
        self.pool.check()
        assert self.pool.available_size + self.cache.total_size == self.pool.num_slots
        return len(match.slots)

    def tree(self) -> dict[str, object]:
        def below(node: TreeNode) -> dict[str, object]:
            return {
                " ".join(self.words[t] for t in child.key): below(child)
                for child in node.children.values()
            }

        return below(self.cache.root)


def test_figure_3_of_the_paper() -> None:
    """Nine moments of a radix tree: two chats, few-shot questions, self-consistency samples."""
    server = Words(num_slots=32)
    system = "You are a helpful assistant."
    hello = "Hello! Hi!"
    solve = "Can you solve this problem for me? Sure, what is it about?"
    poem = "What can you do? I can write poems, for instance."
    write = "Write one about trees. Leaves..."
    examples = "1+1=2 2+2=4 3+3=6"

    # (1) The tree is empty.
    assert server.tree() == {}

    # (2) The first chat's prompt and reply become one node.
    assert server.serve(f"{system} {hello}") == 0
    assert server.tree() == {f"{system} {hello}": {}}

    # (3) Its next turn finds all of that, and hangs below it.
    assert server.serve(f"{system} {hello} {solve}") == 7
    assert server.tree() == {f"{system} {hello}": {solve: {}}}

    # (4) A second chat has the same system prompt: the node is split, so that both can share it.
    assert server.serve(f"{system} {poem}") == 5
    assert server.tree() == {system: {hello: {solve: {}}, poem: {}}}

    # (5) The second chat goes on. Memory is short: the first chat's last turn has to go.
    assert server.serve(f"{system} {poem} {write}") == 15
    assert server.tree() == {system: {hello: {}, poem: {write: {}}}}

    # (6) A few-shot question begins like nothing before it: a second branch at the root.
    assert server.serve(f"{examples} 4+4= 8") == 0
    assert server.tree() == {
        system: {hello: {}, poem: {write: {}}},
        f"{examples} 4+4= 8": {},
    }

    # (7) More questions after the same examples: the examples become a node of their own.
    assert [server.serve(f"{examples} 5+5= 10"), server.serve(f"{examples} 6+6= 12")] == [3, 3]
    few_shot = {"4+4= 8": {}, "5+5= 10": {}, "6+6= 12": {}}
    assert server.tree() == {system: {hello: {}, poem: {write: {}}}, examples: few_shot}

    # (8) The first chat is back. All of the second chat makes room, its last turn first.
    assert server.serve(f"{system} {hello} {solve} Love.") == 7
    assert server.tree() == {system: {hello: {f"{solve} Love.": {}}}, examples: few_shot}

    # (9) More samples for the last question. The other questions and the chat make room.
    for sample in ("is twelve, since six and six are twelve", "because twice six makes a dozen"):
        assert server.serve(f"{examples} 6+6= 12 {sample}") == 5
    assert server.tree() == {
        system: {hello: {}},
        examples: {
            "6+6= 12": {
                "is twelve, since six and six are twelve": {},
                "because twice six makes a dozen": {},
            }
        },
    }


def test_what_does_not_fit_beside_locked_paths_is_refused() -> None:
    server = Words(num_slots=4)
    server.serve("a b c")
    server.cache.lock(server.cache.match_prefix(server.encode("a b c")).node)
    with pytest.raises(PoolFull, match="2 K/V slots needed, but only 1 of 4 are free"):
        server.serve("x y")
