"""Workers that Ray places: each is an actor, which runs the server on the host that Ray chose.

    router -- Placed -- Ray --> Host, an actor with the worker's GPUs --> python -m minisgl.serve
       '--------------------------------- HTTP ----------------------------'

Ray finds a host with what the worker needs, and ends the actor with the router, whatever ended
that.  The server ends with its actor.  Requests and answers do not pass through Ray.

A worker that is lost becomes a new actor, be it its server, its actor or its host that ended.  Ray
could restart the old one, but knows of actors only, and does not know which of them answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray

from minisgl.router.launcher import PATIENCE, Restarted, Started

log = logging.getLogger("minisgl.router")

OBJECT_BYTES = 100 * 2**20  # of a cluster of our own, through which only URLs pass
NOTICE_SECONDS = 30.0  # between two notices that a worker still waits for its place


@contextlib.contextmanager
def cluster(address: str) -> Iterator[None]:
    """Belong to a Ray cluster as long as the block runs; actors of ours end with it.

    Args:
        address: see `RouterConfig.ray`.

    Raises:
        ConnectionError: there is none.
    """
    own: dict[str, Any] = {}
    if address == "local":
        own = {"include_dashboard": False, "object_store_memory": OBJECT_BYTES}
    ray.init(address, configure_logging=False, **own)
    try:
        yield
    finally:
        ray.shutdown()


def needs_of(device: str, tp_size: int, cpus: int | None) -> dict[str, int]:
    """What Ray has to find for one worker, all of it on one host: a GPU for each rank, where the
    cluster has any, and as many CPUs, if no number is given."""
    on_gpus = device == "cuda" or (device == "auto" and "GPU" in ray.cluster_resources())
    return {"num_cpus": cpus or tp_size, "num_gpus": tp_size if on_gpus else 0}


class Host:
    """The actor: it starts a worker on its host, once.

    Args:
        number: of the worker.
        program: what Python is to run; `--port 0` is up to the caller.
        env: added to the environment.  An argument of the actor and no `runtime_env`, which Ray's
            dashboard would show: the API key is in it.
        router: the address of the router's host.
    """

    def __init__(
        self, number: int, program: Sequence[str], env: Mapping[str, str], router: str
    ) -> None:
        own = ray.util.get_node_ip_address()
        listen = "127.0.0.1" if own == router else own  # no wider than the router needs it
        command = [sys.executable, *program, f"--host={listen}"]
        self._worker = Started(number, command, restarts=0, env=env)

    async def find(self) -> str:
        """Its URL, from the router's host; an error once it has ended."""
        return await self._worker.find()

    async def close(self) -> None:
        """End it, and wait for that."""
        await self._worker.close()


class Placed(Restarted):
    """A worker on some host of the cluster.

    Args:
        number, restarts: see `Restarted`.
        program, env: see `Host`.
        needs: see `needs_of`.
    """

    def __init__(
        self,
        number: int,
        program: Sequence[str],
        restarts: int,
        env: Mapping[str, str],
        needs: Mapping[str, int],
    ) -> None:
        super().__init__(number, restarts)
        self._program, self._env, self._needs = list(program), dict(env), dict(needs)
        self._actor: Any = None

    async def _is_running(self) -> bool:
        if self._actor is None:
            return False
        try:
            await asyncio.wait_for(self._actor.find.remote(), PATIENCE)
        except (ray.exceptions.RayError, asyncio.TimeoutError):
            return False
        return True

    async def _start(self) -> str:
        make = ray.remote(**self._needs)(Host).remote
        own = ray.util.get_node_ip_address()
        try:
            self._actor = await self._placed(make(self._number, self._program, self._env, own))
            url: str = await self._actor.find.remote()
        except ray.exceptions.RayError as error:
            raise OSError(f"worker {self._number} did not start: {_reason(error)}") from error
        return url

    async def _placed(self, actor: Any) -> Any:
        """`actor`, once it has a host."""
        try:
            ready = asyncio.ensure_future(actor.__ray_ready__.remote())
            while not (await asyncio.wait([ready], timeout=NOTICE_SECONDS))[0]:
                log.warning("worker %d waits for a host with %s free", self._number, self._needs)
            await ready
        except BaseException:  # it can't start, or nobody waits for it any more
            ray.kill(actor)
            raise
        return actor

    async def close(self) -> None:
        """End its server, wait for that, and end the actor."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(ray.exceptions.RayError, asyncio.TimeoutError):
                await asyncio.wait_for(actor.close.remote(), 2 * PATIENCE)
            ray.kill(actor)


def _reason(error: ray.exceptions.RayError) -> str:
    """In one line: what was raised in the actor or, when it was made, the end of its traceback."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return str(error.cause)
    lines = str(error).strip().splitlines()
    return str(lines[-1] if getattr(error, "actor_init_failed", False) else lines[0])
