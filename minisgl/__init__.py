"""minisgl: a small, complete engine for language-model programs, made to be read.

    from minisgl import Engine, SamplingParams

    with Engine() as engine:
        print(engine.generate("The radix tree is", SamplingParams(max_tokens=16)).text)

The names below load on first use (PEP 562), so that `import minisgl` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minisgl.config import EngineConfig
    from minisgl.engine.engine import Engine
    from minisgl.engine.output import Chunk, Completion, EngineError, Score, TokenLogprob
    from minisgl.engine.prompt import Prompt
    from minisgl.sampling import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "Chunk",
    "Completion",
    "Engine",
    "EngineConfig",
    "EngineError",
    "Prompt",
    "SamplingParams",
    "Score",
    "TokenLogprob",
    "__version__",
]

_HOME_OF = {
    "Chunk": "minisgl.engine.output",
    "Completion": "minisgl.engine.output",
    "Engine": "minisgl.engine.engine",
    "EngineConfig": "minisgl.config",
    "EngineError": "minisgl.engine.output",
    "Prompt": "minisgl.engine.prompt",
    "SamplingParams": "minisgl.sampling",
    "Score": "minisgl.engine.output",
    "TokenLogprob": "minisgl.engine.output",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it, once."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'minisgl' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME_OF))
