"""Sample: choose each row's next token from its logits.

    temperature < 1e-5:  the largest logit, the first of equals
    otherwise:           w[v] = e^((logit[v] - max) / temperature)      weights; the largest is 1
                         keep the top_k heaviest (of equals, the first in the vocabulary),
                         then the fewest that hold top_p of their mass (the one that crosses stays),
                         then those with w >= min_p,
                         and draw: the first kept v whose running sum exceeds uniform · sum

Shapes: logits [B, V]; temperature, top_k, top_p, min_p, uniform [B] -> ids [B].  B rows, V
vocabulary.

One program serves one row, walking the vocabulary in tiles of BLOCK_V, and does not sort.  What
top_k and top_p keep is "every weight above a threshold, and the first few equal to it", and the
bits of a positive float are ordered like integers: so the threshold is found by its bits, three
at a time, each step one pass that counts and sums the weights above 7 pivots at once.
Source: the pivot search of sorting-free samplers (FlashInfer 2025, "Sorting-Free GPU Kernels for
LLM Sampling"); min_p: Nguyen et al. 2024, arXiv 2407.01082.
"""

import torch

from minisgl.kernels.block_sizes import vocab_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton

GREEDY_BELOW = 1e-5  # a temperature under this is argmax
TOP_VALUES = (256, 4096)  # weights that the reference sorts before it sorts them all


