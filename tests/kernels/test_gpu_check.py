"""The GPU check as far as a CPU can run it: its command line, its inputs, its judgement."""

import json
import os
import subprocess
import time
from dataclasses import replace

import pytest
import torch

from scripts import gpu_check, gpu_graphs
from scripts.gpu_measure import GOALS, Log, compare
from scripts.gpu_process import run_within
from scripts.kernel_inputs import TINY, TINY_MIXTRAL, TINY_TOWER, Case, Maker
from scripts.kernel_lists import edge_cases, model_cases, speed_cases

TINY_MODELS = [TINY, TINY_MIXTRAL, TINY_TOWER]
SMALL = {"prompt": 20, "requests": 2, "batch": 3}
SMALL_EDGES = {"tokens": 80, "pool_elements": 2**12, "vocab": 300, "logits": 900}
KERNELS = {*GOALS, "adjust_logits"}  # it changes a few numbers: there is nothing to time

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the kernels have their own tests when interpreted", allow_module_level=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert gpu_check.main(["--out", str(tmp_path)]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_command_line(capsys):
    options = gpu_check.parser().parse_args(["--phase", "edges", "speed", "--dtype", "fp16"])
    assert (options.phase, options.dtype) == (["edges", "speed"], ["fp16"])
    with pytest.raises(SystemExit):
        gpu_check.parser().parse_args(["--phase", "nonsense"])
    with pytest.raises(SystemExit) as help_exit:
        gpu_check.parser().parse_args(["--help"])
    assert help_exit.value.code == 0
    assert "--phase" in capsys.readouterr().out


def test_correctness_and_edges_pass_at_tiny_size(tmp_path):
    log = Log(tmp_path)
    gpu_check.correctness(log, "cpu", TINY_MODELS, [torch.bfloat16], **SMALL)
    gpu_check.edges(log, "cpu", torch.bfloat16, **SMALL_EDGES)
    assert log.failed == []
    written = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert written == log.rows
    names = {row["name"].split()[2] for row in written if row["phase"] == "correctness"}
    assert names == KERNELS


def test_speed_inputs_build_and_run():
    make, sizes = Maker(torch.float32), {"tokens": 32, "length": 16, "batch": 4}
    cases = [c for model in TINY_MODELS for c in speed_cases(make, model, **sizes)]
    assert {case.kernel for case in cases} == set(GOALS)
    for case in cases:
        case.run()
        if case.baseline is not None:
            case.baseline()
        if case.with_blocks is not None:
            case.with_blocks({})()
        assert case.bytes > 0


def test_an_empty_machine_needs_no_values():
    make = Maker(torch.bfloat16, values=False)
    assert {c.kernel for model in TINY_MODELS for c in model_cases(make, model, **SMALL)} == KERNELS
    edges = {case.kernel for case in edge_cases(make, **SMALL_EDGES)}
    assert {"linear", "moe", "kv_store", "extend_attention", "decode_attention", "sample"} <= edges


def constant_case(outputs: list[torch.Tensor], expected: torch.Tensor, **options) -> Case:
    turn = iter(outputs)
    return Case(
        "rms_norm",
        "constant",
        run=lambda: None,
        result=lambda: (next(turn),),
        reference=lambda: (expected,),
        bytes=1,
        **options,
    )


def test_compare_sees_each_fault():
    x, dtype = torch.ones(64), torch.float32
    nan = x.clone().fill_(float("nan"))
    assert compare(constant_case([x, x], x), dtype)["ok"]
    assert not compare(constant_case([x, x], x * 1.001), dtype)["ok"]
    assert not compare(constant_case([x, x + 1e-6], x), dtype)["ok"]
    assert not compare(constant_case([nan, nan], x), dtype)["ok"]
    assert compare(constant_case([nan, nan], nan, exact=True), dtype)["ok"]
    assert not compare(constant_case([x, x], nan, exact=True), dtype)["ok"]
    n = torch.arange(2**20, dtype=torch.int32)
    one_off = n.clone()
    one_off[7] += 1
    assert compare(constant_case([n, n], n), dtype)["ok"]
    assert not compare(constant_case([one_off, one_off], n), dtype)["ok"]


