"""What a checkpoint says about its model: `config.json` read once, checked once, frozen.

Everything that changes a number is either read or refused; nothing is guessed.  The only defaults
are those of transformers' `LlamaConfig`, `MistralConfig` and `MixtralConfig`, for keys which their
files leave out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM")
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
}
_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "MistralForCausalLM": {
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "MixtralForCausalLM": {
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
}
_DEFAULT_THETA = {"LlamaForCausalLM": 1e4, "MistralForCausalLM": 1e4, "MixtralForCausalLM": 1e6}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base `theta` and how its frequencies are stretched (see rope.py).

    `max_position` is the context the config claims, `original_max_position` the one the model was
    trained at before it was stretched.  `factor` 0 means "not given".
    """

    theta: float
    type: str = "default"
    max_position: int = 0
    factor: float = 0.0
    original_max_position: int = 0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.type not in ROPE_TYPES:
            raise ValueError(
                f"rope type {self.type!r} is not supported; these are: {', '.join(ROPE_TYPES)}"
            )
        if not self.theta > 1:
            raise ValueError(f"rope_theta is {self.theta}; it must be greater than 1")
        needs = {"linear": ("factor",), "dynamic": ("factor", "max_position")}
        needs["yarn"] = ("factor", "original_max_position")
        needs["llama3"] = (*needs["yarn"], "low_freq_factor", "high_freq_factor")
        for name in needs.get(self.type, ()):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"rope type {self.type!r} needs {name!r} greater than 0, "
                    f"and it is {getattr(self, name)}"
                )
        if self.type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"rope type 'llama3' needs high_freq_factor > low_freq_factor, "
                f"got {self.high_freq_factor} and {self.low_freq_factor}"
            )


