"""Rows are handed out once, and a row reads back what was written."""

from __future__ import annotations

import pytest
import torch

from minisgl.cache.kv_pool import PoolFull
from minisgl.cache.req_to_token import ReqToToken


def test_a_row_reads_back() -> None:
    table = ReqToToken(rows=3, columns=8, device="cpu")
    row = table.alloc_row()
    table.write(row, 0, [5, 6, 7])
    table.write(row, 3, [1])
    table.write(row, 8, [])
    assert table.row(row, 4) == [5, 6, 7, 1]
    assert table.row(row, 0) == []
    assert table.table.dtype == torch.int32 and table.table.shape == (3, 8)


def test_one_position_in_each_row() -> None:
    table = ReqToToken(rows=3, columns=4, device="cpu")
    rows = [table.alloc_row() for _ in range(3)]
    table.write_each([rows[2], rows[0]], [3, 1], [42, 43])
    assert table.table.tolist() == [[0, 43, 0, 0], [0, 0, 0, 0], [0, 0, 0, 42]]
    table.write_each([], [], [])


def test_rows_go_round_lowest_first() -> None:
    table = ReqToToken(rows=3, columns=4, device="cpu")
    assert [table.alloc_row() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(PoolFull, match="1 request rows needed, but only 0 of 3 are free"):
        table.alloc_row()
    table.free_row(2)
    table.free_row(0)
    assert table.available_rows == 2
    assert table.alloc_row() == 0
    table.check()


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0 and 4"):
        ReqToToken(rows=0, columns=4, device="cpu")
    table = ReqToToken(rows=2, columns=4, device="cpu")
    row = table.alloc_row()
    with pytest.raises(ValueError, match=r"positions \[3, 5\) do not fit into a row of 4"):
        table.write(row, 3, [1, 2])
    with pytest.raises(ValueError, match="do not fit"):
        table.write(row, -1, [1, 2])
    with pytest.raises(ValueError, match="row 1 is not handed out"):
        table.write(1, 0, [1])
    with pytest.raises(ValueError, match="asked for 5"):
        table.row(row, 5)
    with pytest.raises(ValueError, match="lengths differ: 1 rows, 2 positions, 1 slots"):
        table.write_each([row], [1, 2], [1])
    with pytest.raises(ValueError, match="positions must be 0 to 3, got 4 to 4"):
        table.write_each([row], [4], [1])
    with pytest.raises(ValueError, match="not handed out"):
        table.write_each([row, 1], [0, 0], [1, 2])
    table.free_row(row)
    with pytest.raises(ValueError, match="not handed out"):
        table.free_row(row)
    table.check()


def test_check_finds_what_does_not_add_up() -> None:
    table = ReqToToken(rows=3, columns=4, device="cpu")
    table.alloc_row()
    table._free.append(2)
    with pytest.raises(AssertionError, match="free twice"):
        table.check()
    table._free = [0, 1, 2]
    with pytest.raises(AssertionError, match=r"both free and used: \[0\]"):
        table.check()
    table._free = [2]
    with pytest.raises(AssertionError, match=r"lost: \[1\]"):
        table.check()
