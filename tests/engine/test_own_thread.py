"""What is called in a thread of its own, and that the engine thread's team of threads is alone."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minisgl.engine.own_thread import in_own_thread
from tests.models.tiny_llava import make_tiny_llava


def test_what_it_returns_and_raises_is_the_callers() -> None:
    def fail() -> None:
        raise KeyError("no such weight")

    assert in_own_thread(threading.current_thread) is not threading.current_thread()
    with pytest.raises(KeyError, match="no such weight"):
        in_own_thread(fail)
    with pytest.raises(SystemExit):
        in_own_thread(sys.exit)


def test_the_thread_ends_with_it() -> None:
    thread = in_own_thread(threading.current_thread)
    thread.join(10)
    assert not thread.is_alive()


LOADS = """
import sys, threading
import torch
from minisgl.engine.own_thread import in_own_thread

def load():
    return [torch.ones(1 << 19) for _ in range(64)]  # 128 MiB

def memory():
    status = open("/proc/self/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024

torch.ones(1 << 22)  # 16 MiB, of which glibc learns to keep what is smaller
done, sizes = threading.Event(), []
for _ in range(6):
    weights = in_own_thread(load)
    sizes.append(memory())
    threading.Thread(target=lambda: (bytearray(99), done.wait())).start()  # takes the memory over
    del weights
done.set()
print(max(sizes) - sizes[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the memory")
def test_what_was_loaded_and_dropped_takes_no_memory() -> None:
    told = subprocess.run(
        [sys.executable, "-c", LOADS], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(told.stdout) < 64


PROGRAM = """
import os, sys
import numpy as np
import torch

def threads():
    return len(os.listdir("/proc/self/task"))

def work():
    torch.zeros(1 << 20).exp_()

torch.set_num_threads(3)
from minisgl import Engine, Prompt, SamplingParams

model, prompt, images = sys.argv[1], "Hello", None
if sys.argv[2] == "llava":
    prompt = Prompt("<image> Hello", images=[np.zeros((800, 600, 3), np.uint8)])
with Engine(model, kv_tokens=512) as engine:
    settings = SamplingParams(max_tokens=8, temperature=0.7, regex="[a-z ]+", seed=1)
    engine.generate(prompt, settings)
    before = threads()
    work()  # the caller's first: a team of two more threads, unless it has one
    print(threads() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
@pytest.mark.parametrize("kind", ["text", "llava"])
def test_a_caller_has_no_team_of_threads_for_what_the_engine_did(
    kind: str, default_model_dir: Path, tmp_path: Path
) -> None:
    model = default_model_dir
    if kind == "llava":  # of a size that PyTorch would share
        model = make_tiny_llava(tmp_path / "llava", image_size=336, patch_size=42)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), kind],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2"]
