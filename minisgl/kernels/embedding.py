"""Embedding: look up each token's row of the table."""

import torch


def embedding_ref(ids: torch.Tensor, w: torch.Tensor, first: int = 0) -> torch.Tensor:
    local = ids.long() - first if first else ids.long()
    outside = (local < 0) | (local >= w.shape[0])
    rows = w.index_select(0, local.masked_fill(outside, 0))
    return rows.masked_fill_(outside.unsqueeze(1), 0)


def embedding(ids: torch.Tensor, w: torch.Tensor, first: int = 0) -> torch.Tensor:
    """w[ids - first]; zero rows where the id is not in [first, first + V).  ids [T], w [V, D]."""
    return embedding_ref(ids, w, first)