@dataclass(frozen=True)
class ModelConfig:
    """A model of the Llama family, in this project's names.

    `num_experts` is 0 in a dense model; where it isn't, `intermediate_size` is that of one expert.
    `sliding_window` counts the newest keys that a query may see, itself included (0: all of them).
    `eos_token_ids` is the union of config.json and generation_config.json; the tokenizer adds its
    own.  `dtype` is what the config says of the stored weights, float32 if nothing.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    tie_word_embeddings: bool
    rope: RopeConfig
    num_experts: int = 0
    experts_per_token: int = 0
    sliding_window: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
        for name in (*sizes, "num_kv_heads", "head_dim", "max_position"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads {self.num_heads} is not a multiple of "
                f"num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if self.architecture == "MixtralForCausalLM":
            _check_experts(self.num_experts, self.experts_per_token)
        if self.sliding_window < 0:
            raise ValueError(f"sliding_window is {self.sliding_window}; it must be 0 or more")

    @classmethod
    def from_dir(cls, path: str | Path) -> ModelConfig:
        """The config of a Hugging Face directory: config.json, and generation_config.json if there.

        Raises:
            ValueError: no config.json, no JSON in it, or a model that isn't supported.
        """
        path = Path(path)
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is not a model directory: it has no config.json")
        file = path / "generation_config.json"
        try:
            generation = read_json(file) if file.is_file() else {}
            return cls.from_dict(read_json(path / "config.json"), generation)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Read the contents of config.json and generation_config.json.

        Raises:
            ValueError: an unsupported architecture, activation, quantization or rope type, or a key
                that is missing.
        """
        architecture = _architecture(config)
        _refuse_unsupported(config)
        c = {**_CLASS_DEFAULTS[architecture], **config}
        heads: int = c["num_attention_heads"]
        head_dim = c.get("head_dim")
        if head_dim is None:
            if c["hidden_size"] % heads:
                raise ValueError(
                    f"hidden_size {c['hidden_size']} is not a multiple of num_attention_heads "
                    f"{heads}, and the config gives no head_dim"
                )
            head_dim = c["hidden_size"] // heads
        kv_heads = c.get("num_key_value_heads")
        mixtral = architecture == "MixtralForCausalLM"
        llama = architecture == "LlamaForCausalLM"  # only Llama has biases, and no window
        return cls(
            architecture=architecture,
            vocab_size=c["vocab_size"],
            hidden_size=c["hidden_size"],
            intermediate_size=c["intermediate_size"],
            num_layers=c["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=heads if kv_heads is None else kv_heads,
            head_dim=head_dim,
            rms_norm_eps=float(c["rms_norm_eps"]),
            max_position=c["max_position_embeddings"],
            tie_word_embeddings=bool(c.get("tie_word_embeddings", False)),
            rope=_rope(c, _DEFAULT_THETA[architecture]),
            num_experts=c["num_local_experts"] if mixtral else 0,
            experts_per_token=c["num_experts_per_tok"] if mixtral else 0,
            sliding_window=0 if llama else c["sliding_window"] or 0,
            attention_bias=llama and bool(c.get("attention_bias", False)),
            mlp_bias=llama and bool(c.get("mlp_bias", False)),
            bos_token_id=c.get("bos_token_id"),
            eos_token_ids=_token_ids(c) | _token_ids(generation or {}),
            dtype=_dtype(c),
        )


def _check_experts(count: Any, per_token: Any) -> None:
    """Raise unless a token can go to `per_token` of `count` experts."""
    if type(count) is not int or count < 1:
        raise ValueError(f"num_local_experts is {count!r}; it must be a whole number of at least 1")
    if type(per_token) is not int or not 1 <= per_token <= count:
        raise ValueError(
            f"num_experts_per_tok is {per_token!r}; it must be a whole number from 1 to {count}, "
            "the number of experts"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: the file holds something else; the message names it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a {type(value).__name__}, not an object")
    return value


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [
        _MODEL_TYPES.get(config.get("model_type", ""), config.get("model_type", "none given"))
    ]
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    raise ValueError(
        f"architecture {', '.join(map(str, names))} is not supported; "
        f"these are: {', '.join(ARCHITECTURES)}"
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise for what would load and then compute something else."""
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    missing = [key for key in (*needed, "num_attention_heads") if config.get(key) is None]
    if missing:
        raise ValueError(f"the config lacks {', '.join(missing)}")
    for key in (*needed, "num_attention_heads", "num_key_value_heads", "max_position_embeddings"):
        if (value := config.get(key)) is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{key} is {value!r}; it must be a whole number of at least 1")
    if (activation := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise ValueError(f"hidden_act {activation!r} is not supported; only 'silu' is")
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unnamed")
        raise ValueError(
            f"quantization_config ({method!r}) is not supported; unquantized safetensors in "
            f"{', '.join(DTYPES)} are, and GGUF files, which are converted"
        )
    if len(set(config.get("layer_types") or ())) > 1:
        raise ValueError(
            "layer_types mixes kinds of attention; only one kind for all layers is supported"
        )


def _rope(config: Mapping[str, Any], default_theta: float) -> RopeConfig:
    """Both spellings: transformers 5's `rope_parameters`, and `rope_theta` with `rope_scaling`.

    Subtle: `rope_parameters` without a theta are refused, since a default theta there is silently
    wrong by a factor of up to 100; and so is Llama 3's scaling, which is younger than the key.  Any
    other file without one is older, and means its architecture's `default_theta`.
    """
    new, old = _rope_keys(config, "rope_parameters"), _rope_keys(config, "rope_scaling")
    if new and old and {**new, "rope_theta": None} != {**old, "rope_theta": None}:
        raise ValueError(f"rope_parameters {new} and rope_scaling {old} contradict each other")
    given = new or old
    kind = given.get("rope_type", "default")
    theta = given.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        if config.get("rope_parameters") is not None or kind == "llama3":
            raise ValueError(f"{given} of a rotary embedding give no rope_theta")
        theta = default_theta
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ValueError(f"partial_rotary_factor {partial} is not supported; only 1.0 is")

    max_position = int(config["max_position_embeddings"])
    original = (
        config.get("original_max_position_embeddings")
        or given.get("original_max_position_embeddings")
        or max_position
    )
    factor = given.get("factor")
    if factor is None and kind == "yarn":
        factor = max_position / original
    return RopeConfig(
        theta=float(theta),
        type=str(kind),
        max_position=max_position,
        factor=float(factor or 0.0),
        original_max_position=int(original),
        low_freq_factor=float(given.get("low_freq_factor") or 0.0),
        high_freq_factor=float(given.get("high_freq_factor") or 0.0),
        attention_factor=given.get("attention_factor"),
        beta_fast=float(given.get("beta_fast") or 32.0),
        beta_slow=float(given.get("beta_slow") or 1.0),
        mscale=float(given.get("mscale") or 0.0),
        mscale_all_dim=float(given.get("mscale_all_dim") or 0.0),
        truncate=bool(given.get("truncate", True)),
    )


def _rope_keys(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What stands under `key`, its kind in any case as "rope_type"; {} if nothing does."""
    found = config.get(key) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{key} is {found!r}; it must be an object")
    given = dict(found)
    if any(isinstance(value, Mapping) for value in given.values()):
        raise ValueError(f"rope parameters per kind of layer are not supported: {sorted(given)}")
    new, old = given.pop("rope_type", None), given.pop("type", None)
    if new and old and new != old:
        raise ValueError(f"{key} names two kinds: rope_type {new!r} and type {old!r}")
    if kind := new or old:
        return {**given, "rope_type": kind}
    if given.keys() - {"rope_theta", "partial_rotary_factor"}:
        raise ValueError(f"{key} {given} gives no rope_type")
    return given


def _token_ids(config: Mapping[str, Any]) -> frozenset[int]:
    """eos_token_id as a set: it may be absent, one id, or a list of them."""
    ids = config.get("eos_token_id")
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    name = config.get("dtype", config.get("torch_dtype")) or "float32"
    name = str(name).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not supported; these are: {', '.join(DTYPES)}")
    return DTYPES[name]
