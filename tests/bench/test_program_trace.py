"""Figure 14: the judge's graph, node by node, and its run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from scripts.bench.figures import Options, program_trace
from scripts.bench.figures.program_trace import DIMENSIONS

SVG = "{http://www.w3.org/2000/svg}"


def test_the_graph_is_listed_drawn_and_run(tiny_model_dir: Path) -> None:
    result = program_trace.run(Options(model=str(tiny_model_dir), device="cpu"))
    (table,) = result.tables
    rows = {str(row[0]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert len({row["stream"] for row in rows.values()}) == 1 + len(DIMENSIONS)
    gens = [row for row in rows.values() if str(row["what"]).startswith("`Gen(")]
    assert [row["what"] for row in gens] == ["`Gen('judgment')`"] * 3 + ["`Gen('grade')`"]
    assert [row["stream"] for row in gens] == [1, 2, 3, 0]
    # Every edge leads from a node above to one below, and what needs others is of another stream.
    places = {node: n for n, node in enumerate(rows)}
    for node, row in rows.items():
        after, needs = (str(row[c]).split(", ") if row[c] else [] for c in ("after", "needs"))
        assert all(places[source] < places[node] for source in after + needs)
        assert all(rows[source]["stream"] == row["stream"] for source in after)
        assert all(rows[source]["stream"] != row["stream"] for source in needs)
    variables = [row for row in rows.values() if str(row["what"]).startswith("`Variable(")]
    judgments = [node for node, row in rows.items() if row["what"] == "`Gen('judgment')`"]
    assert [row["needs"] for row in variables] == judgments

    graph = ElementTree.fromstring(result.pictures["graph"])
    words = [text.text for text in graph.iter(f"{SVG}text")]
    assert words[0] == "judge(essay)" and words.count("gen judgment") == 3
    assert words.count("branch 0") == words.count("gen grade") == words.count("fork 3") == 1
    streams = ElementTree.fromstring(result.pictures["streams"])
    bars = [g for g in streams.iter(f"{SVG}g") if g.get("class") == "gen"]
    assert len(bars) == len(gens)

    assert all(f"\n{dimension}:" in result.raw["text"] for dimension in DIMENSIONS)
    assert f"{len(rows)} nodes in 4 streams" in result.notes[0]
    assert "run as a function and as a graph" in result.notes[1]
