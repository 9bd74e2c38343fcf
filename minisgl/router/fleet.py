"""`Fleet`: all workers, the balancer, and what is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import httpx

from minisgl.router.balancer import Balancer
from minisgl.router.config import RouterConfig
from minisgl.router.launcher import Source
from minisgl.router.policy import Policy
from minisgl.router.worker import Worker


class Fleet:
    """Workers and who tends them.  On one event loop: nothing here needs a lock.

    Attributes:
        counts: ("what", worker) -> how much; see metrics.py.
        ended: set when no worker is left, and none will come back.
        headers: what every request to a worker bears, in place of the client's.

    Args:
        worker_key: the workers' API key, if it is another than the router's own.
    """

    def __init__(
        self, config: RouterConfig, sources: Sequence[Source], worker_key: str | None = None
    ) -> None:
        self.config = config
        key = worker_key or config.api_key
        self.headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.balancer = Balancer(Policy(config.policy, affinity=config.affinity))
        self.counts: Counter[tuple[str, int]] = Counter()
        self.workers: list[Worker] = []
        self.ended = asyncio.Event()
        self._sources = sources
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Find the workers, and follow them from now on."""
        tls = httpx.create_ssl_context(trust_env=False)
        for number, source in enumerate(self._sources):
            worker = Worker(
                number,
                source,
                self.balancer,
                poll_seconds=self.config.poll_seconds,
                tls=tls,
                headers=self.headers,
            )
            self.workers.append(worker)
            self._tasks.append(asyncio.create_task(self._tend(worker)))

    async def _tend(self, worker: Worker) -> None:
        await worker.tend()
        if all(each.has_ended for each in self.workers):
            self.ended.set()

    async def close(self) -> None:
        """Let go of all workers; those that we started end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def up(self) -> list[Worker]:
        """Those that can be asked."""
        return [worker for worker in self.workers if worker.why is None]

    @property
    def imbalance(self) -> float:
        """The greatest load over the mean one; 1 is even, and what there is with nothing to do."""
        loads = [seat.load for seat in self.balancer.seats.values()]
        return max(loads) * len(loads) / sum(loads) if sum(loads) > 0 else 1.0
