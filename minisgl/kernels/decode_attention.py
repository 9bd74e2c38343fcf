"""Decode attention: one query per request over the request's slots."""

import torch


def decode_attention_ref(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    B, H, D = q.shape
    KV = pool.shape[2]
    longest = max(1, int(seq_lens.max()))
    table = req_to_token[rows.long(), :longest].long()  # [B, L]
    key = torch.arange(longest, device=q.device)
    lengths = seq_lens.unsqueeze(1)
    visible = key < lengths
    if window:
        visible &= key >= lengths - window
    # Hidden columns repeat a slot of the same request: finite numbers, which the mask then drops.
    last = table.gather(1, (lengths.long() - 1).clamp_(min=0))
    last = last.masked_fill_(lengths == 0, 0)
    k, v = pool[torch.where(visible, table, last)].permute(2, 0, 3, 1, 4)  # each [B, KV, L, D]
    scores = torch.matmul(q.view(B, KV, H // KV, D), k.transpose(-1, -2)).float() * scale
    scores.masked_fill_(~visible[:, None, None, :], float("-inf"))
    p = torch.softmax(scores, dim=-1).to(v.dtype)
    out = torch.matmul(p, v).view(B, H, D)
    return out.masked_fill_((lengths == 0).unsqueeze(2), 0)


def decode_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    return decode_attention_ref(q, pool, req_to_token, rows, seq_lens, scale, window)
