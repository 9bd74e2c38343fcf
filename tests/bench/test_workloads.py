"""The paper's workloads: each runs on made-up data and on data laid out as the real, says with all
switches off what it says with all on, and finds in the cache what its programs share."""

from __future__ import annotations

import asyncio
import csv
import doctest
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import minisgl.lang as sgl
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.backends.engine import EngineBackend
from minisgl.lang.context import Context
from minisgl.sampling import SamplingParams
from scripts.bench.workloads import WORKLOADS, Job, Size, Workload, base
from scripts.bench.workloads.chat import LONG, SHORT
from scripts.bench.workloads.json_decoding import FACTS
from scripts.bench.workloads.mmlu import LONGEST
from scripts.bench.workloads.systems import ENGINE_OFF, LANGUAGE_OFF, System, switched
from scripts.make_tiny_model import make_tiny_model

LITTLE = 0.02  # scale: one example, answers of a few tokens
COUNTS = {"generative_agents": 7, "tree_of_thought": 1}  # of programs; else 2
ANSWERS = {
    "mmlu": 1, "hellaswag": 1, "react": 3, "generative_agents": 1, "tree_of_thought": 3 + 9 + 27,
    "skeleton_of_thought": 5 + 5, "llm_judge": 6 + 1, "json_decoding": 1, "chat_short": 4,
    "chat_long": 4, "rag": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[System, System]]:
    """Ours, and ours with everything off."""
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position=4096)
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "kv_tokens": 16_384}
    with (
        sgl.Runtime(str(model), **settings) as on,
        sgl.Runtime(str(model), **settings, **ENGINE_OFF) as off,
    ):
        yield System("on", on), System("off", off, LANGUAGE_OFF)


# ------------------------------------------------------------------ the programs


@pytest.mark.parametrize("name", WORKLOADS)
def test_answers_are_the_same_with_everything_off(
    name: str, systems: tuple[System, System]
) -> None:
    workload, (on, off) = WORKLOADS[name], systems
    count = COUNTS.get(name, 2)
    jobs = workload.jobs(None, count, LITTLE)
    assert len(jobs) == count
    run, plain = on.run(workload, jobs), off.run(workload, jobs)
    assert len(run.states) == len(run.latencies) == count
    assert 0 < max(run.latencies) <= run.seconds
    answers = [workload.answers(state) for state in run.states]
    assert answers == [workload.answers(state) for state in plain.states]
    assert all(isinstance(answer, str) for each in answers for answer in each)
    assert any(answer for each in answers for answer in each)
    assert [len(each) for each in answers] == [ANSWERS[name]] * count
    assert run.hit_rate is not None and run.hit_rate > 0
    assert plain.hit_rate == 0
    assert plain.prompt_tokens is not None and run.prompt_tokens is not None
    assert plain.prompt_tokens <= run.prompt_tokens  # which has the hints of forks as well


def test_the_pattern_of_json_is_json() -> None:
    facts = (
        '{"name": "Ostra", "kind": "place", "country": "Lim", "year": 1200, "still_exists": true}'
    )
    told = json.dumps(json.loads(facts), indent=2)
    assert re.fullmatch(FACTS, told)
    assert not re.fullmatch(FACTS, told.replace("place", "town"))


