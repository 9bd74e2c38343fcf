"""`Nowhere`: what stands for a backend while a program is only traced."""

from __future__ import annotations

from collections.abc import AsyncIterator

from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.context import Context
from minisgl.sampling import SamplingParams


class Nowhere(Backend):
    """Stands for the backend of a program that is only traced, which may be any."""

    name = "no model"
    can_see = True

    @property
    def chat(self) -> ChatFormat:
        """There is none."""
        raise ValueError("a program that is traced has no chat format")

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """There is nobody to answer."""
        raise ValueError("a program that is traced has no model")

    async def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        """There is nobody to answer."""
        for answer in await self.generate(context, params):
            yield answer
