"""A GGUF file and the directory made from it are the same model with the same tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from minisgl.models import gguf as our_gguf
from minisgl.models.config import ModelConfig
from minisgl.models.gguf import convert, hub_name, main, unpermute
from minisgl.models.gguf_tokenizer import build_tokenizer

gguf = pytest.importorskip("gguf")

H, KV, D, HIDDEN, INNER, LAYERS = 4, 2, 16, 48, 80, 2
SPECIALS = ["<|end|>", "<|user|>"]
ALPHABET = sorted(ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 w", "1 2"]
TOKENS = [*SPECIALS, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def reference_model(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=H,
        num_key_value_heads=KV,
        head_dim=D,
        rms_norm_eps=1e-5,
        **{
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 30000.0},
            **changes,
        },
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    return model


def gguf_name(name: str) -> str:
    prefix, leaf = name.rsplit(".", 1)
    if not prefix.startswith("model.layers."):
        return f"{GGUF_NAMES[prefix]}.{leaf}"
    layer, part = prefix.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{leaf}"


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """What writers of GGUF do to the rows of q and k: the halves of each head, interleaved."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    edit: Callable[[Any], None] = lambda writer: None,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
    dtype: type[np.generic] = np.float32,
) -> Path:
    """`model` as a GGUF file; `edit` may add to the writer (a later key replaces none)."""
    w, c = gguf.GGUFWriter(path, architecture), model.config
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(TOKENS)
    w.add_token_types([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)))
    w.add_token_merges(MERGES)
    w.add_eos_token_id(0)
    w.add_bos_token_id(1)
    w.add_chat_template("{{ bos_token }}{{ messages[0]['content'] }}")
    edit(w)
    for name, parameter in model.state_dict().items():
        if c.tie_word_embeddings and name == "lm_head.weight":
            continue
        values = parameter.float().numpy()
        if "q_proj" in name or "k_proj" in name:
            values = permute(values, H if "q_proj" in name else KV)
        w.add_tensor(gguf_name(name), values.astype(dtype if values.ndim > 1 else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


IDS = torch.tensor([[5, 3, 9, 200, 77, 4, 4, 1]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": False},
        {"attention_bias": True, "mlp_bias": True},
    ],
    ids=["tied", "untied", "biases"],
)
def test_the_converted_model_has_the_same_logits(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = reference_model(**changes)
    out = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(logits(again), logits(model))
    config = ModelConfig.from_dir(out)
    assert config.tie_word_embeddings is model.config.tie_word_embeddings
    assert (config.head_dim, config.rope.theta, config.rms_norm_eps) == (D, 30000.0, 1e-5)
    assert config.eos_token_ids == {0}


def test_without_undoing_the_permutation_the_logits_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reference_model()
    monkeypatch.setattr(our_gguf, "unpermute", lambda rows, heads: rows)
    wrong = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")
    difference = logits(AutoModelForCausalLM.from_pretrained(wrong)) - logits(model)
    assert difference.abs().max() > 1e-4


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3))
def test_unpermute_is_the_inverse(heads: int, half: int, columns: int) -> None:
    rows = np.arange(heads * 2 * half * columns).reshape(-1, columns)
    assert (unpermute(permute(rows, heads), heads) == rows).all()
    assert (unpermute(permute(rows[:, 0], heads), heads) == rows[:, 0]).all()


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"rope_type": "linear", "factor": 4.0}, "linear"),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, "yarn"),
        (
            {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "llama3",
        ),
    ],
)
def test_rope_scaling_survives(tmp_path: Path, parameters: dict[str, Any], expected: str) -> None:
    parameters = {"rope_theta": 500000.0, **parameters}
    model = reference_model(rope_parameters=dict(parameters), max_position_embeddings=16384)

    def edit(w: Any) -> None:
        if expected == "llama3":
            plain = 1.0 / 500000.0 ** (torch.arange(0, D, 2).float() / D)
            w.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
            return
        w.add_rope_scaling_type(gguf.RopeScalingType(expected))
        w.add_rope_scaling_factor(4.0)
        if expected == "yarn":
            w.add_rope_scaling_orig_ctx_len(1024)

    out = convert(write_gguf(tmp_path / "m.gguf", model, edit), tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(out)
    assert again.config.rope_parameters["rope_type"] == expected
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-6)


