"""Figure 14: a program as the graph that its trace is, and the same program as it runs.

The paper's compiler runs a program once on values that nobody knows yet, and keeps what it would
do as a graph: constant texts, arguments, gens, forks and joins, with what each needs of others.
Here that is done with an essay judge after the paper's figure 2: a branch for each dimension, then
a grade.  The graph is drawn as it is after the compiler's passes, and then the function and the
graph both run on the engine.  (`scripts.show.graph` draws one with an `if` in it.)

How to read it: in the graph a column is a stream and time goes down; grey lines are the order
within a stream, violet ones what a node needs of other streams.  In the second picture time goes
to the right, in steps of the model: the branches run together, and the function only waits.

Nothing is timed and no data is read, so `--quick`, `--rounds` and `--data` change nothing.
"""

from __future__ import annotations

from typing import Any

import minisgl.lang as sgl
from minisgl.lang.drawing import draw, layout
from minisgl.lang.graph import Graph, label
from scripts.bench.figures import Options
from scripts.bench.results import Cell, Result, Table
from scripts.examples.essay_judge import ESSAY
from scripts.show import program

TITLE = "Figure 14: a program's graph, and its run"

DIMENSIONS = ("Clarity", "Originality", "Evidence")
SETTINGS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24}


@sgl.function
def judge(s: sgl.ProgramState, essay: str) -> None:
    """Judges an essay in several dimensions at once, and grades it by what they came to."""
    s += "Essay: " + essay + "\n"
    forks = s.fork(len(DIMENSIONS))
    forks += lambda i: f"In short, its {DIMENSIONS[i].lower()} is"
    forks += sgl.gen("judgment", stop="\n")
    forks.join()
    for dimension, judgment in zip(DIMENSIONS, s["judgment"], strict=True):
        s += dimension + ":" + judgment + "\n"
    s += "Grade, from A to D:" + sgl.gen("grade", max_tokens=2)


def run(options: Options) -> Result:
    """Trace, compile and draw the judge; run it both ways."""
    compiled = judge.compile()
    with sgl.Runtime(options.model, device=options.device, kv_tokens=2048) as runtime:
        events = program.watch(judge, {"essay": ESSAY}, runtime, **SETTINGS)
        as_function, function_steps = counted(runtime, judge)
        as_graph, graph_steps = counted(runtime, compiled)
    same = as_function.text() == as_graph.text()
    graph = compiled.graph
    edges = layout(graph).edges
    return Result(
        tables=[Table.of(nodes(graph), f"{graph.name}, node by node", is_detail=True)],
        notes=[
            f"{len(graph.nodes)} nodes in {len({n.stream for n in graph.nodes})} streams, "
            f"{sum(not e.needed for e in edges)} edges within a stream, "
            f"{sum(e.needed for e in edges)} between streams",
            f"run as a function and as a graph: {'the same' if same else 'NOT the same'} text, "
            f"in {function_steps} and {graph_steps} steps of the engine",
        ],
        pictures={
            "graph": draw(graph, "svg"),
            "streams": program.draw(events, f"{graph.name}, as it ran"),
        },
        raw={"graph": str(graph), "text": as_graph.text()},
    )


def counted(
    runtime: sgl.Runtime, way: sgl.Function[Any, Any] | sgl.CompiledProgram
) -> tuple[sgl.ProgramState, int]:
    """A run from an empty cache: its state, and the engine's steps."""
    runtime.flush_cache()
    before = runtime.engine.stats().steps
    state = way.run(essay=ESSAY, backend=runtime, **SETTINGS)
    text = state.text()  # waits for the end
    assert text
    return state, runtime.engine.stats().steps - before


def nodes(graph: Graph) -> list[dict[str, Cell]]:
    """A row for each node: what it is, and the edges that lead to it."""
    edges = layout(graph).edges

    def sources(node: int, *, needed: bool) -> str:
        found = [e.source for e in edges if e.target == node and e.needed == needed]
        return ", ".join(f"%{source}" for source in found)

    return [
        {
            "node": f"%{node.id}",
            "stream": node.stream,
            "what": f"`{label(node.op)}`",
            "after": sources(node.id, needed=False),
            "needs": sources(node.id, needed=True),
        }
        for node in graph.nodes
    ]
