"""Which prefixes running requests share, and are worth reading once for all of them.

Every running request stands on a node of the radix tree: the path from the root to it spells the
tokens that the request shares with whoever else stands on that path.  Where enough of them do,
attention over those keys is computed once for all (`Segment`), and each request computes the rest,
its *tail*, alone; partial results merge exactly by their log-sum-exp (paper section 3; Hydragen,
arXiv 2402.05099; cascade inference of FlashInfer).

    root ── 1,000 tokens ──┬── 300 tokens ──┬── a      segments   [0, 1000)     of a, b, c
                           │                └── b                 [1000, 1300)  of a, b
                           └── c                       tails      a and b from 1300, c from 1000

The answer depends on who runs and where they stand only.  The tree may split a node while they run,
but that moves no token: it needs to be asked again only when a request joins or leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Generic, TypeVar

import torch

from minisgl.cache.tree_node import TreeNode
from minisgl.engine.transfer import send
from minisgl.kernels.cascade_attention import Segments

Owner = TypeVar("Owner", bound=Hashable)

# Bytes of one layer's K and V that a segment has to save per step: what computing and merging one
# more part costs, twice.  On a GPU, a step with segments also has to do without its CUDA graph.
WORTH_ON_CPU = 4 * 2**20
WORTH_ON_GPU = 256 * 2**20


@dataclass(frozen=True)
class Segment(Generic[Owner]):
    """Positions [start, stop), the same tokens in the same slots for each of `members`."""

    node: TreeNode  # ends at `stop`; splitting it keeps this object the lower half
    start: int
    stop: int
    members: tuple[Owner, ...]
    depth: int  # 0: outermost; a request has one segment of each depth down to its tail

    @property
    def key(self) -> tuple[int, TreeNode]:
        """The same for two segments of the same tokens, whoever their members are."""
        return self.start, self.node

    def __len__(self) -> int:
        return self.stop - self.start


def tokens_worth_sharing(layer: torch.Tensor) -> int:
    """`min_saved` of `find_segments`, for a layer's pool [S, 2, KV, D]."""
    worth = WORTH_ON_GPU if layer.is_cuda else WORTH_ON_CPU
    return max(1, worth // layer[0].nbytes)


def find_segments(
    prefixes: Mapping[Owner, TreeNode], min_saved: int, present: Collection[TreeNode] = ()
) -> list[Segment[Owner]]:
    """The segments of requests whose cached prefixes end at these nodes, which they keep locked.

    Outermost first.  A segment is kept where it saves the reading of at least `min_saved` (>= 1)
    tokens a step: its length times its readers but one.  Its readers are the segments and tails
    that go on from it; the tokens of a run that is not worth a segment are read by each of them.  A
    segment that ends at a node of `present` (it is there now, so nothing has to be copied) stays
    while it saves half as much: the grouping does not flip each time that somebody comes or goes.

    O(requests + nodes on their paths).
    """
    ends: dict[TreeNode, list[Owner]] = {}  # where others may be beside each request
    for owner, node in prefixes.items():
        while node.ref_count == 1 and node.parent:  # nobody else stands on it
            node = node.parent
        ends.setdefault(node, []).append(owner)
    order, below = _tree_above(ends)

    stop: dict[TreeNode, int] = {}  # where the node ends
    begin: dict[TreeNode, int] = {}  # where the last candidate above it ends
    for node in order:
        parent = node.parent
        stop[node] = len(node.key) + (stop[parent] if parent else 0)
        if parent is None:
            begin[node] = 0
        else:
            is_candidate = _branches(parent, ends, below) or parent in present
            begin[node] = stop[parent] if is_candidate else begin[parent]

    kept: set[TreeNode] = set()
    readers: dict[TreeNode, int] = {}
    members: dict[TreeNode, list[Owner]] = {}
    for node in reversed(order):
        members[node] = [*ends.get(node, ()), *(m for c in below[node] for m in members[c])]
        readers[node] = len(ends.get(node, ())) + sum(readers[child] for child in below[node])
        needed = max(1, min_saved // 2) if node in present else min_saved
        saved = (readers[node] - 1) * (stop[node] - begin[node])
        if saved >= needed and (_branches(node, ends, below) or node in present):
            kept.add(node)
            readers[node] = 1

    segments: list[Segment[Owner]] = []
    start: dict[TreeNode, int] = {}  # where the next segment below the node begins
    depth: dict[TreeNode, int] = {}
    for node in order:
        parent = node.parent
        start[node], depth[node] = (start[parent], depth[parent]) if parent else (0, 0)
        if node in kept:
            among = tuple(members[node])
            segments.append(Segment(node, start[node], stop[node], among, depth[node]))
            start[node], depth[node] = stop[node], depth[node] + 1
    return segments


def _tree_above(
    ends: Collection[TreeNode],
) -> tuple[list[TreeNode], dict[TreeNode, list[TreeNode]]]:
    """The part of the tree above `ends`: its nodes, parents first, and the children in it."""
    below: dict[TreeNode, list[TreeNode]] = {}
    order: list[TreeNode] = []
    for end in ends:
        node = end
        if node in below:
            continue
        below[node] = []
        while node.parent is not None:
            is_known = node.parent in below
            below.setdefault(node.parent, []).append(node)
            if is_known:
                break
            node = node.parent
        else:
            order = [node]  # the root, reached once
    for node in order:  # grows while it is read
        order += below[node]
    return order, below


def _branches(
    node: TreeNode, ends: Mapping[TreeNode, list[Owner]], below: Mapping[TreeNode, list[TreeNode]]
) -> bool:
    """Whether the requests that came this way part here."""
    return len(ends.get(node, ())) + len(below[node]) > 1


def pack(
    segments: Sequence[Segment[Owner]],
    order: Sequence[Owner],
    rows: Sequence[int],
    device: torch.device,
) -> Segments:
    """The segments as cascade_attention takes them; `order` and `rows`: the decode batch's requests
    and their rows of the slot table.  There is at least one segment."""
    at = {owner: i for i, owner in enumerate(order)}
    tails = [0] * len(order)
    for segment in segments:
        for member in segment.members:
            tails[at[member]] = segment.stop
    members = [[at[m] for m in s.members] for s in segments]
    holders, starts, stops, places, cu_members, depths, first_own = send(
        device,
        torch.int32,
        [rows[its[0]] for its in members],
        [s.start for s in segments],
        [s.stop for s in segments],
        list(chain.from_iterable(members)),
        list(accumulate(map(len, members), initial=0)),
        [s.depth for s in segments],
        tails,
    )
    return Segments(
        rows=holders,
        starts=starts,
        stops=stops,
        members=places,
        cu_members=cu_members,
        depths=depths,
        tails=first_own,
        num_depths=1 + max(s.depth for s in segments),
        max_members=max(map(len, members)),
    )
