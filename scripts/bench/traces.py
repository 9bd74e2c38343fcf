"""Made-up traces of a chat service: conversations that come at random and bring their history back.

A trace is replayed in real time, so that requests wait for each other as they would in production.
Its times are in units of what one request takes alone: the same trace fits any machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import PIL.Image

from minisgl import Completion, Engine, Prompt, SamplingParams
from scripts.bench.figures import Options
from scripts.bench.image_answers import with_weights
from scripts.bench.questions import IMAGE_QUESTIONS, SIZES, SUFFIXES, Question, about_images
from scripts.bench.random_models import prepare
from scripts.bench.workloads.base import file_of
from scripts.bench.workloads.samples import TOWNS, paragraphs
from scripts.examples.common import read_jsonl

LOAD = 0.8
GOES_ON, MOST_TURNS = 0.6, 5  # chance of another turn
PAUSE = 2.0  # before it, on average; in units of one request's time
CHATS, SIGHTS = (32, 7), (16, 5)  # conversations, and with --quick
NEW = 16  # tokens of each answer
SEED = 3
PERSONS = ("a patient teacher", "a lawyer", "a cook", "the voice of a railway", "a programmer")
RULES = (
    "Be brief and exact, and say so where you are not sure.",
    "Answer in the language in which you are asked.",
    "Give numbers with their units.",
    "Do not repeat the question.",
    "Ask back if something that matters is missing.",
    "Never give the addresses of people.",
    "Where there are several ways, name the best one first, and in one line why.",
    "Use no list of more than five points.",
)
SCALES = (4, 8)  # of the model with eyes, and with --quick


@dataclass(frozen=True)
class Talk:
    """A conversation.  Times are in units of one request's time.

    at: of the first turn.  pauses: before each turn, after the answer to the one before.
    """

    at: float
    turns: tuple[str, ...]
    pauses: tuple[float, ...]
    system: str = ""
    image: Path | None = None


@dataclass
class Reply:
    """To one turn; seconds from the turn to its first token."""

    first_token: float
    completion: Completion


@dataclass
class Trace:
    """Conversations, what they run on, and what is said in them.

    settings: of an engine.
    prompt: of a turn, from a conversation and the answers so far.
    said: answers by conversation and turn, those of the first run: all runs have the same prompts.
    """

    name: str
    settings: dict[str, Any]
    talks: list[Talk]
    prompt: Callable[[Engine, Talk, Sequence[str]], Any]
    said: dict[tuple[int, int], str] = field(default_factory=dict)

    def replay(self, engine: Engine, unit: float) -> list[Reply]:
        """Every turn at its time, from an empty cache; `unit` in seconds."""
        engine.flush_cache()
        start = time.perf_counter()

        def converse(number: int) -> list[Reply]:
            talk, replies = self.talks[number], []
            _sleep_until(start + unit * talk.at)
            for turn, pause in enumerate(talk.pauses):
                _sleep_until(time.perf_counter() + unit * pause)
                answers = [self.said[number, before] for before in range(turn)]
                replies.append(ask(engine, self.prompt(engine, talk, answers)))
                self.said.setdefault((number, turn), replies[-1].completion.text)
            return replies

        with ThreadPoolExecutor(len(self.talks)) as people:
            done = list(people.map(converse, range(len(self.talks))))
        return [reply for replies in done for reply in replies]

    def unit(self, engine: Engine) -> float:
        """Seconds that the first turns take one after the other, on average."""
        prompts = [self.prompt(engine, talk, ()) for talk in self.talks[:4]]
        ask(engine, prompts[0])  # warm up
        start = time.perf_counter()
        for each in prompts:
            ask(engine, each)
        return (time.perf_counter() - start) / len(prompts)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


def ask(engine: Engine, prompt: Any) -> Reply:
    """One turn, streamed."""
    params = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True)
    start = time.perf_counter()
    handle = engine.stream(prompt, params)
    next(handle)
    first_token = time.perf_counter() - start
    return Reply(first_token, handle.result())


def talks(
    rng: random.Random, count: int, begin: Callable[[], dict[str, Any]], turn: Callable[[], str]
) -> list[Talk]:
    """Arrivals, lengths and pauses; `begin` makes what a conversation starts with."""
    made, now = [], 0.0
    mean_turns = sum(GOES_ON**i for i in range(MOST_TURNS))
    for _ in range(count):
        now += rng.expovariate(LOAD / mean_turns)
        length = 1
        while length < MOST_TURNS and rng.random() < GOES_ON:
            length += 1
        pauses = (0.0, *(rng.expovariate(1 / PAUSE) for _ in range(length - 1)))
        made.append(Talk(now, tuple(turn() for _ in range(length)), pauses, **begin()))
    return made


def zipf(rng: random.Random, values: Sequence[Any]) -> Any:
    """One of them, the first most often."""
    return rng.choices(values, [1 / rank for rank in range(1, len(values) + 1)])[0]


def chats(options: Options) -> Trace:
    """System prompts and histories."""
    rng = random.Random(SEED)
    if options.data is None:
        asked = [
            f"{page}\nWhat of this matters most?" for town in TOWNS for page in paragraphs(town)
        ]
    else:
        file = file_of(options.data, "mt_bench/question.jsonl")
        asked = [turn for question in read_jsonl(file) for turn in question["turns"]]
    rng.shuffle(asked)
    systems = []
    for person in PERSONS:
        rules = rng.sample(RULES, len(RULES))
        systems.append(f"You are {person}. " + " ".join(rules) + " " + " ".join(rules[::-1]))
    count = CHATS[options.quick]
    questions = iter(asked * (1 + count * MOST_TURNS // len(asked)))
    made = talks(rng, count, lambda: {"system": zipf(rng, systems)}, lambda: next(questions))
    return Trace("chat", {"model": options.model, "device": options.device}, made, chat_prompt)


def chat_prompt(engine: Engine, talk: Talk, answers: Sequence[str]) -> list[int]:
    """By the model's own template."""
    messages = [{"role": "system", "content": talk.system}]
    for i, turn in enumerate(talk.turns[: len(answers) + 1]):
        messages.append({"role": "user", "content": turn})
        if i < len(answers):
            messages.append({"role": "assistant", "content": answers[i]})
    return engine.chat_template.encode(messages, engine.tokenizer)


