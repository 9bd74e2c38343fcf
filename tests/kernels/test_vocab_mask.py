from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisgl.fsm.mask_bits import set_bits
from minisgl.fsm.vocab_index import VocabIndex
from minisgl.kernels.sample import sample
from minisgl.kernels.vocab_mask import vocab_mask
from tests.kernels.common import (
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)

INF, NAN = float("inf"), float("nan")


def pack(masks: list[set[int]], num_words: int) -> torch.Tensor:
    """Sets of allowed ids -> table [R, W] int32, by the arithmetic of two's complement."""
    table = []
    for ids in masks:
        unsigned = [0] * num_words
        for i in ids:
            unsigned[i // 32] += 2 ** (i % 32)
        table.append([u - 2**32 if u >= 2**31 else u for u in unsigned])
    return tensor(table, torch.int32).view(len(masks), num_words)


def some_ids(count: int, seed: int) -> set[int]:
    """About half of `count` ids."""
    chosen = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.5
    return {i for i, is_in in enumerate(chosen.tolist()) if is_in}


def assert_masks(logits: torch.Tensor, masks: list[set[int]], words: int, rows: list[int]) -> None:
    """The launcher on `logits` does what a loop over ids does in float64."""
    V, before = logits.shape[1], logits.clone()
    kept = vocab_mask(logits, pack(masks, words), tensor(rows, torch.int64))
    expected, shares = before.clone(), []
    for n, row in enumerate(rows):
        p = torch.softmax(before[n].double(), dim=-1)
        allowed = [v for v in range(V) if row < 0 or v in masks[row]]
        shares.append(p[allowed].sum())
        expected[n, [v for v in range(V) if v not in allowed]] = -INF
    assert torch.equal(logits, expected)
    assert_near(kept, torch.stack(shares))
    assert bool(((kept >= 0) & (kept <= 1)).all())


def test_the_formula_by_hand() -> None:
    # e^0 + e^0 + e^ln(2) = 4
    logits = tensor([[0.0, 0.0, 0.6931472]]).repeat(4, 1)
    table = tensor([[0b101], [0b010], [0b000]], torch.int32)
    kept = vocab_mask(logits, table, tensor([0, 1, 2, -1]))
    torch.testing.assert_close(kept, tensor([0.75, 0.25, 0.0, 1.0]))
    ln2 = logits[3, 2].item()
    assert logits.tolist() == [[0, -INF, ln2], [-INF, 0, -INF], [-INF] * 3, [0, 0, ln2]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", [1, 31, 32, 33, 63, 64, 65, 100, 200])
def test_rows_of_several_masks(V: int, dtype: torch.dtype) -> None:
    """Equal rows, rows out of order, free ones among them."""
    masks = [some_ids(V, seed) for seed in range(3)]
    assert_masks(randn(6, V, dtype=dtype) * 4, masks, -(-V // 32), [2, -1, 0, 2, 1, -1])


@pytest.mark.parametrize("words", [0, 1, 2, 4])
def test_ids_past_the_table_are_forbidden(words: int) -> None:
    """A padded vocabulary has ids that no tokenizer knows (XGrammar, vLLM: they were allowed)."""
    masks = [some_ids(32 * words, seed=words), set(range(32 * words))]
    assert_masks(randn(2, 130), masks, words, [0, 1])


@pytest.mark.parametrize("V", [3, 40, 64])
def test_bits_past_the_vocabulary_are_ignored(V: int) -> None:
    assert_masks(randn(2, V), [some_ids(256, seed=V), set(range(256))], 8, [0, 1])


def test_every_bit_of_a_word() -> None:
    """Bit 31 is the sign."""
    assert_masks(randn(64, 64), [{i} for i in range(64)], 2, list(range(64)))


def test_the_bits_are_those_of_the_vocab_index() -> None:
    vocab = VocabIndex([bytes([i]) for i in range(50)], stop_ids=[7])
    mask = bytearray(4 * vocab.num_words)
    set_bits(mask, [0, 31, 33])
    number = vocab.row(vocab.with_stops(mask, (7,), is_complete=True))
    logits = randn(1, 50)
    vocab_mask(logits, tensor(vocab.rows), tensor([number]))
    assert logits[0].isfinite().nonzero().flatten().tolist() == [0, 7, 31, 33]


def test_views_of_wider_tensors() -> None:
    """Rows of padded logits and of a table that has room for more."""
    padded, room = randn(6, 100), tensor(torch.full((5, 7), -1).tolist(), torch.int32)
    view, table = padded[1::2, :70], room[::2, :3]
    masks = [some_ids(70, seed) for seed in range(3)]
    table.copy_(pack(masks, 3))
    outside = padded.clone()
    alone = view.contiguous()
    rows = tensor([2, 0, 1])
    kept = vocab_mask(view, table, rows)
    assert torch.equal(kept, vocab_mask(alone, pack(masks, 3), rows))
    assert torch.equal(view, alone)
    outside[1::2, :70] = alone
    assert torch.equal(padded, outside)


def test_all_allowed_changes_nothing() -> None:
    logits = randn(2, 130) * 9
    before = logits.clone()
    kept = vocab_mask(logits, pack([set(range(130))], 5), tensor([0, 0]))
    assert torch.equal(logits, before)
    assert_near(kept, tensor([1.0, 1.0]).double())


def test_a_free_row_keeps_whatever_it_holds() -> None:
    logits = tensor([[NAN, INF, -INF, 1.0]])
    assert vocab_mask(logits, pack([], 1), tensor([-1])).tolist() == [1.0]
    torch.testing.assert_close(logits, tensor([[NAN, INF, -INF, 1.0]]), equal_nan=True)


@pytest.mark.parametrize("place", [0, 63, 64, 129])
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("value", [NAN, INF])
def test_what_is_no_number_stays_in_sight(value: float, allowed: bool, place: int) -> None:
    """In its own row alone, and the sampler answers it with -1."""
    ids = some_ids(130, seed=1) - {place} | ({place} if allowed else set())
    logits = randn(2, 130)
    other = logits[1:].clone()
    logits[0, place] = value
    kept = vocab_mask(logits, pack([ids], 5), tensor([0, 0]))
    assert logits[0, place].isnan() or (allowed and logits[0, place] == value)
    rest = set(range(130)) - ids - {place}
    assert logits[0].isneginf().nonzero().flatten().tolist() == sorted(rest)
    assert kept[0] == 0
    assert torch.equal(vocab_mask(other, pack([ids], 5), tensor([0])), kept[1:])
    assert torch.equal(logits[1:], other)
    ones = torch.ones(2, device=logits.device)
    drawn = sample(logits, ones, ones.int() * 0, ones, ones * 0, ones * 0.5).tolist()
    assert drawn[0] == -1
    assert drawn[1] in ids


def test_nothing_left_is_zero_and_no_nan() -> None:
    logits = torch.full((3, 130), -INF, device=tensor(0).device)
    logits[1:, 70:] = 1.0  # whole tiles without a finite logit
    table = pack([set(range(130)), set(range(70)), set(range(100))], 5)
    assert_near(vocab_mask(logits, table, tensor([0, 1, 2])), tensor([0.0, 0.0, 0.5]).double())
    assert bool(logits[:2].isneginf().all())


def test_huge_logits_do_not_overflow() -> None:
    logits = tensor([[1e30, 1e30, -1e30], [3e38, -3e38, 0.0]])
    kept = vocab_mask(logits, pack([{0, 2}, {0, 1}], 1), tensor([0, 1]))
    assert_near(kept, tensor([0.5, 1.0]).double())


def test_unlikely_tokens_keep_a_small_share() -> None:
    logits = torch.zeros(1, 200, device=tensor(0).device)
    logits[0, 5] = 60.0
    kept = vocab_mask(logits, pack([{199}], 7), tensor([0])).double()
    assert float(kept) == pytest.approx(torch.exp(tensor(-60.0).double()).item(), rel=1e-5)


def test_a_row_does_not_see_the_batch() -> None:
    logits, masks = randn(5, 200), [some_ids(200, seed) for seed in range(2)]
    rows = [1, 0, -1, 1, 0]
    alone = [logits[n : n + 1].clone() for n in range(5)]
    kept = vocab_mask(logits, pack(masks, 7), tensor(rows))
    for n, row in enumerate(rows):
        assert torch.equal(vocab_mask(alone[n], pack(masks, 7), tensor([row])), kept[n : n + 1])
        assert torch.equal(alone[n], logits[n : n + 1])


@settings(max_examples=15)
@given(st.data())
def test_any_mask(data: st.DataObject) -> None:
    V, words = data.draw(st.integers(1, 140)), data.draw(st.integers(0, 5))
    ids = st.sets(st.integers(0, max(0, 32 * words - 1)), max_size=32 * words)
    masks = data.draw(st.lists(ids, min_size=1, max_size=3))
    rows = data.draw(st.lists(st.integers(-1, len(masks) - 1), min_size=1, max_size=4))
    seed = data.draw(st.integers(0, 99))
    assert_masks(randn(len(rows), V, seed=seed) * 3, masks, words, rows)


def test_no_rows() -> None:
    assert vocab_mask(randn(0, 9), pack([{1}], 1), tensor([], torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("logits", "table", "rows"),
    [
        (randn(9, 2).T, pack([{1}], 1), tensor([0, 0])),
        (randn(2, 9), pack([{1}], 1).long(), tensor([0, 0])),
        (randn(2, 9), pack([{1}], 1)[0], tensor([0, 0])),
        (randn(2, 9), pack([{1}, {2}], 2).T, tensor([0, 0])),
        (randn(2, 9), pack([{1}], 1), tensor([0])),
        (randn(2, 9), pack([{1}], 1), tensor([0, 0], torch.int32)),
        (randn(2, 9), pack([{1}], 1), tensor([0, 0, 0, 0])[::2]),
    ],
)
def test_what_it_cannot_read_is_refused(
    logits: torch.Tensor, table: torch.Tensor, rows: torch.Tensor
) -> None:
    with pytest.raises(ValueError, match="vocab_mask needs logits"):
        vocab_mask(logits, table, rows)
