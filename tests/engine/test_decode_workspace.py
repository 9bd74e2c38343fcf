"""The decode workspace against attention over each request's own keys, one request at a time."""

from __future__ import annotations

import torch

from minisgl.engine.decode_workspace import FIRST_CAPACITY, DecodeWorkspace

LAYERS, KV, G, D = 2, 3, 2, 8


class Model:
    """The obvious model: each owner's keys and values as a growing tensor."""

    def __init__(self, slots: int = 2048, budget: int = 8192) -> None:
        g = torch.Generator().manual_seed(0)
        self.g = g
        self.pool = [torch.randn(slots, 2, KV, D, generator=g) for _ in range(LAYERS)]
        self.workspace = DecodeWorkspace(self.pool, budget)
        self.kv: dict[str, list[torch.Tensor]] = {}

    def admit(self, owner: str, slots: list[int]) -> bool:
        seated = self.workspace.admit(owner, slots)
        if seated:
            self.kv[owner] = [p[slots] for p in self.pool]  # [n, 2, KV, D]
        return seated

    def leave(self, owner: str) -> None:
        self.workspace.leave(owner)
        self.kv.pop(owner, None)

    def step(self) -> None:
        order = self.workspace.plan(list(self.kv))
        for owner in set(self.kv) - set(order):
            del self.kv[owner]  # found no room to grow
        if not order:
            return  # then nothing attends
        for layer in range(LAYERS):
            q = torch.randn(len(order), KV * G, D, generator=self.g)
            new = torch.randn(len(order), 2, KV, D, generator=self.g)
            out = self.workspace.attend(layer, q, new, D**-0.5)
            for i, owner in enumerate(order):
                self.kv[owner][layer] = torch.cat((self.kv[owner][layer], new[i : i + 1]))
                k, v = self.kv[owner][layer].repeat_interleave(G, dim=2).unbind(1)  # [n, H, D]
                p = torch.softmax(torch.einsum("hd,nhd->hn", q[i], k) * D**-0.5, dim=-1)
                expected = torch.einsum("hn,nhd->hd", p, v)
                torch.testing.assert_close(out[i], expected, atol=1e-5, rtol=1e-5)
        self.workspace.check()


def test_rows_of_many_lengths_come_and_go() -> None:
    m = Model()
    m.admit("a", list(range(10)))
    m.step()
    m.admit("b", list(range(100, 400)))  # another slab
    m.admit("c", [7, 3, 900])
    m.step()
    m.leave("a")  # its row is filled by another
    m.step()
    m.leave("b")
    m.step()
    m.admit("a", list(range(30)))
    m.step()
    for owner in ("a", "c"):
        m.leave(owner)
    assert m.workspace.used == 0


def test_a_row_moves_up_when_its_slab_is_full() -> None:
    m = Model()
    m.admit("short", [1, 2])
    m.admit("long", list(range(FIRST_CAPACITY - 1)))
    for _ in range(3):
        m.step()
    assert m.workspace.place["long"].capacity == 2 * FIRST_CAPACITY
    assert m.workspace.place["short"].capacity == FIRST_CAPACITY


def test_over_the_budget_a_request_is_refused_or_let_go_and_others_go_on() -> None:
    m = Model(budget=FIRST_CAPACITY)
    assert m.admit("a", list(range(FIRST_CAPACITY - 2)))
    assert not m.admit("b", [1])
    m.step()
    m.step()
    m.step()  # "a" outgrew its slab and found no larger room
    assert "a" not in m.workspace


def test_leaving_twice_is_harmless() -> None:
    m = Model()
    m.admit("a", [1])
    m.leave("a")
    m.leave("a")
    assert m.workspace.used == 0