def test_an_unknown_scaling_of_frequencies_is_refused(tmp_path: Path) -> None:
    def edit(w: Any) -> None:
        w.add_tensor("rope_freqs.weight", np.linspace(1, 3, D // 2, dtype=np.float32))

    file = write_gguf(tmp_path / "m.gguf", reference_model(), edit)
    with pytest.raises(ValueError, match=r"rope_freqs\.weight holds a scaling"):
        convert(file, tmp_path / "out")


def test_sixteen_bit_weights_stay_as_they_are(tmp_path: Path) -> None:
    model = reference_model().half().float()
    file = write_gguf(tmp_path / "m.gguf", model, dtype=np.float16)
    out = convert(file, tmp_path / "out")
    stored = load_file(out / "model.safetensors")
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == torch.float16
    assert ModelConfig.from_dir(out).dtype == torch.float16
    for name, tensor in stored.items():
        assert torch.equal(tensor.float(), model.state_dict()[name])


def test_exact_bfloat16_hidden_in_float32_is_found(tmp_path: Path) -> None:
    model = reference_model().bfloat16().float()
    out = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")
    stored = load_file(out / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert all(torch.equal(t.float(), model.state_dict()[name]) for name, t in stored.items())


def test_a_chosen_dtype_rounds(tmp_path: Path) -> None:
    model = reference_model()
    file = write_gguf(tmp_path / "m.gguf", model)
    out = convert(file, tmp_path / "out", dtype="bfloat16")
    assert ModelConfig.from_dir(out).dtype == torch.bfloat16
    head = load_file(out / "model.safetensors")["lm_head.weight"]
    assert torch.equal(head, model.lm_head.weight.detach().bfloat16())
    with pytest.raises(ValueError, match=r"'int8'.*exact, float32, float16, bfloat16"):
        convert(file, tmp_path / "other", dtype="int8")


def test_large_models_are_written_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(our_gguf, "SHARD_BYTES", 40_000)
    model = reference_model()
    out = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2 and files == {f.name for f in out.glob("*.safetensors")}
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(out)), logits(model))


def test_a_failed_conversion_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(our_gguf, "save_file", fail)
    file = write_gguf(tmp_path / "m.gguf", reference_model())
    with pytest.raises(OSError, match="No space"):
        convert(file, tmp_path / "out")
    assert [f.name for f in tmp_path.iterdir()] == ["m.gguf"]


def test_a_second_process_that_was_faster_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = write_gguf(tmp_path / "m.gguf", reference_model()), tmp_path / "out"
    write = our_gguf._write_weights

    def overtaken(*args: Any, **kwargs: Any) -> set[str]:
        out.mkdir()
        (out / "config.json").write_text("theirs")
        return write(*args, **kwargs)

    monkeypatch.setattr(our_gguf, "_write_weights", overtaken)
    assert convert(file, out) == out
    assert (out / "config.json").read_text() == "theirs"
    assert {f.name for f in tmp_path.iterdir()} == {"m.gguf", "out"}


@pytest.mark.parametrize(
    ("options", "edit", "message"),
    [
        ({"architecture": "qwen2"}, None, "'qwen2' is not supported; 'llama' is"),
        ({"pre": "deepseek-llm"}, None, "'deepseek-llm' is not supported; these are: gpt-2, llama"),
        ({}, lambda w: w.add_expert_count(8), "mixture of 8 experts"),
        ({}, lambda w: w.add_uint16("split.count", 3), "one part of several"),
        (
            {},
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
            "'longrope' is not supported; none, linear and yarn are",
        ),
        (
            {},
            lambda w: w.add_tensor("blk.0.attn_q_norm.weight", np.ones(D, dtype=np.float32)),
            r"'blk\.0\.attn_q_norm\.weight' has no place",
        ),
    ],
)
def test_what_is_refused_and_in_which_words(
    tmp_path: Path, options: dict[str, Any], edit: Any, message: str
) -> None:
    file = write_gguf(tmp_path / "m.gguf", reference_model(), edit or (lambda w: None), **options)
    with pytest.raises(ValueError, match=message):
        convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", reference_model())
    whole = file.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:100], b"not a GGUF file at all"):
        file.write_bytes(damage)
        with pytest.raises(ValueError, match=r"m\.gguf is not a complete GGUF file"):
            convert(file, tmp_path / "out")
    with pytest.raises(ValueError, match=r"there is no file .*nothing\.gguf"):
        convert(tmp_path / "nothing.gguf", tmp_path / "out")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=r"pip install 'minisgl\[gguf\]'"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "m.gguf", reference_model())
    out = tmp_path / "out"
    assert main([str(file), str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert main([str(file), str(out)]) == 1
    assert "exists already" in capsys.readouterr().err
    shown = subprocess.run(
        [sys.executable, "-m", "minisgl.models.gguf", "--help"], capture_output=True, text=True
    )
    assert shown.returncode == 0 and "--dtype" in shown.stdout


# Tokenizers


def test_byte_level_tokenizer_and_its_config(tmp_path: Path) -> None:
    out = convert(write_gguf(tmp_path / "m.gguf", reference_model()), tmp_path / "out")
    ours, theirs = (
        Tokenizer.from_file(str(out / "tokenizer.json")),
        AutoTokenizer.from_pretrained(out),
    )
    text = "hello world 1212 \u00e9\U0001f600\n<|user|>hell"
    ids = ours.encode(text).ids
    assert theirs(text)["input_ids"] == ids
    assert TOKENS.index("hello") in ids and 1 in ids  # merged; the special token is not cut
    assert TOKENS.index("12") not in ids  # digits stand alone, though a merge would join them
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.decode(ids) == text.replace("<|user|>", "")
    assert (theirs.eos_token, theirs.bos_token) == ("<|end|>", "<|user|>")
    assert theirs.apply_chat_template([{"content": "hi"}], tokenize=False) == "<|user|>hi"


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["it", "'s", " 1234", " x", " \n", " y"]),
        ("smollm", ["it", "'s", " ", "1", "2", "3", "4", " x", " \n", " y"]),
        ("llama-bpe", ["it", "'s", " ", "123", "4", " x", " \n", " y"]),
        ("tekken", ["it", "'s", " ", "1", "2", "3", "4", " x", " \n", " y"]),
    ],
)
def test_how_each_pre_tokenizer_cuts_words(pre: str, words: list[str]) -> None:
    tokenizer, _ = build_tokenizer(metadata(pre))
    assert tokenizer.pre_tokenizer is not None
    text = "it's 1234 x \n y"
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == words


