"""Table 2: questions about images and about videos, ours beside the plain transformers loop.

The paper runs LLaVA-v1.5-7B on images and LLaVA-NeXT-34B on videos, several questions about each,
against the authors' own code, which answers one question after the other; its system is up to six
times faster.  Here are models of these shapes with random weights, scaled (the tower keeps its
share of the work) or in their real sizes with `--real-shapes`; or `--model`, a LLaVA-1.5 or a
LLaVA-NeXT-Video.

    ours          all questions at once: an image is encoded once, and its keys and values are
                  computed once, whoever asks about it
    no caches     the same with prefix_cache="none" and vision_cache_mib=0; prompts that are under
                  way together still share what the tower made of an image
    transformers  processor and `generate`, one question after the other, as the authors' code does

All answers have the same number of tokens, greedy.  All steps from a file's bytes on are included;
frames are chosen and decoded by `minisgl.media` for everybody.

How to read it: images/s are answers per second, each with its image; frames/s count the frames of
the video for each answer.  "Encoded" counts for how many the vision tower ran.  With `--data`, its
pictures and questions are used; videos are made here.  `--peer` adds nobody: transformers is here
already, and other systems read these models otherwise or not at all.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minisgl.models.registry import load_config
from scripts.bench.common import interleave, median_ratio, seconds
from scripts.bench.figures import Options
from scripts.bench.image_answers import Ids, Ours, Transformers, with_weights
from scripts.bench.questions import Question, about_images, about_videos, read_questions
from scripts.bench.random_models import Model, given_back, prepare
from scripts.bench.results import Cell, Chart, Result, Table

TITLE = "Table 2: questions about images and videos"

OURS, UNCACHED, PEER = "ours", "no caches", "transformers"
SYSTEMS: dict[str, Callable[[Model, int], Ours | Transformers]] = {
    OURS: Ours,
    UNCACHED: partial(Ours, prefix_cache="none", vision_cache_mib=0),
    PEER: Transformers,
}
KINDS = {
    "LlavaForConditionalGeneration": "images",
    "LlavaNextVideoForConditionalGeneration": "videos",
}


@dataclass(frozen=True)
class Amount:
    """How much is asked: `each` questions about each of `files`, answered with `new` tokens.

    scale: of the model with random weights.
    frames: of a video.
    """

    scale: int
    files: int
    each: int
    new: int
    frames: int = 0


QUICK = {"images": Amount(8, 3, 4, 16), "videos": Amount(16, 2, 3, 16, frames=4)}
FULL = {"images": Amount(4, 6, 5, 64), "videos": Amount(8, 4, 5, 64, frames=8)}
SHAPES = {"images": "llava-1.5-7b", "videos": "llava-next-video-34b"}


def run(options: Options, amounts: dict[str, Amount] | None = None) -> Result:
    amounts = amounts or (QUICK if options.quick else FULL)
    result = Result(charts=[Chart("bars", "Answers per second, transformers = 1", "", "", [], {})])
    with tempfile.TemporaryDirectory() as scratch:
        for kind, amount in amounts.items():
            model = prepare(options, SHAPES[kind], amount.scale, Path(scratch))
            if KINDS.get(load_config(model.path).architecture) == kind:
                questions = ask(kind, amount, options, Path(scratch))
                measure(kind, model, amount.new, questions, options, result)
    if not result.tables:
        raise ValueError(f"model {options.model!r}: table 2 takes {' and '.join(KINDS)}")
    return result


def ask(kind: str, amount: Amount, options: Options, folder: Path) -> list[Question]:
    """The questions; those about one file are beside one another."""
    if kind == "videos":
        return about_videos(folder, amount.files, amount.each, amount.frames)
    if options.data is not None:
        return read_questions(options.data, amount.files, amount.each)
    return about_images(folder, amount.files, amount.each)


def measure(
    kind: str,
    model: Model,
    new: int,
    questions: Sequence[Question],
    options: Options,
    result: Result,
) -> None:
    """Let all take turns, and add a table, bars and notes to `result`."""
    answers: dict[str, Ids] = {}
    told: dict[str, tuple[float, int]] = {}
    if model.is_dummy and not options.real_shapes:
        model = with_weights(model)

    def turn(name: str) -> float:
        with given_back(), closing(SYSTEMS[name](model, new)) as system:
            # The first call of anything is slower; a GPU compiles kernels for the shapes it sees.
            system(questions if model.device.type == "cuda" else questions[:2])
            taken = seconds(lambda: answers.update({name: system(questions)}))
            told[name] = system.hit_rate, system.encoded
        return taken

    turns = {name: partial(turn, name) for name in SYSTEMS}
    taken = interleave(turns, options.rounds, warmups=0)
    units = sum(question.frames or 1 for question in questions)
    files = len({question.file for question in questions})
    unit = "frames/s" if kind == "videos" else "images/s"
    rows: list[dict[str, Cell]] = []
    for name in SYSTEMS:
        equal = sum(a == b for a, b in zip(answers[name], answers[PEER], strict=True))
        hit_rate, encoded = told[name]
        rows.append(
            {
                "": name,
                unit: units / statistics.median(taken[name]),
                "to transformers": median_ratio(taken[PEER], taken[name]),
                "hit rate": None if name == PEER else hit_rate,
                "encoded": encoded,
                # of weights that are in no file, everybody has drawn their own
                "equal answers": None if model.is_dummy else f"{equal} of {len(questions)}",
            }
        )
    title = f"{len(questions)} questions about {files} {kind}, {new} tokens each; {model.name}"
    result.tables.append(Table.of(rows, title))
    (chart,) = result.charts
    chart.x.append(kind)
    for row in rows:
        chart.series.setdefault(str(row[""]), []).append(row["to transformers"])  # type: ignore[arg-type]
    result.notes.append(
        f"{kind.capitalize()}: ours is {rows[0]['to transformers']:.2f} times as fast as "
        f"transformers, and {rows[1]['to transformers']:.2f} times without caches; the paper's is "
        "up to 6 times as fast as the authors' code."
    )
    result.raw[kind] = {
        "seconds": taken,
        "units": units,
        "answer_tokens": {name: [len(ids) for ids in each] for name, each in answers.items()},
    }
