"""Extend attention: new tokens over [cached prefix | themselves]."""

import torch
import torch.nn.functional as F


def extend_attention_ref(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    causal: bool = True,
    window: int = 0,
) -> torch.Tensor:
    T, H, D = q.shape
    KV = kv.shape[2]
    G = H // KV
    out = torch.empty((T, H, D), dtype=q.dtype, device=q.device)
    bounds = cu_seqlens.tolist()
    requests = zip(rows.tolist(), prefix_lens.tolist(), bounds[:-1], bounds[1:], strict=True)
    for row, prefix, start, end in requests:
        n = end - start
        if n == 0:
            continue
        # Keys that not even the first new token's window reaches are not gathered.
        hidden = max(0, prefix - (window - 1)) if window else 0
        seen = prefix - hidden
        keys = kv[start:end]  # [L, 2, KV, D], L = seen + n
        if seen:
            slots = req_to_token[row, hidden:prefix].long()
            keys = torch.cat([pool.index_select(0, slots), keys])
        k, v = keys.permute(1, 2, 0, 3).unsqueeze(2)  # each [KV, 1, L, D]
        queries = q[start:end].view(n, KV, G, D)
        if n == 1:  # one query sees every key: the group's heads are the rows of one matmul
            o = F.scaled_dot_product_attention(queries.view(KV, 1, G, D), k, v, scale=scale)
            out[start] = o.view(H, D)
            continue
        mask = None
        if causal and (seen or (window and window < n)):
            position = torch.arange(seen, seen + n, device=q.device).unsqueeze(1)  # [n, 1]
            key = torch.arange(seen + n, device=q.device)  # [L]
            mask = key <= position
            if window:
                mask &= key > position - window
        o = F.scaled_dot_product_attention(
            queries.permute(1, 2, 0, 3),  # [KV, G, n, D]: the group shares its KV head, no copies
            k.expand(KV, G, -1, D),
            v.expand(KV, G, -1, D),
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scale,
        )
        out[start:end].view(n, KV, G, D).copy_(o.permute(2, 0, 1, 3))
    return out


def extend_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_extend_len: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
) -> torch.Tensor:
    return extend_attention_ref(
        q, kv, pool, req_to_token, rows, prefix_lens, cu_seqlens, scale, causal, window
    )
