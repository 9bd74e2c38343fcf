"""Engines with ranks over Gloo: the same answers as with one, and an end that everybody hears of.

Each starts real processes, so there are few of them here and each is asked much.  How each layer of
each model is split is tests/models/test_sharding.py's to say.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minisgl import Engine, EngineError, Prompt, SamplingParams
from minisgl.engine.ranks import ParallelModel
from minisgl.models.config import ModelConfig
from minisgl.models.linear import kv_heads_of
from minisgl.parallel import Parallel
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import LONG
from tests.engine.pictures import picture
from tests.models.tiny_llava import make_tiny_llava

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_tokens": 600, "max_running": 8}
TEXTS = ["hello world, this is", "hello world, that was", "one two three four five", "a"]
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=3)
SCORED = SamplingParams(max_tokens=0, prompt_logprobs_from=0, logprobs=3)


def answers(engine: Engine, prompts: list[Any]) -> tuple[list[list[int]], list[float]]:
    """Greedy tokens, and the log-probabilities of all tokens of prompts and answers."""
    done = engine.generate(prompts, GREEDY)
    told = [t for c in done for t in c.logprobs or ()]
    scored = engine.generate([p for p in prompts if isinstance(p, str)], SCORED)
    told += [t for c in scored for t in c.prompt_logprobs or () if t is not None]
    numbers = [x for t in told for x in (t.logprob, *(lp for _, lp in t.top))]
    return [c.token_ids for c in done], numbers


@contextmanager
def engine_of(path: Path, **settings: Any) -> Iterator[Engine]:
    with Engine(str(path), **{**SETTINGS, **settings}) as engine:
        yield engine
        engine.loop.call(engine.loop.check)


def parallel_model(engine: Engine) -> ParallelModel:
    model = engine.loop.runner.model
    assert isinstance(model, ParallelModel)
    return model


def processes(engine: Engine) -> list[subprocess.Popen[str]]:
    return parallel_model(engine).ranks._processes


@pytest.mark.parametrize(("name", "size"), [("llama", 4), ("llava", 2)])
def test_ranks_compute_what_one_computes(name: str, size: int, tmp_path: Path) -> None:
    make = make_tiny_llava if name == "llava" else make_tiny_model
    path = make(tmp_path / "model")
    prompts: list[Any] = [*TEXTS]
    if name == "llava":
        prompts += [Prompt(f"<image> {text}", [picture(seed)]) for seed, text in enumerate(TEXTS)]
    with engine_of(path) as engine:
        tokens, numbers = answers(engine, prompts)
    with engine_of(path, tp_size=size) as engine:
        got_tokens, got_numbers = answers(engine, prompts)
        again = engine.generate(prompts, GREEDY)  # from the cache, by slots the ranks remember
        assert [c.token_ids for c in again] == tokens == got_tokens
        assert sum(c.cached_tokens for c in again) > 0
        assert got_numbers == pytest.approx(numbers, abs=1e-4)
        images = sum(isinstance(p, Prompt) for p in prompts)
        features = images * 16 * engine.model_config.hidden_size  # each is sent once
        assert parallel_model(engine).ranks.parallel.traffic.broadcast == features * 4
        started = processes(engine)
    assert [p.returncode for p in started] == [0] * (size - 1)


def test_ranks_that_see_others_end_first_end_as_well(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told by its standard input; the last to be told has seen the others' ends."""
    with engine_of(tiny_model_dir, tp_size=4) as engine:
        started = processes(engine)
        for process in started:
            stdin: Any = process.stdin

            def close(close: Callable[[], None] = stdin.close, process: Any = process) -> None:
                close()
                process.wait(10)
                time.sleep(0.5)  # in which the others notice

            monkeypatch.setattr(process, "stdin", SimpleNamespace(close=close))
    assert [p.returncode for p in started] == [0, 0, 0]


def test_pressure_chunks_and_shared_prefixes(tiny_model_dir: Path) -> None:
    """Retraction and chunks move slots about, and branches share segments: all by the journal."""
    settings = {"kv_tokens": 120, "prefill_budget": 16, "max_running": 6}
    prompts = [" ".join(["the same beginning of"] * 3) + f" {i}" for i in range(8)]
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    with engine_of(tiny_model_dir, **settings) as engine:
        want = [c.token_ids for c in engine.generate(prompts, params)]
    with engine_of(tiny_model_dir, **settings, tp_size=2) as engine:
        for _ in range(2):
            assert [c.token_ids for c in engine.generate(prompts, params)] == want
        assert engine.stats().retractions > 0


