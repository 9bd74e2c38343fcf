"""HTTP/1.1 for coroutines, as much as talking to a model's server takes: stdlib only.

    async with request("POST", url, body, ...) as reply:
        await reply.json()                 or    async for line in reply.lines(): ...

One connection for each request, which ends with it: a request that is cancelled closes its
connection, and so the server learns that nobody waits for the answer any more.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from minisgl.lang.backends.retries import ApiError, retry_after

MOST_OF_A_LINE = 1 << 26  # bytes; an event may hold the log-probabilities of a long prompt


@dataclass
class Reply:
    """The head of a reply, and its body as it comes.  Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    reader: asyncio.StreamReader
    timeout: float

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self._parts()])

    async def json(self) -> Any:
        """The whole body.

        Raises:
            ApiError: it is no JSON, or the server says that something went wrong.
        """
        data = await self.read()
        if self.status >= 400:
            text = data.decode(errors="replace")
            wait = retry_after(self.headers)
            raise ApiError(f"{self.status} {_message(text)}", status=self.status, retry_after=wait)
        try:
            return json.loads(data)
        except ValueError:
            raise ApiError(f"the reply is no JSON: {data[:80]!r}") from None

    async def events(self) -> AsyncIterator[str]:
        """The data of each server-sent event; errors as `json`."""
        if self.status >= 400:
            await self.json()
        rest = b""
        async for part in self._parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line.removeprefix(b"data:").decode().strip()

    async def _parts(self) -> AsyncIterator[bytes]:
        """The body as it comes, without its framing."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := _size(await self._line()):
                yield await self._within(self.reader.readexactly(size))
                await self._line()
        elif "content-length" in self.headers:
            yield await self._within(self.reader.readexactly(int(self.headers["content-length"])))
        else:
            while part := await self._within(self.reader.read(1 << 16)):
                yield part

    async def _line(self) -> bytes:
        return (await self._within(self.reader.readuntil(b"\r\n"))).strip().split(b";")[0]

    async def _within(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        return await asyncio.wait_for(reading, self.timeout)


@asynccontextmanager
async def request(
    method: str,
    url: str,
    body: Any = None,
    *,
    headers: Mapping[str, str],
    timeout: float,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Reply]:
    """Send it, and give the reply when its head has come.

    Args:
        body: is sent as JSON; None: nothing.
        timeout: seconds that each piece may take.
        tls: for https.

    Raises:
        ApiError: the connection failed, at any time until the block has ended.
    """
    parts = urlsplit(url)
    data = b"" if body is None else json.dumps(body).encode()
    sent = {"host": parts.netloc.rpartition("@")[2], "connection": "close", **headers}
    sent |= {"content-type": "application/json", "content-length": str(len(data))}
    head = [f"{method} {parts.path or '/'} HTTP/1.1"]
    head += [f"{name}: {value}" for name, value in sent.items()]
    try:
        default_port = 443 if parts.scheme == "https" else 80
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(
                parts.hostname,
                parts.port or default_port,
                ssl=tls if parts.scheme == "https" else None,
                limit=MOST_OF_A_LINE,
            ),
            timeout,
        )
        try:
            writer.write("\r\n".join([*head, "", ""]).encode() + data)
            await writer.drain()
            status, given = await asyncio.wait_for(_head(reader), timeout)
            yield Reply(status, given, reader, timeout)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    except (asyncio.TimeoutError, TimeoutError):
        raise ApiError(f"no reply from {_shown(url)} within {timeout} s") from None
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ApiError(f"the connection to {_shown(url)} failed: {what}") from error


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await reader.readuntil(b"\r\n")).split(maxsplit=2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/") or not first[1].isdigit():
        raise ApiError(f"this is no HTTP server: it says {first!r}", passes=False)
    headers = {}
    while line := (await reader.readuntil(b"\r\n")).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first[1]), headers


def _size(line: bytes) -> int:
    """Of a chunk."""
    try:
        return int(line, 16)
    except ValueError:
        raise ApiError(f"the reply's framing is broken: {line[:40]!r}") from None


def _message(text: str) -> str:
    """Of an error's body."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


def _shown(url: str) -> str:
    """Without a user's name and password, or a query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
