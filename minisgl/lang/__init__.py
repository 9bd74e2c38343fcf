"""minisgl.lang: programs that talk with language models (the paper's section 2).

    import minisgl.lang as sgl

    @sgl.function
    def qa(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=64))

    print(qa.run("What is the capital of France?")["answer"])

The names are SGLang's.  Backends load on first use: an engine imports torch, and those of APIs
their makers' clients.
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
from minisgl.lang.backends.retries import ApiError, Retries
from minisgl.lang.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from minisgl.lang.compiler import CompiledProgram
from minisgl.lang.config import global_config
from minisgl.lang.control import repeat, when
from minisgl.lang.function import Function
from minisgl.lang.group import ProgramStateGroup
from minisgl.lang.passes import Passes
from minisgl.lang.program import ProgramCancelledError
from minisgl.lang.state import ProgramState
from minisgl.lang.usage import Price, Tally, Usage
from minisgl.lang.values import TraceError

if TYPE_CHECKING:
    from minisgl.lang.backends.anthropic import Anthropic
    from minisgl.lang.backends.engine import Engine, Runtime
    from minisgl.lang.backends.http import RuntimeEndpoint
    from minisgl.lang.backends.openai import OpenAI

__all__ = [
    "Anthropic", "ApiError", "Backend", "ChoicesDecision", "ChoicesSamplingMethod",
    "CompiledProgram", "Engine", "Function", "OpenAI", "Passes", "Price", "ProgramCancelledError",
    "ProgramState", "ProgramStateGroup", "Retries", "Runtime", "RuntimeEndpoint", "Tally",
    "TraceError", "Usage", "assistant", "assistant_begin", "assistant_end", "flush_cache",
    "function", "gen", "gen_int", "gen_string", "get_server_args", "get_server_info",
    "global_config", "greedy_token_selection", "image", "repeat", "role", "select",
    "set_default_backend", "system", "system_begin", "system_end", "token_length_normalized",
    "unconditional_likelihood_normalized", "user", "user_begin", "user_end", "video", "when",
]  # fmt: skip


# Where each backend is; the module's name is also that of the extra it needs, if any.
_BACKENDS = {
    "Anthropic": "anthropic",
    "Engine": "engine",
    "OpenAI": "openai",
    "Runtime": "engine",
    "RuntimeEndpoint": "http",
}


def __getattr__(name: str) -> object:
    """Import a backend when it is used (PEP 562)."""
    if name not in _BACKENDS:
        raise AttributeError(f"module 'minisgl.lang' has no attribute {name!r}")
    module = _BACKENDS[name]
    try:
        value = getattr(import_module(f"minisgl.lang.backends.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ImportError(f"{name} needs a client: pip install 'minisgl[{module}]'") from error
    globals()[name] = value
    return value
