"""outlines: patterns for `transformers`, by masks over the logits; all else as transformers.py.

The index of a pattern over the vocabulary is built once, and kept for all waves.  There is no
select: outlines scores nothing.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from typing import Any

import outlines
from outlines.backends.outlines_core import OutlinesCoreBackend

from scripts.bench.peers import transformers


def version() -> str:
    """Of the package."""
    return metadata.version("outlines")


class System(transformers.System):
    """See the module."""

    features = ("regex",)

    def __init__(self, model: str, dtype: str, device: str) -> None:
        super().__init__(model, dtype, device)
        backend = OutlinesCoreBackend(outlines.from_transformers(self.model, self.tokenizer))
        self._processor = lru_cache(maxsize=64)(backend.get_regex_logits_processor)

    def generate(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`; a batch follows one pattern, or none."""
        answers: dict[int, dict[str, Any]] = {}
        for pattern in dict.fromkeys(request["regex"] for request in wave):
            places = [i for i, request in enumerate(wave) if request["regex"] == pattern]
            requests = [wave[i] for i in places]
            if pattern is not None:  # its end is an EOS
                requests = [{**request, "ignore_eos": False} for request in requests]
            answers |= zip(places, super().generate(requests), strict=True)
        return [answers[i] for i in range(len(wave))]

    def _constraints(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        pattern = requests[0]["regex"]
        if pattern is None:
            return {}
        processor = self._processor(pattern)
        processor.reset()
        return {"logits_processor": [processor]}
