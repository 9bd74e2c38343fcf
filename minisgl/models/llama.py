"""Llama (arXiv 2302.13971) and its siblings: Llama 2/3.x, Mistral dense, SmolLM.

One block, in the paper's order:

    x = x + Attention(norm(x));   x = x + MLP(norm(x))

The residual stream is carried beside `x`, so that each addition is fused into the norm after it.
"""

from __future__ import annotations

import torch
from torch import nn

from minisgl.models.attention import RadixAttention
from minisgl.models.config import ModelConfig
from minisgl.models.embedding import LMHead, VocabParallelEmbedding
from minisgl.models.forward_batch import ForwardBatch
from minisgl.models.layers import GatedMLP, RMSNorm
from minisgl.models.linear import QKVParallelLinear, RowParallelLinear
from minisgl.models.loader import WeightSlot
from minisgl.models.rope import rope_table
from minisgl.parallel import Parallel


class Attention(nn.Module):
    """qkv projection, RadixAttention, output projection.  x [T, D] -> [T, D], or [L, D] of `rows`.

    Every token leaves its keys and values, but only those of `rows` [L] go on (None: all do).
    """

    def __init__(self, config: ModelConfig, layer: int, parallel: Parallel) -> None:
        super().__init__()
        c = config
        self.qkv = QKVParallelLinear(
            c.hidden_size,
            c.num_heads,
            c.num_kv_heads,
            c.head_dim,
            bias=c.attention_bias,
            parallel=parallel,
        )
        self.attend = RadixAttention(
            layer, self.qkv.num_heads, self.qkv.num_kv_heads, c.head_dim, c.sliding_window
        )
        self.out = RowParallelLinear(
            c.num_heads * c.head_dim, c.hidden_size, bias=c.attention_bias, parallel=parallel
        )

    def forward(
        self, x: torch.Tensor, batch: ForwardBatch, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = self.attend(self.qkv(x), batch)
        y: torch.Tensor = self.out(x if rows is None else x[rows])
        return y

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        return {
            **self.qkv.weight_slots(f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj"),
            **self.out.weight_slots(f"{prefix}.o_proj"),
        }


class DecoderLayer(nn.Module):
    """One block; `residual` is the stream, `x` what the previous block adds to it.

    `rows`: the tokens that go on after the block's attention; None: all.
    """

    mlp_name = "mlp"  # as checkpoints call it

    def __init__(self, config: ModelConfig, layer: int, parallel: Parallel) -> None:
        super().__init__()
        c = config
        self.attention_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.attention = Attention(c, layer, parallel)
        self.mlp_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = self.make_mlp(c, parallel)

    def make_mlp(self, config: ModelConfig, parallel: Parallel) -> nn.Module:
        """The half of a block that looks at each token alone."""
        c = config
        return GatedMLP(c.hidden_size, c.intermediate_size, bias=c.mlp_bias, parallel=parallel)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: ForwardBatch,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            x, residual = self.attention_norm(x), x
        else:
            x, residual = self.attention_norm.add(x, residual)
        x = self.attention(x, batch, rows)
        if rows is not None:
            residual = residual[rows]
        x, residual = self.mlp_norm.add(x, residual)
        return self.mlp(x), residual

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        return {
            **self.attention_norm.weight_slots(f"{prefix}.input_layernorm.weight"),
            **self.attention.weight_slots(f"{prefix}.self_attn"),
            **self.mlp_norm.weight_slots(f"{prefix}.post_attention_layernorm.weight"),
            **self.mlp.weight_slots(f"{prefix}.{self.mlp_name}"),  # type: ignore[operator]
        }


class LlamaModel(nn.Module):
    """ids [T] -> normalised hidden states [L, D] of the L tokens in `batch.logit_rows`."""

    def __init__(
        self, config: ModelConfig, max_len: int, parallel: Parallel, block: type[DecoderLayer]
    ) -> None:
        super().__init__()
        c = config
        self.embed = VocabParallelEmbedding(c.vocab_size, c.hidden_size, parallel)
        self.layers = nn.ModuleList(block(c, i, parallel) for i in range(c.num_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        cos, sin = rope_table(c.rope, c.head_dim, max_len)  # [P, D] each
        self.cos: torch.Tensor
        self.sin: torch.Tensor
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        batch.cos, batch.sin = self.cos[batch.positions], self.sin[batch.positions]  # [T, D]
        x, residual = self.embed(batch.input_ids), None
        if batch.image_rows is not None:
            assert batch.image_features is not None
            x.index_copy_(0, batch.image_rows, batch.image_features)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            # Of a prompt's other tokens, nobody reads more than the keys and values.
            rows = batch.logit_rows if i == last else None
            x, residual = layer(x, residual, batch, rows)
        assert residual is not None
        return self.norm.add(x, residual)[0]


class LlamaForCausalLM(nn.Module):
    """ids [T] -> logits [L, V] of the L tokens in `batch.logit_rows`.

    `max_len` is the longest context that will be served: the rope table's length.
    """

    block = DecoderLayer

    def __init__(
        self, config: ModelConfig, max_len: int | None = None, parallel: Parallel | None = None
    ) -> None:
        super().__init__()
        parallel = parallel or Parallel()
        self.config = config
        self.model = LlamaModel(config, max_len or config.max_position, parallel, self.block)
        tied = self.model.embed if config.tie_word_embeddings else None
        self.lm_head = LMHead(config.vocab_size, config.hidden_size, parallel, tied)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(self.model(batch))
        return logits

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Where each tensor of a Hugging Face checkpoint goes."""
        slots = self.model.embed.weight_slots("model.embed_tokens.weight")
        for i, layer in enumerate(self.model.layers):
            slots.update(layer.weight_slots(f"model.layers.{i}"))  # type: ignore[operator]
        slots.update(self.model.norm.weight_slots("model.norm.weight"))
        if not self.config.tie_word_embeddings:
            slots.update(self.lm_head.weight_slots("lm_head.weight"))
        return slots
