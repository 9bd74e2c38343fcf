"""`find`: the encoded picture or video that a path, bytes or a string stands for."""

from __future__ import annotations

import base64
import binascii
import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes

from minisgl.media.fetch import fetch
from minisgl.media.limits import Limits

Encoded = bytes | Path


def find(source: str | Path | bytes, limits: Limits) -> Encoded:
    """The bytes, or the file that they are in.

    A string is, in this order: a data: URL, an http(s) URL, the name of a file that exists, base64.

    >>> find("data:text/plain;base64,aGk=", Limits()), find("aGk", Limits())
    (b'hi', b'hi')

    Raises:
        ValueError: it is none of these, or not allowed.
    """
    match source:
        case bytes():
            return _bounded(source, limits)
        case Path():
            return _file(source, limits)
    scheme = source[:8].lower()
    if scheme.startswith("data:"):
        return _data_url(source, limits)
    if scheme.startswith(("http://", "https://")):
        return fetch(source.strip(), limits)
    if limits.allow_files and os.path.isfile(source):  # False, too, for what can't be a name
        return _file(Path(source), limits)
    decoded = _base64(source, limits)
    if decoded is None:
        names = "no such file, and neither" if limits.allow_files else "neither"
        raise ValueError(f"there is {names} a data: URL, an http(s) URL nor base64")
    return decoded


def read(encoded: Encoded, limits: Limits) -> bytes:
    """All its bytes."""
    return _bounded(head(encoded, limits.max_bytes + 1), limits)


def head(encoded: Encoded, size: int) -> bytes:
    """Its first bytes, at most `size`."""
    if isinstance(encoded, bytes):
        return encoded[:size]
    try:
        with encoded.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror or error}") from error


def _file(path: Path, limits: Limits) -> Path:
    if not limits.allow_files:
        raise ValueError("reading files is not allowed here: send the bytes, or a data: URL")
    if not os.path.isfile(path):  # nor a device, whose bytes may never end
        raise ValueError("this is not a file" if os.path.exists(path) else "there is no such file")
    return path


def _data_url(url: str, limits: Limits) -> bytes:
    """RFC 2397: data:[type][;base64],data"""
    head, comma, data = url.partition(",")
    if not comma:
        raise ValueError("a data: URL has a comma before its data")
    if not head.lower().rstrip().endswith(";base64"):
        return _bounded(unquote_to_bytes(data), limits)
    decoded = _base64(data, limits)
    if decoded is None:
        raise ValueError("the data: URL's data is not base64")
    return decoded


def _base64(text: str, limits: Limits) -> bytes | None:
    """Either alphabet, line breaks anywhere, with or without the padding; None: it is none."""
    if len(text) > 2 * limits.max_bytes:  # before anything is done with it
        raise _too_long(limits)
    digits = re.sub(r"\s+", "", text).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        decoded = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return _bounded(decoded, limits) if decoded else None


def _bounded(data: bytes, limits: Limits) -> bytes:
    if len(data) > limits.max_bytes:
        raise _too_long(limits)
    return data


def _too_long(limits: Limits) -> ValueError:
    return ValueError(f"longer than the {limits.max_bytes} bytes that are allowed")
