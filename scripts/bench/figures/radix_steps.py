"""Figure 3: nine steps of a radix tree, in an engine whose memory is too small for all of them.

The paper follows one tree through two chats, few-shot questions and several samples of one answer:
what is added, what is found again, where a node is cut, and which leaf was used longest ago when
room is needed.  Here the engine itself runs these requests, the model writes the answers, and the
tree is drawn after each step; a step's numbers are the engine's own.  `scripts.show.radix` tells
the same story without a model, with words for tokens.

How to read it: a node hangs below the one that it continues, and the number in it counts its
tokens.  Green is new, blue was found and used, red was evicted.  Two things differ from the
paper's drawing, and are what the engine does.  A prompt and its answer are two nodes, since the
tree learns of a prompt as soon as it is scheduled.  And of a prompt that is cached to its end the
last token is computed again, for its logits, so in step 9 it stands alone.  Where samples begin
alike, each has computed those tokens, and the tree keeps one copy.

Two answers are as long as it takes for steps 5, 8 and 9 to be those that find memory full, whatever
the tokenizer.  Nothing is timed and no data is read, so `--quick`, `--rounds` and `--data` change
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minisgl import Completion, Engine, SamplingParams
from minisgl.models.hub import resolve_model
from minisgl.tokenizer import Tokenizer
from scripts.bench.figures import Options
from scripts.bench.results import Result, Table
from scripts.show.radix import Panel, Watch, draw_moments

TITLE = "Figure 3: nine steps of the radix tree"

SYSTEM = "You are a helpful assistant.\n"
SHOTS = "Add step by step.\n3+9? 3+7=10, 10+2=12.\n"
HELLO = "User: Hello!\nAssistant:"
TREE = "\nUser: What is a radix tree?\nAssistant:"
WHY = "\nUser: Why?\nAssistant:"
JOKE = "User: Tell me a joke.\nAssistant:"
ANOTHER = "\nUser: Another one!\nAssistant:"
SUMS = ("8+5?", "7+6?", "17+5?")
BEGINNINGS = {"first chat": SYSTEM, "second chat": SYSTEM, "examples": SHOTS}


@dataclass(frozen=True)
class Ask:
    """A request: `text` after what was said to `whom` before."""

    whom: str
    text: str
    samples: int = 1


STEPS: list[tuple[tuple[str, str], list[Ask]]] = [
    (("The tree is empty.", ""), []),
    (("A chat begins. Its prompt is one node,", "its answer another."),
     [Ask("first chat", HELLO)]),
    (("Its second turn finds the first,", "and adds what is new."),
     [Ask("first chat", TREE)]),
    (("A second chat: the node is cut where", "the two part."),
     [Ask("second chat", JOKE)]),
    (("It goes on. Memory is full: the leaf", "used longest ago makes room."),
     [Ask("second chat", ANOTHER)]),
    (("A few-shot question shares nothing:", "one more child of the root."),
     [Ask("examples", SUMS[0])]),
    (("Two more questions, in one batch, share", "the examples."),
     [Ask("examples", SUMS[1]), Ask("examples", SUMS[2])]),
    (("The first chat is back. Its lost answer", "is computed again; the second chat goes."),
     [Ask("first chat", WHY)]),
    (("Three more samples of one answer share", "its prompt; other questions make room."),
     [Ask("examples", SUMS[2], samples=3)]),
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What a step did: the tree after it, and the answers that it gave."""

    panel: Panel
    done: list[Completion]

    def count(self, kind: str) -> int:
        """Tokens in nodes of that kind."""
        return sum(row.tokens for row in self.panel.rows if row.kind == kind)


def plan(tokenizer: Tokenizer) -> tuple[dict[str, int], int]:
    """How long the answer to each text is, and how large the memory, in tokens.

    The answer to TREE is larger than all that the few-shot questions need, which come in its place.
    The second chat is as large as what comes in its place in step 8.
    """

    def size(*texts: str) -> int:
        return sum(len(tokenizer.encode_continuation(text)) for text in texts)

    answers = {HELLO: 6, JOKE: 16, WHY: 8} | dict.fromkeys(SUMS, 12)
    few_shot = size(SHOTS, *SUMS) + sum(answers[text] for text in SUMS)
    last_turn, left = size(WHY) + answers[WHY], 2
    answers[TREE] = few_shot + 16
    answers[ANOTHER] = few_shot + last_turn + left + 12 - size(JOKE, ANOTHER) - answers[JOKE]
    first_chat = size(SYSTEM, HELLO, TREE) + answers[HELLO] + answers[TREE]
    return answers, first_chat + few_shot + last_turn + left


def play(engine: Engine, answers: dict[str, int]) -> list[Step]:
    """Run the steps one after another."""
    tree, tokenizer, steps = engine.loop.scheduler.tree, engine.tokenizer, []
    said = {whom: tokenizer.encode(text) for whom, text in BEGINNINGS.items()}

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    for caption, asks in STEPS:
        watch = engine.call(lambda: Watch(tree))
        prompts = [said[ask.whom] + tokenizer.encode_continuation(ask.text) for ask in asks]
        handles = engine.submit_all(prompts, [_params(ask, answers[ask.text]) for ask in asks])
        done = [handle.result() for handle in handles]
        rows = engine.call(lambda watch=watch: watch.rows(decode))
        steps.append(Step(Panel(caption, rows, engine.stats().tree_slots), done))
        for ask, prompt in zip(asks, prompts, strict=True):
            if ask.whom != "examples":
                said[ask.whom] = prompt + done[0].token_ids
    return steps


def _params(ask: Ask, length: int) -> SamplingParams:
    return SamplingParams(
        n=ask.samples,
        temperature=0.0 if ask.samples == 1 else 1.0,
        seed=0,
        max_tokens=length,
        ignore_eos=True,
    )


def run(options: Options) -> Result:
    """The nine steps, drawn and counted."""
    answers, capacity = plan(Tokenizer(resolve_model(options.model)))
    with Engine(options.model, device=options.device, kv_tokens=capacity) as engine:
        steps = play(engine, answers)
        engine.check()
    rows = []
    for number, step in enumerate(steps, start=1):
        prompts = sum(done.prompt_tokens for done in step.done)
        reused = sum(done.cached_tokens for done in step.done)
        rows.append({
            "step": number,
            "what happens": " ".join(step.panel.caption).strip(),
            "requests": len(step.done),
            "prompt tokens": prompts,
            "reused": reused,
            "computed": prompts - reused,
            "written": sum(done.completion_tokens for done in step.done),
            "evicted": step.count("evicted"),
            "in the tree": step.panel.tokens,
        })  # fmt: skip
    prompts, reused = (sum(row[c] for row in rows) for c in ("prompt tokens", "reused"))
    title = f"Nine steps of a radix tree with room for {capacity} tokens"
    return Result(
        tables=[Table.of(rows)],
        notes=[
            f"{reused} of {prompts} prompt tokens were reused, {reused / prompts:.0%}; "
            f"{sum(row['evicted'] for row in rows)} tokens were evicted",
        ],
        pictures={"steps": draw_moments([step.panel for step in steps], title)},
        raw={
            "capacity": capacity,
            "steps": rows,
            "nodes": [
                [[row.kind, row.depth, row.tokens, row.text] for row in step.panel.rows]
                for step in steps
            ],
        },
    )