def test_a_failure_is_recorded_and_the_rest_runs(tmp_path, capsys):
    log = Log(tmp_path)

    def broken() -> dict:
        raise ValueError("no such thing")

    log.attempt("machine", "first", broken)
    log.attempt("machine", "second", lambda: {"ok": True})
    assert [row["name"] for row in log.failed] == ["first"]
    assert "ValueError: no such thing" in gpu_check.summary(log)
    assert "2 results, 1 failed" in gpu_check.summary(log)


def test_the_engine_phase_compares_tokens(tmp_path):
    log = Log(tmp_path)
    gpu_check.engine(log, device="cpu")
    assert log.failed == []
    assert [row["tokens"] for row in log.rows] == [4 * 24, 4 * 24, 16 + 8 * 7 + 5 * 4]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.slow
def test_a_phase_runs_in_a_process_and_its_end_is_recorded(tmp_path, capfd):
    log = Log(tmp_path)
    options = gpu_check.parser().parse_args(["--out", str(tmp_path)])
    gpu_check._in_a_process(log, "engine", options, 100)  # no GPU: it ends with code 2
    gpu_check._in_a_process(log, "engine", options, 0.1)
    gpu_check._in_a_process(log, "engine", options, -3.0)
    log.read()
    assert [row.get("exit_code") for row in log.failed] == [2, None]
    assert log.failed[1]["timeout_s"] == 0
    assert log.rows[2]["skipped"] == "no time is left"


def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path):
    mark = tmp_path / "mark"
    child = f"sleep 2 && touch {mark}"
    with pytest.raises(subprocess.TimeoutExpired):
        run_within(0.5, ["sh", "-c", f"sh -c '{child}' & wait"])
    assert run_within(9, ["sh", "-c", "echo yes; exit 3"], quiet=True) == (3, "yes\n")
    time.sleep(2)
    assert not mark.exists()


@pytest.fixture(scope="module")
def decoder():
    """The step is run anew instead of replayed; 20 requests, so that both kinds of tiles occur."""
    return gpu_graphs.decoder(
        TINY, torch.float32, "cpu", most=20, context=24, capture=lambda step: step
    )


def test_graphs_that_replay_nothing_are_seen(decoder, monkeypatch):
    stale = [replace(graph, replay=lambda: None) for graph in decoder.graphs.graphs]
    monkeypatch.setattr(decoder.graphs, "graphs", stale)
    result = gpu_graphs.equality(decoder)
    assert not result["ok"]
    assert "1 from length 1" in result["wrong"][0]


def test_an_answer_that_depends_on_its_company_is_seen():
    class Nosy:
        sizes, device = [20], torch.device("cpu")

        def __init__(self, *disturbing):
            self.disturbing = disturbing

        def decode(self, ids, positions, rows):
            return torch.tensor(rows)[:, None] + 1.0 + (len(ids) in self.disturbing)

    def judge(*disturbing):
        row = gpu_graphs.invariance(gpu_graphs.Decoder(Nosy(*disturbing), 24))
        return row["ok"], row["few"], row["many"]

    assert judge() == (True, True, True)
    assert judge(7) == (False, False, True)
    assert judge(18) == (False, True, False)
    assert judge(*range(17, 21)) == (True, True, True)


def test_a_step_that_reads_padding_is_seen(decoder, monkeypatch):
    table = decoder.graphs.table.clone()
    table[1, 3] = decoder.graphs.pool.padding_slot  # row 1 is first asked for positions 0 and 8
    monkeypatch.setattr(decoder.graphs, "table", table)
    assert gpu_graphs.equality(decoder)["wrong"][0] == "1 from length 9: not finite"


def test_the_graphs_phase(tmp_path):
    log = Log(tmp_path)
    gpu_graphs.graphs(
        log, "cpu", [TINY, TINY_MIXTRAL], 1e9, most=5, context=12, capture=lambda step: step
    )
    names = [row["name"] for row in log.rows]
    assert names[:3] == ["tiny capture", "tiny replay == eager", "tiny invariance"]
    # On a CPU another batch size may round otherwise: here only the rest must succeed.
    assert {row["name"] for row in log.failed} <= set(names[1:3])
    assert not any("error" in row for row in log.rows)
    steps = [row["floor_us"] for row in log.rows if " step " in row["name"]]
    assert len(steps) == 6 and min(steps) > 0
