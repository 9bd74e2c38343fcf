"""Multiple choice after a few solved examples, answered by `select`.

As MMLU is asked (Hendrycks et al. 2020, arXiv 2009.03300: the choice of a letter) and as
HellaSwag is (Zellers et al. 2019, arXiv 1905.07830: the likeliest ending).  `select` compares how
likely the model finds each choice, so no answer can be out of the question.  The examples come
before every question: they are the prefix that a batch computes once.

    python -m scripts.examples.few_shot [--data hellaswag.jsonl | --data mmlu.csv]

Of a file, the first five items are the examples, and the next ones are asked.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import minisgl.lang as sgl
from scripts.examples.common import options, read_jsonl

SHOTS = 5
SAMPLE = [
    ("Water that is heated to its boiling point", ["turns to steam.", "freezes.", "burns."], 0),
    ("A lamp that is switched on", ["gets heavier.", "gives light.", "falls asleep."], 1),
    ("A glass that falls onto stone", ["flies.", "sings.", "breaks."], 2),
    ("A child that is tired", ["goes to bed.", "turns green.", "is a bridge."], 0),
    ("A key that fits its lock", ["eats it.", "opens it.", "paints it."], 1),
    ("A dog that sees its owner come home", ["wags its tail.", "is a number.", "dissolves."], 0),
    ("Snow that lies in the warm sun", ["explodes.", "speaks.", "melts."], 2),
]
Item = tuple[str, list[str], int]  # a beginning, its endings, and which one is right


@sgl.function
def complete(s, shots: Sequence[Item], beginning: str, endings: Sequence[str]):
    for text, choices, right in shots:
        s += f"{text} {choices[right]}\n\n"
    s += f"{beginning} " + sgl.select("answer", endings)


def from_csv(path: Path) -> list[Item]:
    """MMLU: question, four choices, and the letter or number of the right one."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    items = []
    for question, *choices, right in rows:
        if right in "ABCD0123":  # not the headline
            listed = "\n".join(f"{letter}. {c}" for letter, c in zip("ABCD", choices, strict=True))
            number = "ABCD0123".index(right) % 4
            items.append((f"{question}\n{listed}\nAnswer:", list("ABCD"), number))
    return items


def read(path: Path) -> list[Item]:
    """The items of either kind of file."""
    if path.suffix == ".csv":
        return from_csv(path)
    return [(item["ctx"], item["endings"], item["label"]) for item in read_jsonl(path)]


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=1)
    items = read(args.data) if args.data else SAMPLE
    shots, asked = items[:SHOTS], items[SHOTS : SHOTS + args.limit]
    program = complete.bind(shots=shots)  # so the batch knows what all its runs begin with
    states = program.run_batch([{"beginning": text, "endings": ends} for text, ends, _ in asked])
    right = 0
    for state, (_, endings, answer) in zip(states, asked, strict=True):
        right += state["answer"] == endings[answer]
    print(f"{right} of {len(asked)} right")
    return states


if __name__ == "__main__":
    main()