def metadata(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "llama.context_length": 64,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return {**meta, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}


def test_bos_is_added_just_where_the_file_or_the_kind_says() -> None:
    def ids(**changes: Any) -> list[int]:
        return build_tokenizer(metadata(**changes))[0].encode("hello").ids

    hello = TOKENS.index("hello")
    assert ids() == [hello]
    assert ids(add_bos_token=True) == [1, hello]
    assert ids(add_bos_token=True, add_eos_token=True) == [1, hello, 0]
    assert ids(pre="llama-bpe") == [1, hello]
    assert ids(pre="llama-bpe", add_bos_token=False) == [hello]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "'bert' is not supported; 'gpt2' and 'llama' are"),
        ({"pre": None}, "None is not supported"),
        ({"tokens": []}, "no vocabulary"),
        ({"tokens": ["a", "a"]}, "same token twice"),
        ({"merges": []}, "no merges"),
        ({"token_type": [1]}, "1 token types"),
        ({"model": "llama"}, "0 scores"),
    ],
)
def test_broken_vocabularies_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tokenizer(metadata(**changes))


PIECES = [
    "\u2581",
    *"abcde",
    "ab",
    "cd",
    "\u2581a",
    "\u2581ab",
    "abcd",
    "bc",
    "de",
    "cde",
    "\u2581b",
]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
SCORES = [0.0] * 259 + [
    -float(2 * len(PIECES) - 3 * len(p) - i / 100) for i, p in enumerate(PIECES)
]


