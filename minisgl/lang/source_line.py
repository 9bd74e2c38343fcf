"""Which line of a program wrote a primitive: errors come later, from elsewhere, and should tell."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_ON_THE_WAY = ("contextlib.py", "threading.py")  # between a program and the language


def program_line() -> str:
    """`file:line in function` of whoever called the language.  Two microseconds."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"


def add_line(error: BaseException, line: str) -> None:
    """Tell with `error` where in the program it comes from, once; its type and text stay."""
    if getattr(error, "__notes__", None):
        return
    file, _, rest = line.rpartition(":")
    source = linecache.getline(file, int(rest.split()[0])).strip()
    note = f"in the program at {line}" + (f": {source}" if source else "")
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__notes__ = [note]  # shown by pytest and by those who know PEP 678
        if error.__cause__ is None:
            error.__cause__ = RuntimeError(note)  # shown by everyone


def is_ours(file: str) -> bool:
    """Whether a frame of `file` is the language's, and not the program's."""
    return file.startswith(_PACKAGE) or file.endswith(_ON_THE_WAY)
