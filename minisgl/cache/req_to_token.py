"""Where each running request's tokens are: a table from (request row, position) to K/V slot.

Attention kernels read it: the K of position 5 of the request in row 2 is `pool[table[2, 5]]`. A row
begins with the slots of the shared prefix and goes on with the request's own. This is the only
place where positions meet slots (vLLM calls its rows block tables).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch

from minisgl.cache.kv_pool import PoolFull


class ReqToToken:
    """One row of slot numbers for each running request.

    Shapes: `table` is [R, C] int32: R requests at once, C tokens in each at most. A row keeps what
    was written until it is overwritten; only its first `seq_len` entries mean anything.

    >>> req_to_token = ReqToToken(rows=2, columns=8, device="cpu")
    >>> row = req_to_token.alloc_row()
    >>> req_to_token.write(row, 0, [40, 41, 7])
    >>> req_to_token.row(row, 3)
    [40, 41, 7]
    """

    def __init__(self, rows: int, columns: int, device: torch.device | str) -> None:
        if rows < 1 or columns < 1:
            raise ValueError(f"rows and columns must be at least 1, got {rows} and {columns}")
        self.table = torch.zeros((rows, columns), dtype=torch.int32, device=device)
        self._free = list(
            range(rows)
        )  # a heap: the lowest free row goes first, so live rows stay close together
        self._used: set[int] = set()
        # (row, position) -> slot of what was written since it was last taken; None: nobody asks
        self._journal: dict[tuple[int, int], int] | None = None

    @property
    def available_rows(self) -> int:
        """How many requests can still start."""
        return len(self._free)

    def alloc_row(self) -> int:
        """The lowest free row. Raises PoolFull if every row is taken."""
        if not self._free:
            raise PoolFull("request rows", 1, 0, len(self.table))
        row = heapq.heappop(self._free)
        self._used.add(row)
        return row

    def free_row(self, row: int) -> None:
        """Take a row back. Raises ValueError if it is not handed out."""
        self._require_used(row)
        self._used.remove(row)
        heapq.heappush(self._free, row)

    def write(self, row: int, start: int, slots: Sequence[int]) -> None:
        """Set positions [start, start + len(slots)) of a row. Raises ValueError past its end."""
        self._require_used(row)
        end, columns = start + len(slots), self.table.shape[1]
        if not 0 <= start <= end <= columns:
            raise ValueError(f"positions [{start}, {end}) do not fit into a row of {columns}")
        self.table[row, start:end] = torch.tensor(slots, dtype=torch.int32)
        if self._journal is not None:
            self._journal.update(((row, start + i), slot) for i, slot in enumerate(slots))

    def write_each(
        self, rows: Sequence[int], positions: Sequence[int], slots: Sequence[int]
    ) -> None:
        """Set one position in each of several rows with one copy to the device, for a decode step.

        Raises ValueError unless the three have one length and every position is inside its row.
        """
        if not len(rows) == len(positions) == len(slots):
            raise ValueError(
                f"lengths differ: {len(rows)} rows, {len(positions)} positions, {len(slots)} slots"
            )
        for row in rows:
            self._require_used(row)
        columns = self.table.shape[1]
        if positions and not 0 <= min(positions) <= max(positions) < columns:
            raise ValueError(
                f"positions must be 0 to {columns - 1}, got {min(positions)} to {max(positions)}"
            )
        # From pinned memory, so that the host does not wait for the copy to a GPU.
        lists, pinned = [rows, positions, slots], self.table.is_cuda
        step = torch.tensor(lists, dtype=torch.int64, pin_memory=pinned)  # [3, B]
        step = step.to(self.table.device, non_blocking=True)
        self.table[step[0], step[1]] = step[2].to(torch.int32)
        if self._journal is not None:
            self._journal.update(zip(zip(rows, positions, strict=True), slots, strict=True))

    def keep_journal(self) -> None:
        """From now on, remember what is written for `take_journal`."""
        self._journal = {}

    def take_journal(self) -> dict[tuple[int, int], int]:
        """(row, position) -> slot of all that was written since the last call: what a copy of the
        table elsewhere lacks.

        >>> req_to_token = ReqToToken(rows=2, columns=8, device="cpu")
        >>> req_to_token.keep_journal()
        >>> req_to_token.write(req_to_token.alloc_row(), 3, [40, 41])
        >>> req_to_token.take_journal(), req_to_token.take_journal()
        ({(0, 3): 40, (0, 4): 41}, {})
        """
        journal, self._journal = self._journal, {}
        return journal or {}

    def row(self, row: int, num_tokens: int) -> list[int]:
        """The first `num_tokens` slots of a row."""
        self._require_used(row)
        if not 0 <= num_tokens <= self.table.shape[1]:
            raise ValueError(
                f"a row holds 0 to {self.table.shape[1]} tokens, asked for {num_tokens}"
            )
        slots: list[int] = self.table[row, :num_tokens].tolist()
        return slots

    def check(self) -> None:
        """Verify that every row is either free or used. Raises AssertionError that names it."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise AssertionError(f"a row is free twice: {sorted(self._free)}")
        if free & self._used:
            raise AssertionError(f"rows are both free and used: {sorted(free & self._used)}")
        if free | self._used != set(range(len(self.table))):
            raise AssertionError(
                f"rows are lost: {sorted(set(range(len(self.table))) - free - self._used)}"
            )

    def _require_used(self, row: int) -> None:
        if row not in self._used:
            raise ValueError(
                f"row {row} is not handed out; those in use: {sorted(self._used)[:16]}"
            )
