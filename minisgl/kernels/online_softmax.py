"""One step of attention's online softmax, shared by extend and decode attention.

For each query, a softmax-weighted sum of values is gathered key block by key block in
    m    the largest score so far (base-2 scores: the scale holds log2 e, so exp is exp2)
    l    the sum of 2^(score - m) so far
    acc  the sum of 2^(score - m) · value so far;   in the end  out = acc / l,  lse = m + log2 l

Shapes: s [M, N] scores, v [N, D], m and l [M], acc [M, D].  M queries, N keys of the block.
A query that has seen no visible key has m = -inf and l = 0; no step makes a NaN of that.
Source: Dao et al. 2022, "FlashAttention", arXiv 2205.14135, algorithm 1.
"""

from minisgl.kernels.dispatch import tl, triton


@triton.jit
def fold_keys(
    s,  # [M, N] fp32, -inf where the key is hidden
    v,  # [N, D]
    m,  # [M] fp32
    l,  # [M] fp32
    acc,  # [M, D] fp32
):
    m_new = tl.maximum(m, tl.max(s, axis=1))
    m_use = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
    # subtle: s - m_use <= 0, but where the compiler fuses the scale into the subtraction, a huge
    # score rounds differently in the two and could come out far above 0.
    p = tl.exp2(tl.minimum(s - m_use[:, None], 0.0))
    shrink = tl.exp2(m - m_use)
    l = l * shrink + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return m_new, l, acc
