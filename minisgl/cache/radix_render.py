"""The radix tree as text, a line for each node: what `RadixCache.render` calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minisgl.cache.tree_node import TreeNode

PREVIEW_TOKENS = 24  # only the first tokens of each node are decoded
PREVIEW_CHARS = 48


def render_tree(
    root: TreeNode,
    protected_size: int,
    evictable_size: int,
    decode: Callable[[Sequence[int]], str],
) -> str:
    """Draw the tree below `root`; `decode` turns tokens into text."""
    sizes = f"{protected_size} protected, {evictable_size} evictable"
    total = protected_size + evictable_size
    lines = [f"{total} tokens in {sum(1 for _ in root.below())} nodes ({sizes})"]
    # An explicit stack: a chat of a thousand turns is a thousand nodes deep.
    stack = [(root, "", "")]  # a node, what stands before it, what before its children
    while stack:
        node, before, indent = stack.pop()
        if node is not root:
            lines.append(before + _label(node, decode))
        for rank, child in enumerate(reversed(node.children.values())):
            branch, space = ("└─ ", "   ") if rank == 0 else ("├─ ", "│  ")
            stack.append((child, indent + branch, indent + space))
    return "\n".join(lines)


def _label(node: TreeNode, decode: Callable[[Sequence[int]], str]) -> str:
    """One node in one line; line breaks of its text are shown as \\n."""
    text = decode(node.key[:PREVIEW_TOKENS])
    more = "…" if len(node.key) > PREVIEW_TOKENS or len(text) > PREVIEW_CHARS else ""
    namespace = "" if node.namespace is None else f" [{node.namespace}]"
    size = f"{len(node.key)} tok · ref {node.ref_count}{namespace}"
    return f"{size} · {text[:PREVIEW_CHARS]!r}{more}"
