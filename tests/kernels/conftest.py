"""Kernel tests run twice: as they are (the reference on a CPU, compiled kernels on a GPU), and
with ``TRITON_INTERPRET=1`` (the Triton kernels, run by the strict interpreter). The switch is read
when Triton is imported, so the two need processes of their own.
"""

import importlib.util
import os

if importlib.util.find_spec("triton") is None:
    collect_ignore = ["strict_interpreter.py", "compile_driver.py"]
elif os.environ.get("TRITON_INTERPRET") == "1":
    from tests.kernels import strict_interpreter

    strict_interpreter.install()
