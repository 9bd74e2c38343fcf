"""As much of Ray as minisgl/router/ray_workers.py uses, for tests where Ray is not installed.

Its hosts are loopback addresses of this machine.  Its actors are real processes, each in the
resources of one host: they can be killed, wait for room, fail when they are made and raise in what
they are asked, and everything that goes to them and comes back is pickled.  test_ray_workers.py
asks the same of this and, where it is installed, of Ray.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

ROOT = Path(__file__).parents[2]


class RayError(Exception):
    pass


class RayTaskError(RayError):
    """A method raised `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"ray::Actor.method()\n{cause!r}")
        self.cause = cause


class RayActorError(RayError):
    """The actor has ended, or could not be made."""

    def __init__(self, message: str, *, actor_init_failed: bool = False) -> None:
        super().__init__(message)
        self.actor_init_failed = actor_init_failed


exceptions = SimpleNamespace(
    RayError=RayError, RayTaskError=RayTaskError, RayActorError=RayActorError
)


class Ref:
    """What a call will return."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # who no longer waits does not end the call

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self.future).__await__()


@dataclass
class Place:
    """A host: what is free of it."""

    cpus: int
    gpus: list[int] = field(default_factory=list)


class Actor:
    """The handle of an actor, and the thread that tends its process."""

    def __init__(self, cluster: TinyRay, cls: type, needs: dict[str, int], args: tuple) -> None:
        self._cluster, self._cls, self._args = cluster, cls, args
        self._cpus, self._gpus = needs["num_cpus"], needs["num_gpus"]
        self._calls: list[tuple[int, str, tuple]] = []  # to be sent once there is a process
        self._refs: dict[int, Ref] = {}
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._error: RayActorError | None = None  # it has ended
        self.ip = ""
        self.thread = threading.Thread(target=self._tend, name="tiny ray actor")
        self.thread.start()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__ray_ready__":
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *args: self._call(name, args))

    def _call(self, name: str, args: tuple) -> Ref:
        with self._cluster.changed:
            ref, number = Ref(), next(self._numbers)
            if self._error is not None:
                ref.future.set_exception(self._error)
                return ref
            self._refs[number] = ref
            if self._process is None:
                self._calls.append((number, name, args))
            else:
                self._send((number, name, args))
        return ref

    def _send(self, what: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            pickle.dump(what, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended, as its thread is about to see
            pass

    def end(self, message: str) -> None:
        """As `ray.kill`, or the end of its host."""
        with self._cluster.changed:
            self._fail(RayActorError(message))
            if self._process is not None:
                self._process.kill()
            self._cluster.changed.notify_all()

    def _fail(self, error: RayActorError) -> None:
        if self._error is None:
            self._error = error
            for ref in self._refs.values():
                ref.future.set_exception(error)
            self._refs.clear()

    def _tend(self) -> None:
        with self._cluster.changed:
            place = None
            while self._error is None and (place := self._find()) is None:
                self._cluster.changed.wait()
            if place is None:
                return
            gpus = [place.gpus.pop(0) for _ in range(self._gpus)]
            place.cpus -= self._cpus
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.router.tiny_ray"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={
                    **os.environ,
                    "TINY_RAY_IP": self.ip,
                    "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
                    "OMP_NUM_THREADS": str(self._cpus),
                },
            )
            self._send((self._cls, self._args))
            for call in self._calls:
                self._send(call)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with stdin, stdout:
            self._receive(stdout)
            self._process.wait()
        with self._cluster.changed:
            self._fail(RayActorError("The actor died unexpectedly.\nIts process ended."))
            place.gpus += gpus
            place.cpus += self._cpus
            self._cluster.changed.notify_all()

    def _find(self) -> Place | None:
        for ip, place in self._cluster.hosts.items():
            if place.cpus >= self._cpus and len(place.gpus) >= self._gpus:
                self.ip = ip
                return place
        return None

    def _receive(self, stdout: BinaryIO) -> None:
        while True:
            try:
                number, value, error = pickle.load(stdout)
            except EOFError:
                return
            with self._cluster.changed:
                if number is None:
                    self._fail(RayActorError(error, actor_init_failed=True))
                ref = self._refs.pop(number, None)
            if ref is not None and error is not None:
                ref.future.set_exception(RayTaskError(error))
            elif ref is not None:
                ref.future.set_result(value)


class TinyRay:
    """In place of the module `ray`.

    Args:
        hosts: address -> what is there.  The router is on 127.0.0.1.
    """

    exceptions = exceptions

    def __init__(self, hosts: dict[str, Place]) -> None:
        self.hosts = hosts
        self.changed = threading.Condition(threading.RLock())
        self.actors: list[Actor] = []
        self.is_initialized = False
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def init(self, address: str, **settings: Any) -> None:
        if address != "local":
            raise ConnectionError(f"Could not find any running Ray instance: {address}")
        if self.is_initialized:
            raise RuntimeError("Maybe you called ray.init twice by accident?")
        self.is_initialized = True

    def shutdown(self) -> None:
        for actor in self.actors:
            actor.end("The cluster has ended.")
            actor.thread.join()
        self.is_initialized = False

    def cluster_resources(self) -> dict[str, float]:
        gpus = sum(len(place.gpus) for place in self.hosts.values())
        cpus = sum(place.cpus for place in self.hosts.values())
        return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})

    def remote(self, **needs: int) -> Callable[[type], Any]:
        def make(cls: type, *args: Any) -> Actor:
            assert self.is_initialized
            self.actors.append(Actor(self, cls, needs, args))
            return self.actors[-1]

        return lambda cls: SimpleNamespace(remote=lambda *args: make(cls, *args))

    def kill(self, actor: Actor) -> None:
        actor.end("The actor was killed.")

    # What tests do to it, and Ray's surroundings to Ray.

    def add_host(self, ip: str, place: Place) -> None:
        with self.changed:
            self.hosts[ip] = place
            self.changed.notify_all()

    def end_host(self, ip: str) -> None:
        with self.changed:
            del self.hosts[ip]
            for actor in self.actors:
                if actor.ip == ip:
                    actor.end(f"The actor's node {ip} died.")


async def _run(calls: BinaryIO, answers: BinaryIO) -> None:
    """The process of an actor."""
    loop = asyncio.get_running_loop()

    def answer(number: int | None, value: Any, error: Any) -> None:
        pickle.dump((number, value, error), answers)
        answers.flush()

    try:
        cls, args = pickle.load(calls)
        actor = cls(*args)
    except Exception:
        answer(None, None, traceback.format_exc())
        return

    async def call(number: int, name: str, args: tuple) -> None:
        try:
            value = None if name == "__ray_ready__" else await getattr(actor, name)(*args)
        except Exception as error:
            answer(number, None, error)
        else:
            answer(number, value, None)

    running = set()
    while True:
        try:
            number, name, args = await loop.run_in_executor(None, pickle.load, calls)
        except EOFError:  # whoever started us is gone
            os._exit(0)
        running.add(asyncio.ensure_future(call(number, name, args)))


if __name__ == "__main__":
    here = os.environ["TINY_RAY_IP"]
    sys.modules["ray"] = SimpleNamespace(  # type: ignore[assignment]
        exceptions=exceptions, util=SimpleNamespace(get_node_ip_address=lambda: here)
    )
    asyncio.run(_run(sys.stdin.buffer, sys.stdout.buffer))
