"""Draw a compiled program: its nodes, their order, and what they need of one another.

python -m scripts.show.graph docs/pictures/graph.svg
python -m scripts.show.graph graph.dot --kind dot        (for Graphviz)
python -m scripts.show.graph qa.svg --program qa.json    (one that was saved)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import minisgl.lang as sgl


@sgl.function
def judge(s: sgl.ProgramState, essay: str) -> None:
    """The essay judge of the paper's figure 2, as a graph can hold it: `when` in place of `if`."""
    s += "Essay: " + essay + "\n"
    s += "Is this an essay?" + sgl.select("is_essay", [" yes", " no"])

    def grade(s: sgl.ProgramState) -> None:
        forks = s.fork(2)
        forks += ["Clarity:", "Evidence:"]
        forks += sgl.gen("judgment", stop="\n")
        forks.join()
        s += "Clarity: " + s["judgment"][0] + "\nEvidence: " + s["judgment"][1]
        s += "\nGrade:" + sgl.gen("grade", max_tokens=2)

    s += sgl.when(s["is_essay"] == " yes", grade, "Nothing to grade.")


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description="Draw a compiled program.")
    p.add_argument("file", type=Path)
    p.add_argument("--program", type=Path, help="a saved one (default: the essay judge)")
    p.add_argument("--kind", choices=["svg", "dot"], default="svg")
    args = p.parse_args(argv)
    compiled = judge.compile() if args.program is None else sgl.CompiledProgram.load(args.program)
    compiled.draw(args.file, args.kind)
    print(f"written: {args.file}")


if __name__ == "__main__":
    main()
