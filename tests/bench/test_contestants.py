"""The engines whose decode speed is compared: they answer alike, and each says when its decode
begins, in the same call."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.bench import generate, moe
from scripts.bench.contestants import KINDS, Begun, Contestant, Generator, Ids, answer
from scripts.make_tiny_model import make_tiny_model

IDS = [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
NEW = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("contestants") / "tiny")


def test_each_answers_alike_and_says_when_every_prompt_has_a_token(model: Path) -> None:
    answers: dict[str, Ids] = {}
    for name in ("minisgl", "linear-layers", "transformers"):
        engine: Generator = KINDS[name](str(model), "float32")
        begun: list[int] = []
        answers[name] = engine.generate(IDS, NEW, begun.append)
        (tokens,) = begun
        most = NEW if name == "minisgl" else 1  # it goes on while its caller looks
        assert len(IDS) <= tokens <= len(IDS) * most
        begun.clear()
        engine.generate(IDS, 1, begun.append)
        assert begun == [len(IDS)]
    assert answers["minisgl"] == answers["transformers"]
    assert [len(each) for each in answers["minisgl"]] == [NEW] * len(IDS)


class Clock:
    """A generator that takes the time it is told to: prefill, then each further token."""

    def __init__(self, prefill: float, token: float, clocks: dict[str, float]) -> None:
        self.prefill, self.token, self.clocks = prefill, token, clocks

    def generate(self, ids: Ids, new: int, begun: Begun) -> Ids:
        self.clocks["now"] += self.prefill
        begun(len(ids) + 2)  # two went on while the others waited
        self.clocks["now"] += self.token * (new - 1)
        return [[0] * new for _ in ids]


def test_decode_begins_where_prefill_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a prefill takes this time, what is counted is the rest."""
    clocks = {"now": 0.0}
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(f"scripts.bench.contestants.time.{name}", lambda: clocks["now"])
    for prefill in (0.5, 64.0):
        told = answer(Clock(prefill, 0.25, clocks), IDS, NEW)
        assert told == {
            "seconds": prefill + 1.0,
            "processor": prefill + 1.0,
            "ids": [[0] * NEW] * 3,
            "decode": {"tokens": 3 * NEW - 5, "seconds": 1.0, "processor": 1.0},
        }


def test_speeds_come_from_the_process(model: Path) -> None:
    """From its answers, by the clock that is asked for."""
    engine = Contestant("minisgl", model, sys.executable, "float32")
    try:
        told = engine.ask(ids=IDS, new=NEW)
        assert 0 <= told["decode"]["seconds"] < told["seconds"]
        assert generate.prefill_speed(engine, IDS) > 0
        engine.ask = lambda **request: {  # type: ignore[method-assign]
            "decode": {"tokens": request["new"], "seconds": 4.0, "processor": 2.0}
        }
        assert generate.decode_speed(engine, IDS) == generate.NEW / 4.0
        assert moe.decode_speed(engine, IDS, "processor") == moe.NEW / 2.0
    finally:
        engine.close()