def sights(options: Options, scratch: Path) -> Trace:
    """Questions about pictures."""
    rng = random.Random(SEED)
    if options.data is None:
        images = [question.file for question in about_images(scratch, len(SIZES), 1)]
    else:
        files = sorted(file_of(options.data, "images").iterdir())
        images = [file for file in files if file.suffix.lower() in SUFFIXES]
    count = SIGHTS[options.quick]

    def picture() -> dict[str, Any]:
        image = zipf(rng, images)
        if rng.random() < 0.5:  # one's own: some lines less of another
            with PIL.Image.open(image) as shown:
                cut = shown.convert("RGB").crop((0, rng.randint(1, 99), *shown.size))
            image = scratch / f"own-{rng.random()}.png"
            cut.save(image)
        return {"image": image}

    made = talks(rng, count, picture, lambda: rng.choice(IMAGE_QUESTIONS))
    scale = SCALES[options.quick]
    model = prepare(replace(options, model=None), "llava-1.5-7b", scale, scratch)
    if not options.real_shapes:
        model = with_weights(model)  # the same for both engines
    return Trace("images", {"model": str(model.path), **model.settings}, made, image_prompt)


def image_prompt(engine: Engine, talk: Talk, answers: Sequence[str]) -> Prompt:
    """As LLaVA-1.5 was trained."""
    assert talk.image is not None
    text = Question(talk.image, talk.turns[0]).prompt
    for answer, turn in zip(answers, talk.turns[1:], strict=False):
        text += f"{answer.replace('<image>', '')} USER: {turn} ASSISTANT:"
    return Prompt(text, images=[talk.image])
