"""minisgl.lang: programs that talk with language models (the paper's section 2).

    import minisgl.lang as sgl

    @sgl.function
    def qa(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=64))

    print(qa.run("What is the capital of France?")["answer"])

The names are SGLang's.  `Engine` and `Runtime` load on first use, since they import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from minisgl.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    flush_cache,
    function,
    gen,
    gen_int,
    gen_string,
    get_server_args,
    get_server_info,
    image,
    role,
    select,
    set_default_backend,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from minisgl.lang.backends.base import Backend
from minisgl.lang.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from minisgl.lang.config import global_config
from minisgl.lang.function import Function
from minisgl.lang.group import ProgramStateGroup
from minisgl.lang.program import ProgramCancelledError
from minisgl.lang.state import ProgramState
from minisgl.lang.values import TraceError

if TYPE_CHECKING:
    from minisgl.lang.backends.engine import Engine, Runtime

__all__ = [
    "Backend", "ChoicesDecision", "ChoicesSamplingMethod", "Engine", "Function",
    "ProgramCancelledError", "ProgramState", "ProgramStateGroup", "Runtime", "TraceError",
    "assistant", "assistant_begin", "assistant_end", "flush_cache", "function", "gen", "gen_int",
    "gen_string", "get_server_args", "get_server_info", "global_config", "greedy_token_selection",
    "image", "role", "select", "set_default_backend", "system", "system_begin", "system_end",
    "token_length_normalized", "unconditional_likelihood_normalized", "user", "user_begin",
    "user_end", "video",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import what needs torch when it is used (PEP 562)."""
    if name not in ("Engine", "Runtime"):
        raise AttributeError(f"module 'minisgl.lang' has no attribute {name!r}")
    value = getattr(import_module("minisgl.lang.backends.engine"), name)
    globals()[name] = value
    return value