def test_traffic_is_what_the_formula_says(tiny_model_dir: Path) -> None:
    """docs/scaling.md: per token two sums in each layer and one of the embedding, but in the last
    layer per row of logits; per such row a part of the vocabulary."""
    with engine_of(tiny_model_dir, tp_size=2) as engine:
        traffic = parallel_model(engine).ranks.parallel.traffic
        c: ModelConfig = engine.model_config
        engine.generate(
            [1, 2, 3, 4, 5], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        )
        tokens, rows = 5 + 3, 4  # the last token is never computed with
        sums = tokens * (2 * c.num_layers - 1) + rows * 2
        assert traffic.all_reduce == sums * c.hidden_size * 4
        assert traffic.all_gather == rows * -(-c.vocab_size // 2) * 4
        with pytest.raises(ValueError, match="one engine of a process at a time"):
            Engine(str(tiny_model_dir), tp_size=2, kv_tokens=100)


def test_a_rank_that_dies_ends_the_engine_with_its_reason(tiny_model_dir: Path) -> None:
    with Engine(str(tiny_model_dir), **SETTINGS, tp_size=4) as engine:
        assert engine.generate("hello", GREEDY).token_ids
        started = processes(engine)
        handles = [engine.submit("hello", SamplingParams(max_tokens=400)) for _ in range(3)]
        next(iter(handles[0]))
        os.kill(started[1].pid, signal.SIGKILL)
        for handle in handles:
            with pytest.raises(EngineError, match="rank 2 was ended by signal 9"):
                handle.result()
        with pytest.raises(EngineError, match="rank 2 was ended by signal 9"):
            engine.generate("hello", GREEDY)
        engine.loop._thread.join(LONG)
        assert all(p.returncode is not None for p in started)


def test_what_rank_0_computes_wrong_is_not_blamed_on_the_others(tiny_model_dir: Path) -> None:
    with Engine(str(tiny_model_dir), **SETTINGS, tp_size=2) as engine:
        started, model = processes(engine), parallel_model(engine)

        def net(batch: Any) -> Any:
            raise RuntimeError("a kernel failed")

        engine.call(lambda: setattr(model, "net", net))
        with pytest.raises(EngineError, match="RuntimeError: a kernel failed"):
            engine.generate("hello", GREEDY)
        engine.loop._thread.join(LONG)
        assert all(p.returncode is not None for p in started)


def test_ranks_end_with_a_process_that_is_killed(tiny_model_dir: Path) -> None:
    code = f"""
import sys
import time
from minisgl import Engine
engine = Engine({str(tiny_model_dir)!r}, tp_size=2, kv_tokens=100)
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        process.wait()
        # The rank holds a copy of standard output until it ends.
        assert process.stdout.read() == b""


def test_under_torchrun(tiny_model_dir: Path) -> None:
    code = f"""
from minisgl import Engine, SamplingParams, EngineConfig
from minisgl.engine.tp_worker import work_under_torchrun
import os
settings = dict(model={str(tiny_model_dir)!r}, tp_size=2, dtype="float32", kv_tokens=100)
if os.environ["RANK"] == "0":
    with Engine(**settings) as engine:
        print(engine.generate("hello", SamplingParams(max_tokens=5, temperature=0)).token_ids)
else:
    work_under_torchrun(EngineConfig.make(**settings))
"""
    with engine_of(tiny_model_dir) as engine:
        want = engine.generate("hello", SamplingParams(max_tokens=5, temperature=0)).token_ids
    script = tiny_model_dir.parent / "under_torchrun.py"
    script.write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*torchrun, script],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=4 * LONG, check=False,
    )  # fmt: skip
    assert run.stdout.splitlines()[-1:] == [str(want)], run.stderr


class TestRefusals:
    def test_heads_that_do_not_go_up(self) -> None:
        """G4."""
        assert kv_heads_of(4, Parallel(0, 8)) == 1
        with pytest.raises(ValueError, match="6 KV heads can be neither split over nor replicated"):
            kv_heads_of(6, Parallel(0, 4))
        with pytest.raises(ValueError, match="25 attention heads can't be split over 2"):
            Parallel(0, 2).split(25, "attention heads")

    def test_a_model_that_can_not_be_split_is_refused_at_load(self, tiny_model_dir: Path) -> None:
        with pytest.raises(ValueError, match="4 attention heads can't be split over 3"):
            Engine(str(tiny_model_dir), tp_size=3, kv_tokens=100)
        with engine_of(tiny_model_dir) as engine:  # nothing is left behind
            assert engine.generate("hello", GREEDY).token_ids

    @pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"])
    def test_no_number_of_ranks(self, size: Any, tiny_model_dir: Path) -> None:
        with pytest.raises(ValueError, match=r"tp_size=.*give a whole number of at least 1"):
            Engine(str(tiny_model_dir), tp_size=size)

    def test_torchrun_started_another_number(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(ValueError, match="tp_size=2, but torchrun started 4 processes"):
            Engine(str(tiny_model_dir), tp_size=2, kv_tokens=100)

    def test_only_rank_0_of_torchrun_has_an_engine(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(ValueError, match="this is rank 1 of torchrun's"):
            Engine(str(tiny_model_dir), tp_size=2, kv_tokens=100)

    def test_a_rank_that_can_not_start_says_why(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", "/nowhere")
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(EngineError, match="rank 1 ended with exit code 1"):
            Engine(str(tiny_model_dir), tp_size=2, kv_tokens=100)
