"""Figure 10: one answer by the plain and by the compressed FSM, token by token.

The paper shows how an FSM guides decoding, and how a compressed one skips what it forces.  Here
two live engines answer the same prompt under the same pattern: one computes forced text in a
single pass (jump-forward), the other takes a pass for each token (`jump_forward=False`).  Both
write the same tokens, unless half precision rounds two close choices differently.

How to read it: blue tokens were chosen by the model, under a mask; green ones were forced, and
nobody was asked.  Where the model had begun a word with another token than the one the whole word
is made of, that token is yellow: it was tokenized anew, together with what was forced behind it.
The number above a token counts passes.  The table goes through the passes of the compressed FSM.

Nothing is timed (figure 11 is), and no data is read: `--quick`, `--rounds` and `--data` change
nothing.
"""

from __future__ import annotations

from itertools import groupby

from minisgl import Engine, SamplingParams
from scripts.bench.figures import Options
from scripts.bench.results import Result, Table
from scripts.show.passes import Growth, draw, watch

TITLE = "Figure 10: decoding by the plain and the compressed FSM, token by token"

HOUSE = "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)"
PATTERN = (
    r'\{"name": "[A-Z][a-z]{1,12}", "age": [0-9]{1,2}, '
    rf'"house": "{HOUSE}", "alive": "(Alive|Deceased)"\}}'
)
PROMPT = "Harry Potter is 15 years old, a pupil at Hogwarts and in Gryffindor. As JSON: "
SLOTS = 2048


def run(options: Options) -> Result:
    """Both ways, drawn, and the shorter one pass by pass."""
    growths = both(options)
    plain, jumps = growths.values()
    same = [token.id for token in plain.tokens] == [token.id for token in jumps.tokens]
    counts = [
        {
            "FSM": name,
            "forward passes": growth.passes,
            "tokens": len(growth.tokens),
            "chosen": growth.count("model"),
            "forced": growth.count("forced"),
            "tokenized anew": growth.count("rewritten"),
        }
        for name, growth in growths.items()
    ]
    return Result(
        tables=[
            Table.of(counts, f"The pattern `{PATTERN}`"),
            Table.of(by_pass(jumps), "By the compressed FSM, pass by pass"),
        ],
        notes=[
            f"the two answers are {'the same' if same else 'NOT the same'}, token for token",
            f"{plain.passes / jumps.passes:.1f} times fewer passes",
            *jumps.notes(),
        ],
        pictures={"tokens": draw(growths, "One answer, token by token")},
        raw={
            "pattern": PATTERN,
            "prompt": PROMPT,
            "rewrites": jumps.rewrites,
            **{
                name: [[t.id, t.text, t.origin, t.after] for t in growth.tokens]
                for name, growth in growths.items()
            },
        },
    )


def both(options: Options) -> dict[str, Growth]:
    """How the answer grows, one way and the other."""
    params = SamplingParams(temperature=0.0, max_tokens=200, regex=PATTERN)
    growths = {}
    for name, jumps in (("plain FSM", False), ("compressed FSM", True)):
        with Engine(
            options.model, device=options.device, kv_tokens=SLOTS, jump_forward=jumps
        ) as engine:
            growths[name] = watch(engine, PROMPT, params)
    return growths


def by_pass(growth: Growth) -> list[dict[str, str | int]]:
    """A row for each pass: what it gave, and what could be written after it without another."""
    rows: list[dict[str, str | int]] = []
    for number, tokens in groupby(growth.tokens, key=lambda token: token.after):
        texts: dict[str, str] = {"model": "", "rewritten": "", "forced": ""}
        for token in tokens:
            texts[token.origin] += token.text
        rows.append({
            "after pass": number,
            "chosen": code(texts["model"]),
            "chosen, tokenized anew": code(texts["rewritten"]),
            "forced": code(texts["forced"]),
        })  # fmt: skip
    return rows


def code(text: str) -> str:
    """As code, in a table; nothing is nothing.

    >>> code('": '), code("")
    ('`": `', '')
    """
    return f"`{text}`" if text else ""
