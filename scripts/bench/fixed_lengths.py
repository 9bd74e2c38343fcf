"""`FixedLengths`: programs on a model of noise, whose answers all have the length asked for.

A model with random weights says "Observation" never and the end of a text anywhere, so what a
program takes would be chance, and another chance on a system that rounds in another way.  Of a
backend with this in front a free answer has `max_tokens` tokens.  What has a pattern still ends
with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from minisgl.lang import Runtime
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.context import Context
from minisgl.sampling import SamplingParams
from scripts.bench.peers.backend import PeerBackend


def fixed(params: SamplingParams) -> SamplingParams:
    """Without an end but the last token.

    >>> fixed(SamplingParams(max_tokens=8, stop="end")).stop
    ()
    >>> fixed(SamplingParams(max_tokens=8, regex="[a-z]+")).ignore_eos
    False
    """
    if params.regex is not None or params.json_schema is not None:
        return params
    return replace(params, ignore_eos=True, stop=(), stop_token_ids=())


class FixedLengths(Backend):
    """In front of a backend's class, it asks that one for answers of fixed lengths."""

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """See `Backend`."""
        return await super().generate(context, fixed(params))

    async def generate_all(
        self, contexts: Sequence[Context], params: Sequence[SamplingParams]
    ) -> list[list[Answer]]:
        """See `Backend`."""
        return await super().generate_all(contexts, [fixed(each) for each in params])

    def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        """See `Backend`."""
        return super().stream(context, fixed(params))


class FixedRuntime(FixedLengths, Runtime):
    """An engine of ours."""


class FixedPeer(FixedLengths, PeerBackend):
    """Another system."""
