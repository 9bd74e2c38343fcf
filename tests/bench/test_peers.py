"""Peers: other systems that programs run on.  The one that is always here is `transformers`, and in
float32 it answers as our engine does; what goes wrong in its process reaches the program."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import minisgl.lang as sgl
from minisgl import Engine
from minisgl.lang.backends.base import Backend
from scripts.bench.fsm import HARRY_POTTER
from scripts.bench.peers import SYSTEMS, open_peer
from scripts.bench.peers.backend import PeerBackend
from scripts.bench.peers.gbnf import gbnf
from scripts.bench.peers.process import PeerError
from scripts.bench.peers.transformers import batches
from scripts.bench.workloads.json_decoding import FACTS
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import fp32

LONG = 600.0  # seconds; nothing here waits for their end
PROMPTS = [
    "The capital of France is",
    "A radix tree",
    "Once upon a time there was a small engine that read its own code, and understood it. " * 3,
]
CHOICES = [" Paris", " a small engine", " Pa"]
PATTERN = r'\{"town": "[A-Z][a-z]{2,8}", "is_big": (true|false), "year": [0-9]{4}\}'
# NAME=PYTHON of peers in environments of their own, parted by spaces; see scripts/bench/peers.
ELSEWHERE = dict(each.split("=", 1) for each in os.environ.get("MINISGL_PEERS", "").split())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("peers") / "tiny", add_bos=True)


@pytest.fixture(scope="module")
def ours(model: Path) -> Iterator[Engine]:
    with fp32(str(model)) as engine:
        yield engine


@pytest.fixture(scope="module")
def opened(model: Path) -> Iterator[PeerBackend]:
    with open_peer("transformers", model, dtype="float32", device="cpu") as peer:
        yield peer


@pytest.fixture
def peer(opened: PeerBackend) -> PeerBackend:
    opened.linger, opened.most, opened.free_tokens = 0.0, 64, None
    opened.waves.clear()
    return opened


@sgl.function
def complete(
    s: sgl.ProgramState, prompt: str, tokens: int, stop: str | None = None, regex: str | None = None
) -> None:
    s += prompt + sgl.gen("x", max_tokens=tokens, stop=stop, regex=regex)


@sgl.function
def talk(s: sgl.ProgramState) -> None:
    s += sgl.system("Be brief.")
    for name, question in (("a", "What is the capital of France?"), ("b", "And of Spain?")):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen(name, max_tokens=8))


@sgl.function
def choose(s: sgl.ProgramState, prompt: str, method: sgl.ChoicesSamplingMethod) -> None:
    s += prompt + sgl.select("x", CHOICES, choices_method=method)


def asked(prompt: str = PROMPTS[0], tokens: int = 4, **rest: str) -> dict[str, object]:
    return {"prompt": prompt, "tokens": tokens, **rest}


class TestTransformers:
    def test_answers_as_our_engine_each_row_by_its_own_length(
        self, ours: Engine, peer: PeerBackend
    ) -> None:
        asks = [asked(prompt, 5 + 3 * i) for i, prompt in enumerate(PROMPTS)]
        here, there = (
            complete.run_batch(asks, backend=backend, temperature=0, ignore_eos=True)
            for backend in (ours, peer)
        )
        for i, (a, b) in enumerate(zip(here, there, strict=True)):
            assert a.text() == b.text()
            counted = [state.get_meta_info("x") for state in (a, b)]
            assert counted[0]["prompt_tokens"] == counted[1]["prompt_tokens"]  # BOS and all
            assert [meta["completion_tokens"] for meta in counted] == [5 + 3 * i] * 2
            assert counted[1]["finish_reason"] == {"type": "length", "length": 5 + 3 * i}

    def test_stop_strings(self, ours: Engine, peer: PeerBackend) -> None:
        free = complete.run(**asked(tokens=12), backend=ours, temperature=0)["x"]
        stop = free[len(free) // 2 :][:2]
        assert stop.strip()
        here, there = (
            complete.run(**asked(tokens=12, stop=stop), backend=backend, temperature=0)
            for backend in (ours, peer)
        )
        assert here["x"] == there["x"] == free[: free.index(stop)]
        reason = {"type": "stop", "matched": stop}
        assert here.get_meta_info("x")["finish_reason"] == reason
        assert there.get_meta_info("x")["finish_reason"] == reason
        assert there.get_meta_info("x")["completion_tokens"] < 12  # it did stop, and was not cut

    def test_conversations_are_laid_out_alike(self, ours: Engine, peer: PeerBackend) -> None:
        here, there = (talk.run(backend=backend, temperature=0) for backend in (ours, peer))
        assert here.text() == there.text()
        assert "<|im_start|>user\nAnd of Spain?" in there.text()

    @pytest.mark.parametrize("name", ["token_length_normalized", "greedy_token_selection",
                                      "unconditional_likelihood_normalized"])  # fmt: skip
    def test_select(self, ours: Engine, peer: PeerBackend, name: str) -> None:
        method = getattr(sgl, name)
        asks = [{"prompt": prompt, "method": method} for prompt in PROMPTS]
        here, there = (
            choose.run_batch(asks, backend=backend, temperature=0) for backend in (ours, peer)
        )
        for a, b in zip(here, there, strict=True):
            assert a["x"] == b["x"]
            told = [state.get_meta_info("x")["input_token_logprobs"] for state in (a, b)]
            for ours_of, theirs_of in zip(*told, strict=True):
                assert [token[1:] for token in ours_of] == [token[1:] for token in theirs_of]
                assert [token[0] for token in ours_of] == pytest.approx(
                    [token[0] for token in theirs_of], abs=1e-3
                )

    def test_no_row_is_mostly_padding(self) -> None:
        lengths = [3, 100, 60, 2, 40, 9000, 8000]
        together = list(batches([[0] * n for n in lengths]))
        assert [[lengths[i] for i in batch] for batch in together] == [
            [9000], [8000], [100, 60], [40], [3, 2],
        ]  # fmt: skip


class TestGbnf:
    @staticmethod
    def as_regex(grammar: str) -> str:
        """A grammar of one rule as a pattern again: strings are the only difference."""
        parts = re.findall(r'"[^"]*"|\[[^\]]*\]|\{[^}]*\}|[()|]', grammar.removeprefix("root ::= "))
        return "".join(
            re.escape(part[1:-1].encode().decode("unicode_escape")) if part[0] == '"' else part
            for part in parts
        )

    @pytest.mark.parametrize(
        ("pattern", "matches", "others"),
        [
            (PATTERN, ['{"town": "Ostra", "is_big": true, "year": 1200}'], ["{}", ""]),
            (r"(yes|no|maybe)?", ["", "yes", "no", "maybe"], ["yesno", "y"]),
            (r"[^\]\"a-c]+\.", ["xd.", "é\n."], ["].", "ad.", "."]),
            (r"(ab|c\d){2,3}x*", ["abab", "c1abc2xx"], ["ab", "abababab"]),
            (r"[\w\d\s]{1,4}-?.", ["a é-x", "_\n!"], ["-", "a-\n"]),
            (r"\u4e00{2}[\u4e00-\u9fa5]", ["\u4e00\u4e00\u9fa5"], ["\u4e00\u4e00"]),
        ],
    )
    def test_is_the_same_language(
        self, pattern: str, matches: list[str], others: list[str]
    ) -> None:
        again = self.as_regex(gbnf(pattern))
        for text in (*matches, *others):
            assert bool(re.fullmatch(pattern, text)) == (text in matches)
            assert bool(re.fullmatch(again, text)) == (text in matches), again

    @pytest.mark.parametrize("pattern", [HARRY_POTTER, FACTS])
    def test_knows_the_workloads_patterns(self, pattern: str) -> None:
        assert re.compile(self.as_regex(gbnf(pattern)))

    @pytest.mark.parametrize("pattern", ["^a", r"(a)\1", "(?=a)b", r"[\W]"])
    def test_what_it_has_not_is_refused(self, pattern: str) -> None:
        with pytest.raises(ValueError, match=r"llama\.cpp's grammars have no such"):
            gbnf(pattern)


class TestWaves:
    def test_two_programs_requests_go_together(self, peer: PeerBackend) -> None:
        peer.linger, peer.most = LONG, 2
        complete.run_batch([asked()] * 2, backend=peer, num_threads=2, temperature=0)
        assert peer.waves == [2]

    def test_one_alone_waits_for_nobody_else(self, peer: PeerBackend) -> None:
        complete.run(**asked(), backend=peer, temperature=0)
        assert peer.waves == [1]


class TestErrors:
    def test_what_a_peer_has_not_is_refused_before_the_call(self, peer: PeerBackend) -> None:
        pattern = asked(regex="[0-9]+")
        with pytest.raises(ValueError, match="transformers has no patterns"):
            complete.run(**pattern, backend=peer, temperature=0).text()
        with pytest.raises(ValueError, match=r"temperature=1\.0: peers decode greedily"):
            complete.run(**asked(), backend=peer).text()
        with pytest.raises(ValueError, match="min_tokens=2: a peer is only asked for"):
            complete.run(**asked(), backend=peer, temperature=0, min_tokens=2).text()
        assert peer.waves == []

    def test_free_text_in_place_of_a_pattern(self, peer: PeerBackend) -> None:
        peer.free_tokens = 7
        state = complete.run(**asked(regex="[0-9]+"), backend=peer, temperature=0)
        assert state.get_meta_info("x")["completion_tokens"] == 7

    def test_its_error_reaches_the_program_and_the_next_one_is_served(
        self, peer: PeerBackend
    ) -> None:
        with pytest.raises(PeerError, match=r"transformers: \w*Error"):
            complete.run(**asked(prompt="half a pair: \ud800"), backend=peer, temperature=0).text()
        assert complete.run(**asked(), backend=peer, temperature=0)["x"]

    def test_one_that_dies_is_said_so_at_once(self, model: Path) -> None:
        with open_peer("transformers", model, dtype="float32", device="cpu") as peer:
            child = peer._process._process
            child.send_signal(signal.SIGSTOP)  # so that it can't answer before it is killed
            state = complete.run(**asked(), backend=peer, temperature=0, stream=True)
            child.kill()
            with pytest.raises(PeerError, match="process of transformers ended with -9"):
                state.text()
            with pytest.raises(PeerError, match="ended with -9"):
                complete.run(**asked(), backend=peer, temperature=0).text()
        with pytest.raises(PeerError, match="is closed"):
            complete.run(**asked(), backend=peer, temperature=0).text()

    def test_one_that_can_not_start(self, model: Path, tmp_path: Path) -> None:
        bare = tmp_path / "python"  # of an environment that has nothing
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        with pytest.raises(PeerError, match=r"ended with 1; it said: [^$]*No module named 'torch'"):
            open_peer("transformers", model, str(bare))
        with pytest.raises(PeerError, match="can't start /nowhere/python"):
            open_peer("transformers", model, "/nowhere/python")
        with pytest.raises(ValueError, match=r"peer 'lmql': there are transformers, .*"):
            open_peer("lmql", model)
        with pytest.raises(ValueError, match="dtype='float7': give auto, float32"):
            open_peer("transformers", model, dtype="float7")
        with pytest.raises(ValueError, match="device='tpu': give auto, cpu or cuda"):
            open_peer("transformers", model, device="tpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SYSTEMS if name in ELSEWHERE] or [None])
def test_others_answer_as_our_engine(name: str | None, default_model_dir: Path) -> None:
    """Nearly: each multiplies its own way, and a near-tie decides otherwise now and then."""
    if name is None:
        pytest.skip("MINISGL_PEERS names no peer")
    asks = [asked(f"{i + 1}. A town, as JSON: ", 48, regex=PATTERN) for i in range(3)]
    with (
        fp32() as ours,
        open_peer(name, python=ELSEWHERE[name], dtype="float32", device="cpu") as peer,
    ):
        peer.linger = 0.5

        def both(*batches: Callable[[Backend | Engine], Sequence[str]]) -> int:
            """How many of the answers are the same."""
            pairs = [pair for b in batches for pair in zip(b(ours), b(peer), strict=True)]
            return sum(a == b for a, b in pairs)

        def free(backend: Backend | Engine) -> Sequence[str]:
            states = complete.run_batch(
                [asked(p, 12) for p in PROMPTS], backend=backend, temperature=0, ignore_eos=True
            )
            return [state["x"] for state in states]

        def stopped(backend: Backend | Engine) -> Sequence[str]:
            states = complete.run_batch(
                [asked(p, 24, stop=" the") for p in PROMPTS], backend=backend, temperature=0
            )
            assert all(" the" not in state["x"] for state in states)
            return [state["x"] for state in states]

        def patterned(backend: Backend | Engine) -> Sequence[str]:
            states = complete.run_batch(asks, backend=backend, temperature=0)
            assert all(re.fullmatch(PATTERN, state["x"]) for state in states)
            return [state["x"] for state in states]

        def spoken(backend: Backend | Engine) -> Sequence[str]:
            return [talk.run(backend=backend, temperature=0).text()]

        def selected(backend: Backend | Engine) -> Sequence[str]:
            method = sgl.greedy_token_selection
            asks = [{"prompt": prompt, "method": method} for prompt in PROMPTS]
            states = choose.run_batch(asks, backend=backend, temperature=0)
            return [state["x"] for state in states]

        assert both(free, stopped, spoken) >= 6  # of 7
        if "regex" in peer.features:
            assert both(patterned) >= 2  # of 3
        if {"score", "choose"} & set(peer.features):
            assert both(selected) == 3
        assert peer.flush_cache()
