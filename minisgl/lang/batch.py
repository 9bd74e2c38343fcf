"""Many runs of one program at the same time.

A few threads run the functions, one after another; what their streams wait for waits in the
background.  So a batch sends all it can to the model at once, and the scheduler sees it together.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import Literal

from minisgl.lang.background import background
from minisgl.lang.program import ProgramCancelledError
from minisgl.lang.run import Run
from minisgl.lang.state import ProgramState
from minisgl.lang.waiting import until_done


def run_all(
    runs: Sequence[Run],
    *,
    num_threads: int | Literal["auto"] = "auto",
    progress_bar: bool = False,
    return_exceptions: bool = False,
) -> Iterator[ProgramState | BaseException]:
    """The state of each run, in their order, as soon as it and all before it are done.

    Everything starts with the first `next`.  When the iterator is left, whatever has not ended is
    ended, so no thread outlives it.

    Args:
        return_exceptions: give the exception of a run that failed in its place; otherwise the first
            is raised when all have ended.

    Raises:
        ValueError: `num_threads` is no number of threads.
    """
    pool = ThreadPoolExecutor(_count(num_threads, len(runs)), "minisgl-program")
    return _results(runs, pool, progress_bar=progress_bar, return_exceptions=return_exceptions)


def _results(
    runs: Sequence[Run], pool: ThreadPoolExecutor, *, progress_bar: bool, return_exceptions: bool
) -> Iterator[ProgramState | BaseException]:
    first_error: Exception | None = None
    futures: list[Future[None]] = []
    with background.hold():
        try:
            for run in runs:
                futures.append(pool.submit(run.execute))
            for i, (run, future) in enumerate(zip(runs, futures, strict=True)):
                error = _wait_for(run, future)
                if progress_bar:
                    _show_progress(i + 1, len(runs))
                if error is None:
                    yield run.state
                elif return_exceptions:
                    yield error
                elif first_error is None:
                    first_error = _with_number(error, i, len(runs))
            if first_error is not None:
                raise first_error
        finally:  # an error, Ctrl-C at any moment, or the reader has left
            pool.shutdown(wait=False, cancel_futures=True)
            for run, future in zip_longest(runs, futures):
                if future is None or not _is_over(run, future):
                    run.program.cancel(ProgramCancelledError("the batch was left"))
            pool.shutdown()


def _count(num_threads: int | str, runs: int) -> int:
    if num_threads == "auto":
        num_threads = max(96, 16 * (os.cpu_count() or 1))
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ValueError(f'num_threads={num_threads!r}: give a whole number above 0, or "auto"')
    return max(1, min(num_threads, runs))


def _is_over(run: Run, future: Future[None]) -> bool:
    return future.cancelled() or (future.done() and run.state.is_done())


def _wait_for(run: Run, future: Future[None]) -> Exception | None:
    try:
        until_done(future)
        future.result()
        run.wait()
    except Exception as error:
        return error
    return None


def _with_number(error: Exception, i: int, total: int) -> Exception:
    if sys.version_info >= (3, 11):
        error.add_note(f"run {i} of a batch of {total}; return_exceptions=True keeps the others")
    return error


def _show_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    with contextlib.suppress(OSError, ValueError):  # a closed stderr stops no batch
        sys.stderr.write(f"\r{done}/{total} programs{end}")
        sys.stderr.flush()