def sentencepiece(**changes: Any) -> Tokenizer:
    types = [2, 3, 3] + [6] * 256 + [1] * len(PIECES)
    settings = {"model": "llama", "tokens": SPM_TOKENS, "scores": SCORES, "token_type": types}
    settings |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return build_tokenizer(metadata(**{**settings, **changes}))[0]


def joined_by_score(text: str) -> list[str]:
    """SentencePiece's BPE, slow and obvious: join the neighbours with the best-scored piece."""
    pieces = list("\u2581" + text.replace(" ", "\u2581"))
    score = dict(zip(SPM_TOKENS, SCORES, strict=True))
    while True:
        joins = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in score]
        if not joins:
            return pieces
        _, i = min(joins)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


SPM = sentencepiece(add_bos_token=False)


@given(st.text("abcde ", min_size=1, max_size=30))
def test_sentencepiece_joins_by_score(text: str) -> None:
    assert SPM.encode(text).tokens == joined_by_score(text)


@given(st.text(max_size=20).filter(lambda text: "\u2581" not in text))
def test_sentencepiece_round_trip_in_bytes_where_needed(text: str) -> None:
    assert SPM.decode(SPM.encode(text).ids) == text


def test_sentencepiece_adds_bos_and_a_space_unless_told_otherwise() -> None:
    assert sentencepiece().encode("ab").tokens == ["<s>", "\u2581ab"]
    assert sentencepiece(add_space_prefix=False, add_bos_token=False).encode("ab").tokens == ["ab"]
    assert sentencepiece(add_space_prefix=False).decode([259, 260]) == " a"


# The default model


def test_the_default_models_weights_equal_ggufs_own_dequantisation(default_model_dir: Path) -> None:
    from gguf.quants import dequantize

    from minisgl.models.hub import default_gguf

    reader = gguf.GGUFReader(default_gguf())
    with safe_open(default_model_dir / "model.safetensors", framework="pt") as stored:
        assert set(stored.keys()) == {hub_name(t.name) for t in reader.tensors}
        for tensor in reader.tensors[::40]:
            ours = stored.get_tensor(hub_name(tensor.name)).float().numpy()
            theirs = dequantize(tensor.data, tensor.tensor_type)
            heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
            assert (ours if heads is None else permute(ours, heads)).tobytes() == theirs.tobytes()


def test_the_default_models_tokenizer(default_model_dir: Path) -> None:
    ours = Tokenizer.from_file(str(default_model_dir / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(default_model_dir)
    specials = ours.get_added_tokens_decoder()
    assert sorted(specials) == list(range(17))
    assert specials[2].content == "<|im_end|>" and specials[2].special
    assert ours.get_vocab_size() == len(theirs) == 49152
    for text in (
        "Hello world",
        "In 2024 it's 3.14159\t\n\n  x = {'a': 1}",
        "\u65e5\u672c\u8a9e \u00e9moji \U0001f600\U0001f468\u200d\U0001f469",
        "<|im_start|>user\nhi<|im_end|>\n",
    ):
        ids = ours.encode(text).ids
        assert theirs(text)["input_ids"] == ids
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.encode("Hello world").ids == [19556, 905]
    assert ours.encode("12").ids == [33, 34]
