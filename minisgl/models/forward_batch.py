"""`ForwardBatch`: everything one forward pass needs, handed over explicitly.

The engine builds it, the model's layers read it, the kernels get its tensors.  There is no global
context: whoever holds a `ForwardBatch` can run a layer.

Tokens of the step lie one after the other:

    | s0 | s1 | s2 s2 s2 | d0 | d1 |  e0 e0 e0 e0  |  e1 e1  |          T tokens
    '---- num_seated ----' num_paged '------ cu_seqlens -----'

A decode is one token of a running request; an extend is a run of new tokens (a prompt, a chunk of
one, or a jump) on top of a cached prefix.  One step may hold both.  Those of requests that have a
row in the workspace come first: they attend there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from minisgl.kernels.cascade_attention import Segments
from minisgl.kernels.extend_on_cpu import ExtendPlan


class DecodeWorkspace(Protocol):
    """Contiguous copies of running requests' K and V (CPU); see engine/decode_workspace.py."""

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        """Append `kv` [W, 2, KV, D], then attend `q` [W, H, D] to all before it -> [W, H, D]."""


@dataclass
class ForwardBatch:
    """One step's tokens and where their keys and values live.

    Shapes: T tokens, E extends that read the pool, R request rows, C context, P positions of the
    rope table.
    """

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    out_slots: torch.Tensor  # [T] int64: where each token's K and V are written
    logit_rows: torch.Tensor | None  # [L] int64: the tokens whose logits are wanted; None: all

    pool: list[torch.Tensor]  # per layer [S, 2, KV, D]
    req_to_token: torch.Tensor  # [R, C] int32: slot of each position of each request row

    num_seated: int = 0  # tokens of requests in the workspace
    num_paged: int = 0  # decodes that read the pool
    decode_rows: torch.Tensor | None = None  # [num_paged] int64
    decode_seq_lens: torch.Tensor | None = None  # [num_paged] int64, the new token included
    decode_segments: Segments | None = None  # prefixes that the paged decodes share; None: none
    workspace: DecodeWorkspace | None = None

    extend_rows: torch.Tensor | None = None  # [E] int64
    prefix_lens: torch.Tensor | None = None  # [E] int64
    cu_seqlens: torch.Tensor | None = None  # [E + 1] int64, starting at 0 (the first extend token)
    max_extend_len: int = 0

    # Tokens that an image's features stand for, instead of an embedding of their ids.
    image_rows: torch.Tensor | None = None  # [M] int64: their places among the T; None: no image
    image_features: torch.Tensor | None = None  # [M, hidden], in the model's dtype

    # The model gathers these once per step; every layer's rotary uses them.
    cos: torch.Tensor = field(init=False)  # [T, D] float32
    sin: torch.Tensor = field(init=False)  # [T, D] float32

    # On a CPU the first layer makes it, for all: they have one window.
    extend_plan: ExtendPlan | None = field(init=False, default=None)
