"""Settings are refused at the door, with the value and what is allowed."""

from __future__ import annotations

import pytest

from minisgl.config import EngineConfig


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("load_format", "pt", "auto, dummy"),
        ("device", "tpu", "cpu, cuda"),
        ("dtype", "int4", "float32"),
        ("kv_dtype", "int8", "float32"),
        ("policy", "lifo", "lpm, dfs-weight, fcfs, random"),
        ("max_overtakes", -1, "at least 0"),
        ("max_cached_tokens", -1, "at least 0, or None"),
        ("max_running", 0, "at least 1"),
        ("max_running", None, "at least 1"),
        ("prefill_budget", -5, "at least 1"),
        ("prefill_budget", True, "at least 1"),
        ("context_length", 2.5, "or None"),
        ("kv_tokens", 0, "or None"),
        ("cuda_graphs", "no", "True or False"),
        ("shared_decode", 1, "True or False"),
        ("prefix_cache", "trie", "tree, table, none"),
        ("max_hit_rate", 1.1, r"\[0, 1\]"),
        ("max_hit_rate", -0.1, r"\[0, 1\]"),
        ("max_hit_rate", "0.5", r"\[0, 1\]"),
        ("max_hit_rate", float("nan"), r"\[0, 1\]"),
        ("kv_memory_fraction", 0.0, r"\(0, 1\]"),
        ("kv_memory_fraction", 1.5, r"\(0, 1\]"),
        ("kv_memory_fraction", "1", r"\(0, 1\]"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(field: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        EngineConfig(**{field: value})
    assert f"{field}={value!r}" in str(error.value)


def test_defaults_are_allowed() -> None:
    assert EngineConfig().policy == "lpm"
