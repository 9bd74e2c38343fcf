"""Scheduling by expected sharing: the order in which a batch begins its runs.

Runs that begin with the same text share what the model computes for it, as long as it is kept.  So
they are begun one after another: in the order of the texts that they say before a model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from minisgl.lang import ir
from minisgl.lang.graph import Graph, Say
from minisgl.lang.values import Argument, Ref, compute, refs


def order_runs(graph: Graph, runs: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of `runs`, each given by its arguments, in the order to begin them."""
    openings = [opening(graph, arguments) for arguments in runs]
    return sorted(range(len(runs)), key=openings.__getitem__)


def opening(graph: Graph, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What a run says before a model is asked, as far as texts that are compared need to know."""
    said: list[str] = []

    def leaf(argument: Argument | Ref) -> Any:
        return arguments[argument.name]

    for node in graph.body.nodes:
        if node.stream != 0:
            continue
        match node.op:
            case ir.Text(text):
                said.append(text)
            case ir.RoleBegin(role) | ir.RoleEnd(role):
                said.append(role)
            case Say(value) if not any(refs(value)):
                try:
                    said.append(str(compute(value, leaf)))
                except Exception:  # what is wrong with an argument, its run will say
                    break
            case ir.ScopeBegin() | ir.ScopeEnd():
                pass
            case _:
                break
    return tuple(said)


def shared(texts: Sequence[str]) -> int:
    """The characters that each text shares with the one before it, all together.

    >>> shared(["abc", "abd", "x", "abc"]), shared(["abc", "abc", "abd", "x"])
    (2, 5)
    """
    total = 0
    for one, other in pairwise(texts):
        pairs = zip(one, other, strict=False)
        total += next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return total