def _cut(
    w: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lightest kept weight, and how many are kept in all: both [B, 1]."""
    V = w.shape[1]
    k = torch.where((top_k <= 0) | (top_k > V), V, top_k.long()).unsqueeze(1)
    p = torch.where(top_p < 1, top_p.double(), torch.inf).unsqueeze(1)  # 1 keeps every crumb
    total = w.sum(dim=-1, keepdim=True, dtype=torch.float64)
    for size in (*(min(int(k.max()), n) for n in TOP_VALUES), V):  # a few nearly always decide
        heaviest = w.topk(size, dim=-1).values if size < V else w.sort(descending=True).values
        cumulative = heaviest.double().cumsum(dim=-1)
        # top_p is a share of what top_k has left.
        mass = torch.where(k < V, cumulative.gather(1, k.clamp(max=size) - 1), total)
        enough = mass * p
        if bool(((k <= size) | (cumulative[:, -1:] >= enough)).all()):
            break
    before = cumulative - heaviest
    kept = (torch.arange(size, device=w.device) < k) & (before < enough)
    count = kept.sum(dim=-1, keepdim=True).clamp_(min=1)
    return heaviest.gather(1, count - 1), count


def _filter_(w: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero in `w` [B, V] what top_k and top_p drop."""
    least, count = _cut(w, top_k, top_p)
    dropped = w < least
    surplus = w.shape[1] - dropped.sum(dim=-1, keepdim=True) - count
    crowded = (surplus > 0).squeeze(1)  # more weights equal to the least than are kept
    if bool(crowded.any()):
        tied = w[crowded] == least[crowded]
        place = tied.sum(dim=-1, keepdim=True) - tied.cumsum(dim=-1)  # among the tied, from the end
        dropped[crowded] |= tied & (place < surplus[crowded])
    return w.masked_fill_(dropped, 0.0)


def sample_ref(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    peak, best = logits.max(dim=-1)  # the first of ties; a NaN counts as the largest
    broken = ~torch.isfinite(peak)
    greedy = temperature < GREEDY_BELOW
    best.masked_fill_(broken, -1)
    if bool(greedy.all()):
        return best
    w = logits.float().sub(peak.float().unsqueeze(1))  # <= 0, so that no temperature can overflow
    w = w.div_(temperature.masked_fill(greedy, 1.0).unsqueeze(1)).exp_()  # the peak weighs 1
    if bool(broken.any()):
        w.nan_to_num_(nan=0.0)  # the answer is -1 whatever is drawn
    filtered = ~greedy & (((top_k > 0) & (top_k < logits.shape[1])) | (top_p < 1))
    if bool(filtered.all()):
        _filter_(w, top_k, top_p)
    elif bool(filtered.any()):
        w[filtered] = _filter_(w[filtered], top_k[filtered], top_p[filtered])
    if bool((min_p > 0).any()):
        w.masked_fill_(w < min_p.unsqueeze(1), 0.0)
    cdf = w.double().cumsum_(dim=-1)
    target = uniform.double().unsqueeze(1) * cdf[:, -1:]
    drawn = torch.searchsorted(cdf, target, right=True).squeeze(1)
    drawn.clamp_(max=logits.shape[1] - 1)
    return torch.where(greedy | broken, best, drawn)


@triton.jit
def _weights(row_ptr, first, V, peak, temperature, BLOCK_V: tl.constexpr):
    """The weights of tokens [first, first + BLOCK_V), 0 past V: the same bits in every pass."""
    v = first + tl.arange(0, BLOCK_V)
    x = tl.load(row_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
    return tl.exp((x - peak) / temperature)


@triton.jit
def _above(row_ptr, V, peak, temperature, bits, BLOCK_V: tl.constexpr):
    """How many weights have bits above `bits`, and their sum."""
    count = tl.zeros([BLOCK_V], tl.int32)
    mass = tl.zeros([BLOCK_V], tl.float32)
    for first in range(0, V, BLOCK_V):
        w = _weights(row_ptr, first, V, peak, temperature, BLOCK_V)
        above = w.to(tl.int32, bitcast=True) > bits
        count += above.to(tl.int32)
        mass += tl.where(above, w, 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _threshold(row_ptr, V, peak, temperature, k, enough, BLOCK_V: tl.constexpr):
    """The bits of the lightest kept weight: the least t such that the weights above t are still
    fewer than k and hold less than `enough`."""
    digit = tl.arange(0, 8)[None, :]
    bits = k * 0  # every t below `bits` is known to have too much above it
    for step in range(10):  # 10 digits of 3 bits: weights are at most 1.0 = 0x3F800000 < 2^30
        shift = 27 - 3 * step
        pivots = bits + (digit << shift) - 1
        count = tl.zeros([BLOCK_V, 8], tl.int32)
        mass = tl.zeros([BLOCK_V, 8], tl.float32)
        for first in range(0, V, BLOCK_V):
            w = _weights(row_ptr, first, V, peak, temperature, BLOCK_V)[:, None]
            above = w.to(tl.int32, bitcast=True) > pivots
            count += above.to(tl.int32)
            mass += tl.where(above, w, 0.0)
        full = (tl.sum(count, axis=0) >= k) | (tl.sum(mass, axis=0) >= enough)
        passed = tl.sum((full[None, :] & (digit > 0)).to(tl.int32))
        bits += passed << shift
    return bits


@triton.jit
def _keep(w, least, ties, ties_seen, min_p):
    """Which weights of a tile are kept, and how many equal to the least were seen before."""
    bits = w.to(tl.int32, bitcast=True)
    tied = bits == least
    rank = ties_seen + tl.cumsum(tied.to(tl.int32), axis=0)
    keep = ((bits > least) | (tied & (rank <= ties))) & (w >= min_p) & (w > 0)
    return keep, ties_seen + tl.sum(tied.to(tl.int32), axis=0)


@triton.jit
def _sample_kernel(
    logits_ptr,  # [B, V]
    temperature_ptr,  # [B] fp32
    top_k_ptr,  # [B] integer; 0 or less: off
    top_p_ptr,  # [B] fp32
    min_p_ptr,  # [B] fp32
    uniform_ptr,  # [B] fp32 in [0, 1)
    ids_ptr,  # [B] int64
    stride_lb,
    V,
    GREEDY_BELOW: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + b * stride_lb

    # The largest logit and its first place.  Each lane keeps its own; a maximum may drop a NaN,
    # so NaNs are counted.
    peaks = tl.full([BLOCK_V], float("-inf"), tl.float32)
    places = tl.zeros([BLOCK_V], tl.int32)
    nans = tl.zeros([BLOCK_V], tl.int32)
    for first in range(0, V, BLOCK_V):
        v = first + tl.arange(0, BLOCK_V)
        x = tl.load(row_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
        better = x > peaks  # False for a NaN
        peaks = tl.where(better, x, peaks)
        places = tl.where(better, v, places)
        nans += (x != x).to(tl.int32)
    peak = tl.max(peaks, axis=0)
    best = tl.min(tl.where(peaks == peak, places, V), axis=0)
    # No distribution: a NaN, an infinite peak, or nothing allowed at all.
    if (tl.sum(nans, axis=0) > 0) | (peak == float("inf")) | (peak == float("-inf")):
        tl.store(ids_ptr + b, tl.full([], -1, tl.int64))
        return
    temperature = tl.load(temperature_ptr + b)
    if temperature < GREEDY_BELOW:
        tl.store(ids_ptr + b, best.to(tl.int64))
        return

    # What is kept: weights with bits above `least`, and the first `ties` that are equal to it.
    least = V * 0
    ties = V * 1
    top_k = tl.load(top_k_ptr + b)
    top_k = tl.where((top_k <= 0) | (top_k > V), V, top_k).to(tl.int32)
    no_limit = float("inf")
    if top_k < V:
        least = _threshold(row_ptr, V, peak, temperature, top_k, no_limit, BLOCK_V)
        count, mass = _above(row_ptr, V, peak, temperature, least, BLOCK_V)
        ties = top_k - count
        mass += ties * least.to(tl.float32, bitcast=True)
    else:
        count, mass = _above(row_ptr, V, peak, temperature, 0, BLOCK_V)
    top_p = tl.load(top_p_ptr + b)
    if top_p < 1.0:
        enough = tl.maximum(top_p * mass, 1e-30)  # never an empty set
        least = _threshold(row_ptr, V, peak, temperature, top_k, enough, BLOCK_V)
        count, mass = _above(row_ptr, V, peak, temperature, least, BLOCK_V)
        weight = tl.maximum(least.to(tl.float32, bitcast=True), 1e-38)
        wanted = tl.minimum(tl.ceil((enough - mass) / weight), V.to(tl.float32))
        ties = tl.minimum(top_k - count, tl.maximum(wanted, 1.0).to(tl.int32))

    # Draw: one pass for the kept sum, one to find where the running sum passes its share of it.
    min_p = tl.load(min_p_ptr + b)
    total = peak * 0.0
    seen = V * 0
    for first in range(0, V, BLOCK_V):
        w = _weights(row_ptr, first, V, peak, temperature, BLOCK_V)
        keep, seen = _keep(w, least, ties, seen, min_p)
        total += tl.sum(tl.where(keep, w, 0.0), axis=0)
    target = tl.load(uniform_ptr + b) * total
    running = peak * 0.0
    seen = V * 0
    chosen = V * 1
    last_kept = V * 0
    for first in range(0, V, BLOCK_V):
        v = first + tl.arange(0, BLOCK_V)
        w = _weights(row_ptr, first, V, peak, temperature, BLOCK_V)
        keep, seen = _keep(w, least, ties, seen, min_p)
        w = tl.where(keep, w, 0.0)
        crossed = keep & (running + tl.cumsum(w, axis=0) > target)
        chosen = tl.minimum(chosen, tl.min(tl.where(crossed, v, V), axis=0))
        last_kept = tl.maximum(last_kept, tl.max(tl.where(keep, v, 0), axis=0))
        running += tl.sum(w, axis=0)
    # Rounding may leave the running sum short of the target: then the last kept token.
    tl.store(ids_ptr + b, tl.where(chosen < V, chosen, last_kept).to(tl.int64))


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    blocks: dict[str, int] | None = None,
) -> torch.Tensor:
    """One token id per row, or -1 for a row that has no distribution.

    logits [B, V] with unit last stride, of any float dtype; temperature, top_p, min_p and uniform
    [B] fp32, top_k [B] integer, all contiguous -> ids [B] int64.  top_k <= 0 or >= V, top_p >= 1,
    min_p = 0: off.  `uniform` in [0, 1) is the row's whole randomness, so the caller owns the seed.
    A logit of -inf is never chosen.  -1 answers a row with a NaN or a +inf, or all of -inf.
    """
    if not use_triton(logits):
        return sample_ref(logits, temperature, top_k, top_p, min_p, uniform)
    B, V = logits.shape
    parameters = (temperature, top_k, top_p, min_p, uniform)
    if logits.stride(1) != 1 or any(p.shape != (B,) or not p.is_contiguous() for p in parameters):
        raise ValueError(
            f"sample needs logits [B, V] with unit last stride and five contiguous [B]; got "
            f"{tuple(logits.shape)} strides {logits.stride()}, "
            f"{[tuple(p.shape) for p in parameters]}"
        )
    ids = torch.empty(B, dtype=torch.int64, device=logits.device)
    if B == 0:
        return ids
    blocks = blocks or vocab_blocks()
    _sample_kernel[(B,)](
        logits, *parameters, ids, logits.stride(0), V, GREEDY_BELOW=GREEDY_BELOW, **blocks
    )
    return ids
