"""Sample: choose each row's next token from its logits."""

import torch

GREEDY_BELOW = 1e-5  # a temperature under this is argmax


def _cut(
    w: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest kept weight [B], and how many tokens of exactly that weight are kept [B]."""
    V = w.shape[1]
    k = top_k.long()
    k = torch.where((k <= 0) | (k > V), V, k).unsqueeze(1)  # [B, 1]
    sorted_w = w.sort(dim=-1, descending=True).values
    cumulative = sorted_w.double().cumsum(dim=-1)
    before = cumulative - sorted_w
    target = cumulative.gather(1, k - 1) * top_p.unsqueeze(1)
    rank = torch.arange(V, device=w.device)
    kept = (rank < k) & ((before < target) | (top_p.unsqueeze(1) >= 1) | (rank == 0))
    count = kept.sum(dim=-1, keepdim=True)
    least = sorted_w.gather(1, count - 1)
    return least.squeeze(1), (count - (sorted_w > least).sum(dim=-1, keepdim=True)).squeeze(1)


def sample_ref(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    best = logits.argmax(dim=-1, keepdim=True)  # the first of ties; a NaN counts as the largest
    peak = logits.gather(1, best).float()
    broken = ~torch.isfinite(peak.squeeze(1))
    greedy = temperature < GREEDY_BELOW
    best = best.squeeze(1).masked_fill_(broken, -1)
    if bool(greedy.all()):
        return best
    w = logits.float().sub(peak)  # <= 0, so that no temperature can overflow
    w = w.div_(temperature.masked_fill(greedy, 1.0).unsqueeze(1)).exp_()  # the peak weighs 1
    w.nan_to_num_(nan=0.0)  # a broken row; its answer is -1 whatever is drawn
    filtered = ~greedy & (((top_k > 0) & (top_k < logits.shape[1])) | (top_p < 1))
    if bool(filtered.any()):
        some = w[filtered]
        least, ties = (t.unsqueeze(1) for t in _cut(some, top_k[filtered], top_p[filtered]))
        tied = some == least
        keep = (some > least) | (tied & (tied.cumsum(dim=-1) <= ties))
        w[filtered] = some.masked_fill_(~keep, 0.0)
    if bool((min_p > 0).any()):
        w.masked_fill_(w < min_p.unsqueeze(1), 0.0)
    cdf = w.double().cumsum_(dim=-1)
    target = uniform.double().unsqueeze(1) * cdf[:, -1:]
    drawn = torch.searchsorted(cdf, target, right=True).squeeze(1)
    drawn.clamp_(max=logits.shape[1] - 1)
    return torch.where(greedy | broken, best, drawn)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    return sample_ref(logits, temperature, top_k, top_p, min_p, uniform)
