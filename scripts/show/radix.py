"""Draw a radix tree as SVG: the paper's figure 3, live, or the tree of any engine.

    python -m scripts.show.radix docs/pictures/radix.svg
    python -m scripts.show.radix tree.svg --model build/tiny-model "Once upon" "Once more"

Figure 3 of the paper (arXiv 2312.07104) follows one tree through nine moments: two chats, few-shot
questions, several samples of one answer, and a memory too small for all of it.  Here a real
`RadixCache` goes through them, in our own words, and is drawn after each.  A word is a token, and
capacity is counted in them.

Left out: an engine computes the last token of a prompt anew even where it is cached.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from minisgl import svg
from minisgl.cache.radix_cache import RadixCache, TreeNode

# What a node is -> (fill, stroke, in words)
KINDS = {
    "new": ("#c8f0cd", "#2da44e", "new"),
    "used": ("#cfe4ff", "#3a7bd5", "found in the cache"),
    "kept": ("#f6f8fa", "#8c959f", "not touched"),
    "evicted": ("#ffd6d3", "#cf222e", "evicted"),
    "locked": ("#cfe4ff", "#3a7bd5", "locked by a running request"),
    "free": ("#f6f8fa", "#8c959f", "could be evicted"),
}
ROW, INDENT, WIDTH, CAPTION = 22, 16, 350, 50
PREVIEW = 24  # tokens of a node whose text is shown


@dataclass(frozen=True)
class Row:
    """A node as it is drawn, one below the other; `depth` 1 hangs on the root."""

    text: str
    tokens: int
    kind: str
    depth: int


def draw(tree: RadixCache, decode: Callable[[Sequence[int]], str]) -> str:
    """A live tree as an SVG file: what is locked, and what could be evicted.

    Args:
        tree: it is only looked at.
        decode: the text of some token ids.
    """
    rows = list(_rows(tree, decode, lambda node: "locked" if node.ref_count else "free", {}))
    width = WIDTH + INDENT * max((row.depth for row in rows), default=0)
    sizes = f"{tree.protected_size} protected, {tree.evictable_size} evictable"
    title = f"{tree.total_size} tokens in {len(rows)} nodes ({sizes})"
    parts = [svg.text(12, 22, title, bold=True), *_legend(12, 44, ("locked", "free"))]
    parts += _tree(rows, 12, 56, width - 24)
    return svg.document(width, 56 + ROW * (len(rows) + 1) + 8, parts, title)


# ---------------------------------------------------------------------- what a step does to a tree


class Watch:
    """Made before a step, and asked after it: what became of the tree in between.

    It is the tree's only listener in that time.
    """

    def __init__(self, tree: RadixCache) -> None:
        self._tree = tree
        self._before = RadixCache()
        for node in tree.nodes():
            tokens = _tokens_to(node)
            self._before.insert(tokens, range(len(tokens)))
        self._last_used = max((node.last_used for node in tree.nodes()), default=0)
        self._gone: list[tuple[tuple[int, ...], int]] = []
        tree.on_evict = self._forget

    def _forget(self, _: str | None, tokens: tuple[int, ...], keep: int) -> None:
        self._gone.append((tokens, keep))

    def rows(self, decode: Callable[[Sequence[int]], str]) -> list[Row]:
        """The tree as it is now, and what was evicted, where it hung.  The watch ends."""
        self._tree.on_evict = None
        at = {_tokens_to(node): node for node in [self._tree.root, *self._tree.nodes()]}
        gone: dict[TreeNode, list[TreeNode]] = {}
        for tokens, keep in reversed(self._gone):  # parents before children
            ghost = TreeNode(tokens[keep:])
            at.setdefault(tokens, ghost)
            gone.setdefault(at[tokens[:keep]], []).insert(0, ghost)

        def kind(node: TreeNode) -> str:
            tokens = _tokens_to(node)
            if self._before.peek(tokens).num_tokens < len(tokens):
                return "new"
            return "used" if node.last_used > self._last_used else "kept"

        return list(_rows(self._tree, decode, kind, gone))


def _tokens_to(node: TreeNode) -> tuple[int, ...]:
    """All tokens from the root to the end of a node."""
    return tuple(chain.from_iterable(step.key for step in node.path()))


# ---------------------------------------------------------------------- a tree with a memory


@dataclass
class Memory:
    """A radix tree with room for `capacity` tokens; a word is a token."""

    capacity: int
    tree: RadixCache = field(default_factory=RadixCache)
    words: list[str] = field(default_factory=list)  # token id -> word
    slots: Iterator[int] = field(default_factory=count)  # none twice

    def encode(self, text: str) -> list[int]:
        """One id for each word."""
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """The words again."""
        return " ".join(self.words[i] for i in ids)

    def serve(self, requests: Sequence[tuple[str, str]]) -> list[Row]:
        """Run (prompt, answer) pairs as one batch, as the engine does: match, lock, make room,
        insert, unlock.  The tree, as it is then."""
        tree, watch, locks = self.tree, Watch(self.tree), []
        for prompt, answer in requests:
            tokens = self.encode(f"{prompt} {answer}")
            match = tree.match_prefix(self.encode(prompt))
            tree.lock(match.node)
            new = len(tokens) - len(match.slots)
            self._make_room(new)
            tree.insert(tokens, match.slots + [next(self.slots) for _ in range(new)])
            leaf = tree.match_prefix(tokens).node
            tree.lock(leaf)
            locks += [match.node, leaf]
        for node in locks:
            tree.unlock(node)
        tree.check()
        return watch.rows(self.decode)

    def _make_room(self, tokens: int) -> None:
        """Evict leaf after leaf."""
        while self.tree.total_size + tokens > self.capacity:
            if not self.tree.evict(1):
                raise ValueError(f"{tokens} tokens don't fit beside what is running")


# ---------------------------------------------------------------------- figure 3

CAPACITY = 46
SYSTEM = "You are a helpful assistant."
HELLO = "User: Hello! Assistant:", "Hi!"
TREE = "User: What is a radix tree? Assistant:", "A trie whose edges are runs; a fork cuts one."
WHY = "User: Why? Assistant:", "Speed."
JOKE = "User: Tell me a joke. Assistant:", "Two threads walk into a. bar"
ANOTHER = "User: Another one! Assistant:", "Knock. Race condition. Who is there?"
SHOTS = "Add step by step. 3+9? 3+7=10, 10+2=12."
FIRST, SECOND = ("8+5?", "8+2=10, 10+3=13."), ("7+6?", "7+3=10, 10+3=13.")
THIRD = ("17+5?", "17+3=20, 20+2=22.")
SAMPLES = ("15+5=20, 20+2=22.", "10+5=15, 15+7=22.", "7+5=12, 12+10=22.")


def chat(*turns: tuple[str, str]) -> tuple[str, str]:
    """What a chat sends: all that was said so far, and a question; and the answer to that."""
    history = [f"{question} {answer}" for question, answer in turns[:-1]]
    return " ".join([SYSTEM, *history, turns[-1][0]]), turns[-1][1]


def few_shot(question: str, answer: str) -> tuple[str, str]:
    """A question after worked examples."""
    return f"{SHOTS} {question}", answer


MOMENTS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("The tree is empty.", "", []),
    ("A chat begins: its prompt and the answer", "are one node.", [chat(HELLO)]),
    ("Its second turn finds the first,", "and adds what is new.", [chat(HELLO, TREE)]),
    ("A chat with the same system prompt:", "the node is cut where they part.", [chat(JOKE)]),
    ("It goes on. Memory is full, and the leaf", "used longest ago makes room.",
     [chat(JOKE, ANOTHER)]),
    ("A few-shot question shares nothing:", "one more child of the root.", [few_shot(*FIRST)]),
    ("Two more questions, in one batch, share", "the examples.",
     [few_shot(*SECOND), few_shot(*THIRD)]),
    ("The first chat is back. Its lost turn is", "computed again; the second chat goes.",
     [chat(HELLO, TREE, WHY)]),
    ("Three more samples of one answer share", "its prompt; older leaves make room.",
     [few_shot(THIRD[0], sample) for sample in SAMPLES]),
]  # fmt: skip


def figure_3() -> str:
    """The nine moments as an SVG file."""
    memory = Memory(CAPACITY)
    panels = []
    for first, second, requests in MOMENTS:
        rows = memory.serve(requests)
        panels.append(Panel((first, second), rows, memory.tree.total_size))
    return draw_moments(panels, f"Nine moments of a radix tree with room for {CAPACITY} tokens")


# ---------------------------------------------------------------------- drawing


@dataclass(frozen=True)
class Panel:
    """One moment: two lines of words, the tree, and how many tokens it holds."""

    caption: tuple[str, str]
    rows: list[Row]
    tokens: int


def draw_moments(panels: Sequence[Panel], title: str) -> str:
    """Moments of one tree as an SVG file, three panels in a row."""
    parts = [svg.text(12, 26, title, size=14, bold=True)]
    parts += _legend(12, 48, ("new", "used", "kept", "evicted"))
    top = 62
    for start in range(0, len(panels), 3):
        line = panels[start : start + 3]
        height = CAPTION + ROW * max(1, *(len(panel.rows) for panel in line)) + 14
        for column, panel in enumerate(line):
            x, size = 12 + column * (WIDTH + 12), f"{panel.tokens} tokens"
            parts_of_it = [
                svg.rect(x, top, WIDTH, height, svg.PAPER, stroke="#d0d7de", radius=6),
                svg.text(x + 10, top + 20, f"{start + column + 1}", size=14, bold=True),
                svg.text(x + 30, top + 20, panel.caption[0]),
                svg.text(x + 30, top + 35, panel.caption[1]),
                svg.text(x + WIDTH - 10, top + 20, size, fill=svg.FAINT, anchor="end"),
                *_tree(panel.rows, x + 10, top + CAPTION - 6, WIDTH - 20),
            ]
            parts.append(svg.group("panel", parts_of_it))
        top += height + 12
    return svg.document(12 + 3 * (WIDTH + 12), top, parts, title)


def _rows(
    tree: RadixCache,
    decode: Callable[[Sequence[int]], str],
    kind: Callable[[TreeNode], str],
    gone: dict[TreeNode, list[TreeNode]],
) -> Iterator[Row]:
    """Parents before children; what was evicted stands where it hung."""
    # An explicit stack: a chat of a thousand turns is a thousand nodes deep.
    stack = [(tree.root, 0)]
    while stack:
        node, depth = stack.pop()
        if node is not tree.root:
            evicted = node.parent is None
            text = decode(node.key[:PREVIEW]) + ("…" if len(node.key) > PREVIEW else "")
            yield Row(text, len(node.key), "evicted" if evicted else kind(node), depth)
        children = [*gone.get(node, ()), *node.children.values()]
        stack += [(child, depth + 1) for child in reversed(children)]


def _tree(rows: Sequence[Row], x: float, y: float, width: float) -> list[str]:
    """The rows one below the other, each tied to its parent; the root is a dot."""
    parts = [f'<circle cx="{x + 6:g}" cy="{y + 8:g}" r="4" fill="{svg.FAINT}"/>']
    middles = {0: y + 8.0}  # depth -> where the node of that depth that was drawn last is tied to
    for n, row in enumerate(rows, start=1):
        top = y + n * ROW - 3
        left = x + row.depth * INDENT
        fill, stroke, _ = KINDS[row.kind]
        most = int((width - row.depth * INDENT - 40) / 6)  # characters of about 6 pixels
        tie = f"M {left - 10:g} {middles[row.depth - 1]:g} V {top + 9:g} H {left:g}"
        box = svg.rect(
            left, top, width - row.depth * INDENT, ROW - 4, fill,
            stroke=stroke, radius=4, dashed=row.kind == "evicted",
        )  # fmt: skip
        words = svg.text(left + 6, top + 13, svg.printable(row.text, most))
        tokens = svg.text(x + width - 6, top + 13, f"{row.tokens}", fill=svg.FAINT, anchor="end")
        tip = f"{row.tokens} tokens, {KINDS[row.kind][2]}: {svg.printable(row.text, 400)}"
        parts += [svg.path(tie), svg.group(f"node {row.kind}", [box, words, tokens], tip)]
        middles[row.depth] = top + ROW - 4
    return parts


def _legend(x: float, y: float, kinds: Sequence[str]) -> list[str]:
    parts = []
    for kind in kinds:
        fill, stroke, words = KINDS[kind]
        dashed = kind == "evicted"
        parts.append(svg.rect(x, y - 10, 14, 12, fill, stroke=stroke, radius=3, dashed=dashed))
        parts.append(svg.text(x + 20, y, words))
        x += 40 + 6 * len(words)
    return parts


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, help="the SVG file to write")
    parser.add_argument("--model", help="draw this model's tree after it completed the prompts")
    parser.add_argument("prompts", nargs="*", help="for --model")
    args = parser.parse_intermixed_args(argv)
    if args.prompts and not args.model:
        parser.error("prompts need --model, whose tree is drawn")
    args.file.write_text(of_engine(args.model, args.prompts) if args.model else figure_3(), "utf-8")
    print(f"written: {args.file}")


def of_engine(model: str, prompts: Sequence[str]) -> str:
    """The tree of an engine that completed each of `prompts`, one after the other."""
    from minisgl import Engine, SamplingParams

    with Engine(model) as engine:
        for prompt in prompts:
            engine.generate(prompt, SamplingParams(temperature=0, max_tokens=16))

        def decode(ids: Sequence[int]) -> str:
            return engine.tokenizer.decode(ids, skip_special_tokens=False)

        return engine.call(lambda: draw(engine.loop.scheduler.tree, decode))


if __name__ == "__main__":
    main()
