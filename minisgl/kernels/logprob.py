"""Log-probability of one token per row."""

import torch


def logprob_ref(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    picked = logits.gather(1, ids.long().unsqueeze(1)).squeeze(1)
    return picked.float() - torch.logsumexp(logits.float(), dim=-1)


def logprob(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """log_softmax(logits)[ids] in fp32.  logits [B, V], ids [B] -> [B]."""
    return logprob_ref(logits, ids)
