"""Attention over the paged KV pool: one layer's way from fused qkv to mixed values.

RadixAttention (paper section 3) needs nothing special here: a cached prefix is only slot numbers in
the request's row, so shared and private tokens are read alike.
"""

from __future__ import annotations

import torch
from torch import nn

from minisgl.kernels.cascade_attention import cascade_attention
from minisgl.kernels.decode_attention import decode_attention
from minisgl.kernels.dispatch import use_triton
from minisgl.kernels.extend_attention import extend_attention
from minisgl.kernels.extend_on_cpu import plan_extends
from minisgl.kernels.kv_store import kv_store
from minisgl.kernels.rotary import rotary_
from minisgl.models.forward_batch import ForwardBatch


class RadixAttention(nn.Module):
    """Rotate, store, attend.

    Shapes: qkv [T, (H + 2 KV) D] -> [T, H D], heads in the order q, k, v.
    """

    def __init__(
        self, layer: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int = 0
    ) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.window = window
        self.scale = head_dim**-0.5

    def forward(self, qkv: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        T, H, KV, D = qkv.shape[0], self.num_heads, self.num_kv_heads, self.head_dim
        heads = qkv.view(T, H + 2 * KV, D)
        rotary_(heads[:, : H + KV], batch.cos, batch.sin)
        q = heads[:, :H]  # [T, H, D]
        kv = heads[:, H:].view(T, 2, KV, D)
        kv_store(kv, batch.pool[self.layer], batch.out_slots)

        seated = batch.num_seated
        decodes = seated + batch.num_paged
        parts: list[torch.Tensor] = []
        if seated:
            assert batch.workspace is not None
            its = (q, kv) if seated == T else (q[:seated], kv[:seated])
            parts.append(batch.workspace.attend(self.layer, *its, self.scale))
        if batch.num_paged:
            assert batch.decode_rows is not None and batch.decode_seq_lens is not None
            paged_batch = (
                q[seated:decodes],
                batch.pool[self.layer],
                batch.req_to_token,
                batch.decode_rows,
                batch.decode_seq_lens,
            )
            if batch.decode_segments is None:
                parts.append(decode_attention(*paged_batch, self.scale, window=self.window))
            else:
                assert not self.window  # then keys fall out of a prefix, and nothing is shared
                parts.append(cascade_attention(*paged_batch, batch.decode_segments, self.scale))
        if decodes < T:
            assert batch.extend_rows is not None
            assert batch.prefix_lens is not None and batch.cu_seqlens is not None
            who = (batch.req_to_token, batch.extend_rows, batch.prefix_lens, batch.cu_seqlens)
            if batch.extend_plan is None and not use_triton(q):
                batch.extend_plan = plan_extends(*who, window=self.window)
            parts.append(
                extend_attention(
                    q[decodes:],
                    kv[decodes:],
                    batch.pool[self.layer],
                    *who,
                    batch.max_extend_len,
                    self.scale,
                    causal=True,
                    window=self.window,
                    plan=batch.extend_plan,
                )
            )
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.reshape(T, H * D)
