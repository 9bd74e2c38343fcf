"""`in_own_thread`: call something in a thread that ends with it.

On a CPU, PyTorch shares an operator among a team of OpenMP threads.  Each thread that calls
operators gets a team of its own, which lives as long as it does.  A team waits for its next
operator spinning, unless there are more threads in teams than cores: then it sleeps at once, and
must be woken for each of the thousand operators of a step, which takes longer than most of them.

So the engine thread's team is to be the only one: what comes before it, loading a model, runs in a
thread that ends; and callers' threads use numpy, which starts no team.

Memory that is freed stays with glibc, by threads: what a model leaves behind, the next one's thread
would not find.  So it is given back to the system before each call and after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(f: Callable[[], T]) -> T:
    """What `f` returns or raises.  Ctrl-C ends the wait; `f` then goes on to its own end."""
    done: Future[T] = Future()

    def work() -> None:
        _give_back_memory()
        try:
            result = f()
        except BaseException as error:  # the caller's to see, whatever it is
            done.set_exception(error)
        else:
            _give_back_memory()
            done.set_result(result)

    threading.Thread(target=work, name="minisgl-load", daemon=True).start()
    return done.result()


def _give_back_memory() -> None:
    """What nothing uses; other C libraries than glibc do it by themselves."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
