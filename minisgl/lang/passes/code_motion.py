"""Code motion for prefix sharing: what is constant in a prompt moves to its front.

    Here is a question: {question}              Act as a careful teacher, and answer it.
    Act as a careful teacher, and answer it.    Here is a question: {question}

Two runs of the first share five words, two runs of the second share its first line.  This changes
what a program says, so it is off unless it is asked for.  A model proposes an order of the prompt's
pieces (the paper's appendix D), or rules do, without one; `check` accepts an order or says what is
wrong with it, and then the program stays as it is.

A piece is a line, or a sentence of constant text.  Only what is said before the first answer moves,
within one role.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypeAlias

from minisgl.lang import ir
from minisgl.lang.backends.base import Backend
from minisgl.lang.background import background
from minisgl.lang.context import Context
from minisgl.lang.graph import Graph, Node, Say
from minisgl.lang.values import shown
from minisgl.sampling import SamplingParams

# A sentence ends at a full stop before a blank; a line, at its end.
_BORDER = re.compile(r"(?<=\n)|(?<=[.!?] )(?=[A-Z])")
_BACKWARD = re.compile(
    r"\b(above|previous|preceding|earlier|aforementioned|so far|these|this|those|it|its|they|them"
    r"|their|he|she|his|her|the former|the latter)\b"
    r"|\bthat(?=[.,;:!?])"  # "do that.", and not "a line that ends"
    r"|^(then|therefore|next|now|also|instead)\b",
    re.IGNORECASE,
)
_FORWARD = re.compile(r"\b(below|following|here (is|are)|as follows)\b|:\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Piece:
    """What moves as a whole.

    nodes: texts and what is said of arguments.
    """

    nodes: tuple[Node, ...]

    @property
    def is_constant(self) -> bool:
        """Whether every run says the same here."""
        return all(isinstance(node.op, ir.Text) for node in self.nodes)

    @property
    def text(self) -> str:
        """Arguments in braces."""
        return "".join(
            node.op.text if isinstance(node.op, ir.Text) else "{" + shown(node.op.value) + "}"
            for node in self.nodes
            if isinstance(node.op, ir.Text | Say)
        )


def move_code(graph: Graph, how: Literal["rules"] | Backend) -> Graph:
    """`graph` with what is constant first, as far as that is sure to say the same."""
    start, pieces = prompt(graph)
    if len(pieces) < 2:
        return graph
    order = by_rules(pieces) if how == "rules" else by_model(pieces, how)
    if check(pieces, order) is not None:
        return graph
    return reordered(graph, start, pieces, order)


def prompt(graph: Graph) -> tuple[int, list[Piece]]:
    """Where the movable nodes begin in the graph's, and what they are: the first run of texts and
    arguments that has an argument in it."""
    nodes = graph.body.nodes
    start = 0
    for movable, group in groupby(
        nodes, lambda n: n.stream == 0 and isinstance(n.op, ir.Text | Say)
    ):
        found = list(group)
        if movable and any(isinstance(node.op, Say) for node in found):
            return start, split(found)
        if any(node.waits for node in found):
            break
        start += len(found)
    return 0, []


def _is_movable(node: Node) -> bool:
    return node.stream == 0 and isinstance(node.op, ir.Text | Say)


def split(nodes: Sequence[Node]) -> list[Piece]:
    """The pieces of a prompt: its lines, and those of constant text by sentences."""
    pieces: list[list[Node]] = [[]]
    for node in nodes:
        if not isinstance(node.op, ir.Text):
            pieces[-1].append(node)
            continue
        for i, text in enumerate(_BORDER.split(node.op.text)):
            if i > 0 and pieces[-1]:
                pieces.append([])
            if text:
                pieces[-1].append(replace(node, op=ir.Text(text)))
    return [Piece(tuple(nodes)) for nodes in pieces if nodes]


def by_rules(pieces: Sequence[Piece]) -> list[int]:
    """Each constant piece behind the constant ones at the front, if `check` lets it."""
    order = list(range(len(pieces)))
    front = 0
    for i, piece in enumerate(pieces):
        if not piece.is_constant:
            continue
        moved = [j for j in order if j != i]
        moved.insert(front, i)
        if check(pieces, moved) is None:
            order, front = moved, front + 1
    return order


Example: TypeAlias = tuple[Sequence[str], Sequence[int]]  # pieces, and their right order

EXAMPLES: Sequence[Example] = (
    (["Question: {question}", "Answer in one word.", "Answer:"], [1, 0, 2]),
    (["Text: {text}", "Summarise the text above.", "Summary:"], [0, 1, 2]),
)


def by_model(
    pieces: Sequence[Piece], backend: Backend, examples: Sequence[Example] = EXAMPLES
) -> list[int]:
    """The order that a model proposes: the numbers in its answer."""
    asked, context = question(pieces, examples), Context()
    if backend.needs_roles:
        context = context.begin_role("user", backend.chat).say(asked).end_role(backend.chat)
        context = context.begin_role("assistant", backend.chat)
    else:
        context = context.say(asked)
    params = SamplingParams(max_tokens=4 * len(pieces) + 8, temperature=0.0, stop=("\n",))
    answers = background.run(backend.generate(context, params))
    return order_in(answers[0].text)


def question(pieces: Sequence[Piece], examples: Sequence[Example] = EXAMPLES) -> str:
    """What a model is asked."""
    task = (
        "The pieces of a prompt are numbered. Those with {braces} differ from run to run. Order "
        "them so that those without braces come first as far as the meaning allows: what refers to "
        "something above stays after it, and the last piece, which the answer follows, stays last. "
        "Answer with the numbers, separated by commas."
    )
    shown = [f"{_listed(texts)} {', '.join(map(str, order))}" for texts, order in examples]
    return "\n\n".join([task, *shown, _listed([piece.text for piece in pieces])])


def _listed(texts: Sequence[str]) -> str:
    return "\n".join([*(f"{i}: {text.strip()}" for i, text in enumerate(texts)), "Order:"])


def order_in(answer: str) -> list[int]:
    """The numbers in an answer.

    >>> order_in(" 1, 0, 2\\n")
    [1, 0, 2]
    """
    return [int(number) for number in re.findall(r"\d+", answer)]


def check(pieces: Sequence[Piece], order: Sequence[int]) -> str | None:
    """What is wrong with an order of the pieces; None: nothing.

    - The same pieces, each once.
    - What the answer continues stays last.
    - What differs from run to run keeps its order.
    - A piece that refers to what comes before it ("the text above", "it") comes after all that it
      came after; one that announces what follows it ("here is", a colon at its end) is followed by
      what it was followed by.
    """
    if sorted(order) != list(range(len(pieces))):
        return "not the same pieces, each once"
    last = len(pieces) - 1
    if pieces and order[last] != last:
        return "what the answer continues is not the last"
    place = {piece: at for at, piece in enumerate(order)}
    open_ones = [i for i in range(len(pieces)) if not pieces[i].is_constant]
    if sorted(open_ones, key=place.__getitem__) != open_ones:
        return "what differs from run to run has changed its order"
    for i, piece in enumerate(pieces):
        if not piece.is_constant:
            continue
        words = piece.text.strip()
        if _BACKWARD.search(words) and any(place[j] > place[i] for j in range(i)):
            return f"{words!r} refers to what comes before it"
        if _FORWARD.search(words) and i < last and place[i + 1] != place[i] + 1:
            return f"{words!r} is not followed by what it announces"
    return None


def reordered(graph: Graph, start: int, pieces: Sequence[Piece], order: Sequence[int]) -> Graph:
    """`graph` with its prompt in that order; its nodes, some of them parts of old ones, are new."""
    nodes = graph.body.nodes
    first = 1 + max(node.id for node in graph.nodes)
    moved = [node for i in order for node in pieces[i].nodes]
    new = [replace(node, id=first + i) for i, node in enumerate(moved)]
    old = {node.id for piece in pieces for node in piece.nodes}
    rest = nodes[start + len(old) :]
    return replace(graph, body=replace(graph.body, nodes=(*nodes[:start], *new, *rest)))


def shareable(graph: Graph) -> str:
    """The text that every run begins with, roles left out."""
    said: list[str] = []
    for node in graph.body.nodes:
        if node.stream == 0 and isinstance(node.op, ir.Text):
            said.append(node.op.text)
        elif node.stream != 0 or not isinstance(node.op, ir.RoleBegin | ir.RoleEnd | ir.ScopeBegin):
            break
    return "".join(said)
