"""Reference or Triton: the one place that decides, and the one guarded import of Triton.

    GPU tensor                           -> the Triton kernel, compiled
    CPU tensor                           -> the plain-torch reference of the same file
    CPU tensor under TRITON_INTERPRET=1  -> the Triton kernel, interpreted (for tests)

Every kernel file says ``from minisgl.kernels.dispatch import tl, triton``.  Where Triton is not
installed (macOS, Windows, a small CPU image) the two names are stand-ins that let the files be
imported; no kernel is ever launched there, because no tensor is on a GPU.
"""

from types import SimpleNamespace
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:

    def _jit(kernel: Any = None, **options: Any) -> Any:
        """`@triton.jit` and `@triton.jit(...)`: the function as it is."""
        return kernel if kernel is not None else lambda function: function

    triton = SimpleNamespace(jit=_jit)
    tl = SimpleNamespace(constexpr=object)
    INTERPRETED = False
else:
    # Triton reads TRITON_INTERPRET when `@triton.jit` decorates a function, that is, when a kernel
    # module is imported.  Reading the same switch here, at import, cannot disagree with it.
    INTERPRETED = bool(triton.knobs.runtime.interpret)

__all__ = ["INTERPRETED", "tl", "triton", "use_triton"]


def use_triton(x: torch.Tensor) -> bool:
    """True for a GPU tensor, or for any tensor when kernels run in Triton's CPU interpreter."""
    return x.is_cuda or INTERPRETED
