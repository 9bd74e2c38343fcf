"""A whole engine on interpreted kernels whose decodes share prefixes: the tokens of one that does
not share."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisgl import Engine, SamplingParams
from minisgl.engine.model_runner import ModelRunner
from minisgl.kernels.dispatch import INTERPRETED
from scripts.make_tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")

PROMPTS = [[5, 90, 7, 200, 31, 8], [5, 90, 7, 200, 31, 9], [5, 90, 7, 44], [6, 7]]


def test_greedy_tokens_do_not_depend_on_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_tiny_model(tmp_path / "m", num_layers=1, vocab_size=300, hidden_size=32)
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (4, 4, 3, 4)]
    settings = {"dtype": "float32", "context_length": 16, "kv_tokens": 64}
    with Engine(str(path), **settings, shared_decode=False) as engine:
        expected = [c.token_ids for c in engine.generate(PROMPTS, params)]

    shared: list[tuple[list[int], list[int]]] = []
    batch = ModelRunner._batch

    def note(*args: object) -> object:
        result = batch(*args)  # type: ignore[arg-type]
        if result.decode_segments is not None:
            s = result.decode_segments
            shared.append((s.stops.tolist(), s.tails.tolist()))
        return result

    monkeypatch.setattr(ModelRunner, "_batch", note)
    with Engine(str(path), **settings) as engine:
        engine.loop.runner.min_saved = 1
        assert [c.token_ids for c in engine.generate(PROMPTS, params)] == expected
        engine.check()
    # Three steps decode: two with all four requests, one after the third request has ended.
    assert shared == [([3, 5], [5, 5, 3, 0])] * 2 + [([5], [5, 5, 0])]
