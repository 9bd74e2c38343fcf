"""The trace: what it says is what happened, and the file opens whenever the engine ends."""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter, defaultdict
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl import Engine, SamplingParams
from minisgl.engine.answers import Answers
from minisgl.engine.engine import EngineError
from minisgl.engine.trace import Trace
from scripts.show.schedule import make_request, make_scheduler, simulate, tight

PROMPTS = ["Once upon a time", "What is the capital of France?", "What is the capital of Spain?"]
PARTS = ["schedule", "forward", "sample", "detokenize"]


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def steps(all_events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for e in all_events if e["ph"] == "X" and e["name"] not in PARTS]


def lives(all_events: list[dict[str, Any]]) -> dict[int, list[tuple[str, str]]]:
    """request id -> its begin and end events, by time and where that is equal by place."""
    found = defaultdict(list)
    for e in sorted((e for e in all_events if e["ph"] in "be"), key=lambda e: e["ts"]):
        assert e["cat"] == "request"
        found[e["id"]].append((e["ph"], e["name"]))
    return dict(found)


def phases(life: list[tuple[str, str]]) -> list[str]:
    """The phases of a life, each of which ends where the next begins, inside the request's own."""
    name = life[0][1]
    assert life[0] == ("b", name) and life[-1] == ("e", name) and name.startswith("request ")
    inner = life[1:-1]
    assert inner[::2] == [("b", phase) for _, phase in inner[1::2]]
    assert {ph for ph, _ in inner[1::2]} == {"e"}
    return [phase for _, phase in inner[::2]]


