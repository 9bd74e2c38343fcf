"""One of four Gloo ranks of test_sharding.py: every model over the first two, then over all four.

    python -m tests.models.shard_rank RANK STORE OUT MODEL...

Rank 0 writes what it computed into the directory OUT, and each rank what it handed to collectives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from minisgl.models.forward_batch import ForwardBatch
from minisgl.models.linear import kv_heads_of
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.registry import load_config, load_model
from minisgl.parallel import Parallel

TOKENS, WANTED = 20, [3, 4, 19]  # logits of three tokens


def logits_of(path: Path, parallel: Parallel) -> torch.Tensor:
    """Of a prompt of TOKENS tokens, in two chunks; with features in place of some, if it sees."""
    whole = load_config(path)
    config = whole.text if isinstance(whole, LlavaConfig) else whole
    device = torch.device("cpu")
    net = load_model(
        path, whole, dtype=torch.float32, device=device, max_len=64, parallel=parallel,
        progress=False,
    )  # fmt: skip
    kv_heads = kv_heads_of(config.num_kv_heads, parallel)
    pool = [torch.zeros(TOKENS, 2, kv_heads, config.head_dim) for _ in range(config.num_layers)]
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (TOKENS,), generator=random)
    slots = torch.randperm(TOKENS, generator=random)
    features = torch.randn(4, config.hidden_size, generator=random)
    parts = []
    for start, stop in ((0, 12), (12, TOKENS)):
        wanted = [i - start for i in WANTED if start <= i < stop]
        seen = {}
        if isinstance(whole, LlavaConfig) and start == 0:
            seen = {"image_rows": torch.arange(5, 9), "image_features": features}
        parts.append(
            net(
                ForwardBatch(
                    input_ids=ids[start:stop],
                    positions=torch.arange(start, stop),
                    out_slots=slots[start:stop],
                    logit_rows=torch.tensor(wanted),
                    pool=pool,
                    req_to_token=slots.to(torch.int32)[None],
                    extend_rows=torch.tensor([0]),
                    prefix_lens=torch.tensor([start]),
                    cu_seqlens=torch.tensor([0, stop - start]),
                    max_extend_len=stop - start,
                    **seen,
                )
            )
        )
    return torch.cat(parts)


@torch.inference_mode()
def main() -> None:
    rank, store, out, *models = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=4)
    groups = {2: dist.new_group([0, 1]), 4: dist.group.WORLD}
    for number, model in enumerate(models):
        for size, group in groups.items():
            if int(rank) >= size:
                continue
            parallel = Parallel(int(rank), size, group)
            logits = logits_of(Path(model), parallel)
            name = f"{out}/{number}-{size}-{rank}"
            torch.save(logits, f"{name}.pt")
            sent = [parallel.traffic.all_reduce, parallel.traffic.all_gather]
            Path(f"{name}.json").write_text(json.dumps(sent))
    dist.barrier()  # nobody leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