def test_a_chat_has_the_lengths_that_were_drawn(systems: tuple[System, System]) -> None:
    for name, bounds in (("chat_short", SHORT), ("chat_long", (LONG[0] // 50, LONG[1] // 50))):
        workload = WORKLOADS[name]
        (job,) = workload.jobs(None, 1, LITTLE)
        (state,) = systems[0].run(workload, [job]).states
        for i, (_, tokens) in enumerate(job.arguments["turns"]):
            assert bounds[0] <= tokens <= bounds[1] + 1
            assert state.get_meta_info(f"answer_{i}")["completion_tokens"] == tokens


# ------------------------------------------------------------------ their settings


def test_settings_are_the_papers_at_scale_1() -> None:
    settings = {name: workload.settings(1.0) for name, workload in WORKLOADS.items()}
    assert settings["mmlu"] == "5-shot, 1 token"
    assert settings["hellaswag"] == "20-shot, select of 4"
    assert settings["react"] == "6-shot, 200 tokens at most a step"
    assert settings["tree_of_thought"] == "3 + 9 + 27 calls, 256 tokens at most"
    assert settings["chat_short"] == "4 turns, 256 to 512 words, 4 to 8 tokens"
    assert settings["chat_long"] == "4 turns, 256 to 512 words, 256 to 512 tokens"
    assert all(workload.paper.scale == 1.0 for workload in WORKLOADS.values())


def test_what_a_docstring_shows() -> None:
    told = doctest.testmod(base)
    assert told.attempted and not told.failed


def test_jobs_have_the_examples_that_settings_promise() -> None:
    (mmlu,) = WORKLOADS["mmlu"].jobs(None, 1, 1.0)
    assert mmlu.program.bound["shots"].count("Answer: ") == 5
    (hellaswag,) = WORKLOADS["hellaswag"].jobs(None, 1, 1.0)
    assert len(hellaswag.program.bound["shots"]) == 20
    (react,) = WORKLOADS["react"].jobs(None, 1, 1.0)
    assert react.program.bound["shots"].count("Question: ") == 6
    (rag,) = WORKLOADS["rag"].jobs(None, 1, 1.0)
    assert rag.program.bound["shots"].count("Question: ") == 20


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_jobs_are_the_same_each_time(workload: Workload) -> None:
    for size in (workload.cpu, workload.quick):
        assert 0 < size.scale <= 1 and 0 < size.single <= size.batch <= workload.paper.batch
        jobs = workload.jobs(None, size.batch, size.scale)
        assert len(jobs) == size.batch
        assert said(jobs) == said(workload.jobs(None, size.batch, size.scale))
        assert len(set(said(jobs))) == len(jobs)  # no two alike


def test_mmlu_has_a_subject_for_every_eight_questions_and_a_bound_on_examples(
    tmp_path: Path,
) -> None:
    lay_out(tmp_path)
    for i in range(3):
        write_mmlu(tmp_path / "mmlu", f"a_subject_{i}", words=2000)
    assert len({job.program for job in WORKLOADS["mmlu"].jobs(None, 7, 1.0)}) == 1
    assert len({job.program for job in WORKLOADS["mmlu"].jobs(None, 24, 1.0)}) == 3
    job = WORKLOADS["mmlu"].jobs(tmp_path, 8, 1.0)[0]
    assert "a subject 0" in job.program.bound["shots"]
    assert job.program.bound["shots"].count("Answer: ") == 1  # more has no room
    assert len(job.program.bound["shots"]) > LONGEST  # but one there is


# ------------------------------------------------------------------ their data


@pytest.mark.parametrize("name", WORKLOADS)
def test_data_as_it_is_laid_out(name: str, tmp_path: Path) -> None:
    lay_out(tmp_path)
    jobs = WORKLOADS[name].jobs(tmp_path, 2, 0.5)
    assert 1 <= len(jobs) <= 2
    if not name.startswith("chat"):  # which has none
        assert all("Quorum" in words for words in said(jobs))


def test_data_that_runs(tmp_path: Path, systems: tuple[System, System]) -> None:
    lay_out(tmp_path)
    on, _ = systems
    for workload in WORKLOADS.values():
        (job,) = workload.jobs(tmp_path, 1, LITTLE)
        (state,) = on.run(workload, [job]).states
        assert all(isinstance(answer, str) for answer in workload.answers(state))


@pytest.mark.parametrize("name", [name for name in WORKLOADS if not name.startswith("chat")])
def test_data_that_is_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is missing: --data is a directory with \w+"):
        WORKLOADS[name].jobs(tmp_path, 2, 0.5)


def said(jobs: Sequence[Job]) -> list[str]:
    """What tells a job from another."""
    return [
        repr({n: v for n, v in job.arguments.items() if n != "retrieve"}) + str(job.program.bound)
        for job in jobs
    ]


def lay_out(data: Path) -> None:
    """A few made-up lines of everything, as the real files have them."""
    lines: dict[str, list[Any]] = {
        "hellaswag/hellaswag_val_1000.jsonl": [
            {"ind": i, "activity_label": "x", "ctx": f"Quorum {i}", "label": 1,
             "endings": [f"ends {i}", "stops", "waits", "goes"]}
            for i in range(14)
        ],
        "gsm8k/test.jsonl": [{"question": f"Quorum {i}?", "answer": "#### 7"} for i in range(3)],
        "tip_suggestion/topic.jsonl": [{"topic": f"Quorum {i}", "number": 5} for i in range(3)],
        "llm_judge/articles.jsonl": [f"Quorum {i} is an essay." for i in range(3)],
        "generative_agents/agent_calls.jsonl": [
            {"generate_pronunciatio": {"action": "seeing Quorum"}},
            {"action_location_object": {
                "persona_name": "Quorum", "target_sector": "inn", "target_sector_areas": "a, b",
                "current_action": "sleeping", "next_action": "waking"}},
        ],
        "wiki/wiki_docs.jsonl": [
            {"title": "T", "document": f"Quorum {i}.", "paragraphs": [f"Quorum {i}.", "Else."],
             "qas": [{"q": f"Is it Quorum {i} {j}?", "a": "yes", "p": 0} for j in range(15)]}
            for i in range(4)
        ],
        "react/hotpotqa_100.jsonl": [
            {f"Question: Who is Quorum {i}?": [
                {"thought": "t", "action": "Search[Quorum]", "observation": "Someone.\n"},
                {"thought": "t", "action": "Finish[someone]", "observation": "Done\n"}]}
            for i in range(3)
        ],
    }  # fmt: skip
    for name, values in lines.items():
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    shot = "\nQuestion: {}?\nThought 1: t\nAction 1: Finish[yes]\n"
    prompts = {"webthink_simple6": "".join(shot.format(i) for i in range(6)), "other": "x"}
    (data / "react/prompts_naive.json").write_text(json.dumps(prompts), encoding="utf-8")
    write_mmlu(data / "mmlu", "quorum_lore")


def write_mmlu(folder: Path, subject: str, words: int = 1) -> None:
    for kind in ("dev", "test"):
        path = folder / kind / f"{subject}_{kind}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["question", "choice0", "choice1", "choice2", "choice3", "answer"])
            for i in range(10):
                rows.writerow([f"Quorum, {i}? " + "word " * words, "a", "b, c", "d", "e", i % 4])


# ------------------------------------------------------------------ how they are run


class Crowd(Backend):
    """Waits for `at_once` calls at the same time before it answers any; fails from `most` on."""

    name = "crowd"
    chat = None  # type: ignore[assignment]  # it has no roles

    def __init__(self, at_once: int, most: int = 10**9) -> None:
        self.at_once, self.most = at_once, most
        self.calls = 0
        self.cached: list[str] = []
        self._lock = threading.Lock()

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        with self._lock:
            self.calls += 1
            number = self.calls
        if number > self.most:
            raise RuntimeError(f"call {number}")
        while self.calls < self.at_once:
            await asyncio.sleep(0.001)
        return [Answer("x")]

    def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        raise NotImplementedError

    async def cache_prefix(self, context: Context) -> None:
        self.cached.append(context.text)


@sgl.function
def ask(s: sgl.ProgramState, shots: str, question: str) -> None:
    s += shots + question + sgl.gen("answer")


def workload_of(parallel: int) -> Workload:
    return Workload(
        "asking", "Asking", str, lambda data, count, scale: [], lambda state: [state["answer"]],
        paper=Size(1, 1), cpu=Size(1, 1), quick=Size(1, 1), parallel=parallel,
    )  # fmt: skip


def asking(count: int) -> list[Job]:
    programs = [ask.bind(shots=letter * 100) for letter in "ab"]
    return [Job(programs[i % 2], {"question": str(i)}) for i in range(count)]


def test_programs_run_at_the_same_time_up_to_a_bound() -> None:
    crowd = Crowd(at_once=4)
    run = workload_of(parallel=4).run(crowd, asking(8))  # would wait for ever with fewer
    assert [state.text() for state in run.states] == [
        letter * 100 + f"{i}x" for i, letter in enumerate("abababab")
    ]
    assert run.hit_rate is run.prompt_tokens is None  # this backend does not tell
    assert sorted(crowd.cached) == ["a" * 100, "b" * 100]  # of each program once


def test_one_at_a_time_sends_no_hints_of_a_batch() -> None:
    for workload, parallel in ((workload_of(1), None), (workload_of(8), 1), (workload_of(1), 8)):
        crowd = Crowd(at_once=1)
        run = workload.run(crowd, asking(3), parallel)
        assert not crowd.cached
        assert sum(run.latencies) <= run.seconds


def test_hints_of_a_batch_can_be_switched_off() -> None:
    crowd = Crowd(at_once=1)
    with switched({"enable_precache_with_tracing": False}):
        workload_of(4).run(crowd, asking(4))
    assert not crowd.cached and sgl.global_config.enable_precache_with_tracing


def test_a_program_that_fails_fails_the_run() -> None:
    with pytest.raises(RuntimeError, match="call "):
        workload_of(2).run(Crowd(at_once=1, most=3), asking(4))


def test_a_program_alone_has_no_use_for_a_hint() -> None:
    crowd = Crowd(at_once=2)
    workload_of(4).run(crowd, asking(2))  # of two programs
    assert not crowd.cached


def test_systems_start_with_nothing_cached(systems: tuple[System, System]) -> None:
    workload, (on, _) = WORKLOADS["mmlu"], systems
    jobs = workload.jobs(None, 1, LITTLE)
    assert on.run(workload, jobs).cached_tokens == on.run(workload, jobs).cached_tokens == 0
    assert isinstance(on.backend, EngineBackend)
    assert workload.run(on.backend, jobs).cached_tokens  # as would be otherwise