def test_a_trace_says_what_happened(tiny_model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with Engine(str(tiny_model_dir), kv_tokens=400, prefill_budget=8, trace=file) as engine:
        done = engine.generate(PROMPTS, greedy()) + engine.generate(PROMPTS[:1] * 2, greedy(3))
        stats = engine.stats()
    found = events(file)
    work = steps(found)

    assert len(work) == stats.steps
    assert [e["args"]["step"] for e in work] == list(range(1, len(work) + 1))
    for e in work:
        prefill, decode = e["args"]["prefill"], e["args"]["decode"]
        extended = sum(stop - start for start, stop in prefill.values())
        assert e["args"]["extended_tokens"] == extended
        assert len(decode) + extended <= 8
        name = "mixed" if prefill and decode else "prefill" if prefill else "decode"
        assert e["name"] == name
    assert {"prefill", "decode", "mixed"} == {e["name"] for e in work}
    # Every prompt token was found or computed, and every output token but a request's last.
    assert sum(e["args"]["cached_tokens"] for e in work) == sum(c.cached_tokens for c in done) > 0
    assert sum(e["args"]["extended_tokens"] for e in work) == sum(
        c.prompt_tokens - c.cached_tokens for c in done
    )
    decoded = Counter(i for e in work for i in e["args"]["decode"])
    assert decoded == {c.request_id: c.completion_tokens - 1 for c in done}

    assert {i: phases(life) for i, life in lives(found).items()} == {
        c.request_id: ["waiting", "prefill", "decode"] for c in done
    }
    begins = {(e["id"], e["name"].split()[0]): e["ts"] for e in found if e["ph"] == "b"}
    for c in done:  # it waits from its submission on, and decodes once it has a token
        request, waiting, prefill, decode = (
            begins[c.request_id, name] for name in ("request", "waiting", "prefill", "decode")
        )
        assert request == waiting < prefill
        mine = [e for e in work if str(c.request_id) in e["args"]["prefill"]]
        assert prefill == mine[0]["ts"]
        assert decode == pytest.approx(mine[-1]["ts"] + mine[-1]["dur"], abs=1e-4)
    ends = {e["id"]: e["args"] for e in found if e["ph"] == "e" and "args" in e}
    assert ends == {
        c.request_id: {
            "finish_reason": "length",
            "cached_tokens": c.cached_tokens,
            "output_tokens": c.completion_tokens,
        }
        for c in done
    }


def test_the_parts_of_a_step_fill_it_and_the_counters_add_up(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    with Engine(str(tiny_model_dir), kv_tokens=400, trace=str(file)) as engine:
        engine.generate(PROMPTS, greedy())
    found = events(file)
    parts = [e for e in found if e["ph"] == "X" and e["name"] in PARTS]
    for n, step in enumerate(steps(found)):
        mine = parts[4 * n : 4 * n + 4]
        assert [e["name"] for e in mine] == PARTS
        begins = [e["ts"] for e in mine] + [step["ts"] + step["dur"]]
        assert begins[0] == step["ts"]
        for e, stop in zip(mine, begins[1:], strict=True):
            assert e["dur"] >= 0 and e["ts"] + e["dur"] == pytest.approx(stop, abs=1e-4)
        assert (step["pid"], step["tid"]) == (mine[0]["pid"], mine[0]["tid"])  # so they nest
    counters = defaultdict(list)
    for e in found:
        if e["ph"] == "C":
            counters[e["name"]].append(e["args"])
    assert set(counters) == {"slots", "queue", "tokens"}
    assert all(sum(slots.values()) == 400 for slots in counters["slots"])
    assert counters["slots"][-1]["locked"] == counters["slots"][-1]["of requests"] == 0
    assert counters["queue"][-1] == {"waiting": 0, "prefilling": 0, "running": 0}
    assert max(queue["running"] for queue in counters["queue"]) == 3
    assert [e["args"]["name"] for e in found if e["ph"] == "M"] == ["minisgl", "engine"]


def test_a_retracted_request_waits_again(tiny_model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with Engine(str(tiny_model_dir), kv_tokens=100, trace=file) as engine:
        done = engine.generate([list(range(10, 26)), list(range(30, 46))], greedy(60))
        assert [c.completion_tokens for c in done] == [60, 60]
        retractions = engine.stats().retractions
    found = events(file)
    assert retractions >= 1
    assert sum(e["args"]["retractions"] for e in steps(found)) == retractions
    again = [phases(life) for life in lives(found).values()]
    assert sum(p.count("waiting") - 1 for p in again) == retractions
    assert all(p[-1] == "decode" for p in again)


@given(
    arrivals=st.dictionaries(
        st.integers(1, 12),
        st.lists(
            st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.integers(1, 40)),
            min_size=1,
            max_size=2,
        ),
        min_size=1,
        max_size=3,
    ),
    slots=st.integers(12, 60),
    budget=st.integers(1, 12),
    policy=st.sampled_from(["lpm", "dfs-weight", "fcfs", "random"]),
)
def test_whatever_the_scheduler_does_the_trace_adds_up(
    arrivals: dict[int, list[tuple[list[int], int]]], slots: int, budget: int, policy: str
) -> None:
    numbers = count()
    reqs = {
        at: [make_request(next(numbers), prompt, most) for prompt, most in arrivals[at]]
        for at in sorted(arrivals)
    }
    scheduler = make_scheduler(slots, prefill_budget=budget, policy=policy)
    with tempfile.TemporaryDirectory() as directory:
        trace = Trace(Path(directory) / "trace.json")
        simulate(scheduler, reqs, trace)
        trace.close()
        found = events(trace.path)
    told = {i: phases(life) for i, life in lives(found).items()}
    assert sorted(told) == list(range(next(numbers)))
    for life in told.values():
        assert life[0] == "waiting"
        for one, following in pairwise(life):
            assert (one, following) in {
                ("waiting", "prefill"), ("prefill", "decode"),
                ("prefill", "waiting"), ("decode", "waiting"),
            }  # fmt: skip
    returns = sum(life.count("waiting") - 1 for life in told.values())
    work = [step["args"] for step in steps(found)]
    assert returns == scheduler.retractions == sum(args["retractions"] for args in work)
    assert min(args["cached_tokens"] for args in work) >= 0
    if returns == 0:
        prompts = [req for batch in reqs.values() for req in batch]
        done = sum(args["cached_tokens"] + args["extended_tokens"] for args in work)
        assert done == sum(len(req.prompt_ids) for req in prompts)
        assert sum(a["cached_tokens"] for a in work) == sum(r.cached_tokens for r in prompts)
    for e in found:
        if e["ph"] == "C" and e["name"] == "slots":
            assert sum(e["args"].values()) == slots and min(e["args"].values()) >= 0


def test_a_retracted_request_is_cached_as_far_as_it_still_is(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.json")
    scheduler, arrivals = tight()
    simulate(scheduler, arrivals, trace)
    trace.close()
    work = [step["args"] for step in steps(events(trace.path))]
    assert {a["step"]: a["retractions"] for a in work if a["retractions"]} == {36: 1}
    # Its prompt was a node of its own and stayed; its answer made room.
    found = {a["step"]: (a["cached_tokens"], a["prefill"]) for a in work if a["prefill"]}
    assert found == {1: (0, {"1": [0, 16], "2": [0, 16]}), 61: (16, {"2": [16, 51]})}


def test_whoever_never_ran_is_in_the_trace_too(tiny_model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with Engine(str(tiny_model_dir), max_running=1, kv_tokens=400, trace=file) as engine:
        first = engine.submit(PROMPTS[0], greedy(100))
        waits = engine.submit(PROMPTS[1], greedy())
        waits.abort()
        assert waits.result().finish_reason == "abort"
        first.abort()
        first.result()
        with pytest.raises(ValueError, match="empty"):
            engine.submit([])
    found = lives(events(file))
    assert sorted(found) == [first.request_id, waits.request_id]
    assert phases(found[waits.request_id]) == ["waiting"]


def test_the_file_opens_before_the_end_and_after_a_death(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.json"
    with Engine(str(tiny_model_dir), trace=file) as engine:
        assert len(json.loads(file.read_text() + "]")) == 2  # the two names
        engine.generate(PROMPTS[0], greedy())
        engine.stats()  # so the step is over
        text = file.read_text()
        assert len(steps(json.loads(text + "]"))) == 8
        taken = threading.Event()

        def dies(self: Answers, *_: Any) -> None:
            taken.set()
            raise MemoryError("no room")

        monkeypatch.setattr(Answers, "take", dies)
        with pytest.raises(EngineError, match="no room"):
            engine.generate(PROMPTS[1], greedy())
        assert taken.is_set()
    found = events(file)  # closed: valid as it is
    assert file.read_text().startswith(text)
    ends = [e["args"]["finish_reason"] for e in found if e["ph"] == "e" and "args" in e]
    assert ends == ["length", "error"]


def test_closing_ends_the_life_lines_of_those_under_way(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    engine = Engine(str(tiny_model_dir), trace=file)
    handle = engine.submit(PROMPTS[0], greedy(400))
    next(handle)
    engine.close()
    engine.close()
    assert handle.is_done
    found = events(file)
    assert phases(lives(found)[handle.request_id])[-1] == "decode"
    assert found[-1]["args"]["finish_reason"] == "error"


def test_a_file_that_exists_is_replaced(tiny_model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text("something else")
    with Engine(str(tiny_model_dir), trace=file):
        pass
    assert len(events(file)) == 2


def test_a_path_that_cannot_be_written_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "trace.json", tmp_path):
        with pytest.raises(ValueError, match=f"trace='{path}' can't be written"):
            Engine("no such model", trace=str(path))
    for bad in (3, True, "", b"trace.json"):
        with pytest.raises(ValueError, match=r"trace=.* give the path of a file, or None"):
            Engine("no such model", trace=bad)


def test_a_disk_that_fails_ends_the_trace_and_nothing_else(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    with Engine(str(tiny_model_dir), dtype="float32", trace=file) as engine:
        before = engine.generate(PROMPTS[0], greedy()).token_ids
        engine.stats()
        file.unlink()
        file.mkdir()  # which nobody can append to
        with pytest.warns(UserWarning, match="the trace .* ends here"):
            assert engine.generate(PROMPTS[0], greedy()).token_ids == before
            engine.check()


def test_the_directory_may_change_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    trace = Trace("trace.json")
    monkeypatch.chdir(tmp_path / "elsewhere")
    trace.close()
    assert len(events(tmp_path / "trace.json")) == 2
