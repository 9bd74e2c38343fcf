"""`fetch`: the bytes behind an http or https URL, within limits.

A URL may come from a stranger, and the machine that fetches it stands inside a network that the
stranger can't reach: `http://127.0.0.1:8080/`, or a name that resolves to such an address (SSRF).
So every hop, the first and each redirect, is checked anew: the host by its name, then each address
that the name resolves to, and the connection goes to the very address that was checked; a second
look-up could have another answer.  Proxies of the environment are not used: they would resolve the
name themselves.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from minisgl.media.limits import Limits

MAX_REDIRECTS = 5
PIECE = 2**16  # bytes read at a time
SAFE = "/?%:@!$&'()*+,;=~"  # stands in a URL's path and query as it is


def fetch(url: str, limits: Limits) -> bytes:
    """What the server at `url` sends.

    Raises:
        ValueError: http is not allowed, or not to this host; no network, no answer in time, an
            answer other than 200, or more bytes than allowed.
    """
    if not limits.allow_http:
        raise ValueError(
            "fetching http(s) URLs is not allowed here: send the bytes, or a data: URL"
        )
    deadline = time.monotonic() + limits.timeout
    try:
        for _ in range(MAX_REDIRECTS + 1):
            body, moved_to = _get(url, limits, deadline)
            if moved_to is None:
                return body
            url = urljoin(url, moved_to)
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() >= deadline:
            raise ValueError(f"no whole answer within {limits.timeout:g} seconds") from error
        raise ValueError(f"can't be fetched: {error or type(error).__name__}") from error
    raise ValueError(f"redirected more than {MAX_REDIRECTS} times")


def _get(url: str, limits: Limits, deadline: float) -> tuple[bytes, str | None]:
    """(The body, None), or (nothing, where it has moved to)."""
    parts = _checked(url, limits)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(contextlib.closing(_connect(parts, limits, deadline)))
        stack.enter_context(_shut_down_at(deadline, sock))
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            sock = stack.enter_context(tls.wrap_socket(sock, server_hostname=parts.hostname))
        connection = http.client.HTTPConnection(parts.netloc)
        connection.sock = sock
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=SAFE)
        connection.request("GET", target, headers={"User-Agent": "minisgl"})
        answer = stack.enter_context(contextlib.closing(connection.getresponse()))
        if answer.status in (301, 302, 303, 307, 308) and answer.headers["Location"]:
            return b"", answer.headers["Location"]
        if answer.status != 200:
            raise ValueError(f"the server answers {answer.status} {answer.reason}")
        return _body(answer, limits, deadline), None


def _body(answer: http.client.HTTPResponse, limits: Limits, deadline: float) -> bytes:
    too_long = ValueError(f"longer than the {limits.max_bytes} bytes that are allowed")
    if (answer.length or 0) > limits.max_bytes:
        raise too_long
    body = bytearray()
    while piece := answer.read(PIECE):
        body += piece
        if len(body) > limits.max_bytes:
            raise too_long
    if answer.length or time.monotonic() >= deadline:  # a shut down socket just reads as ended
        raise ConnectionError("the connection ended too early")
    return bytes(body)


def _checked(url: str, limits: Limits) -> SplitResult:
    """The parts of the URL, if it may be fetched."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises if it is no number
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url[:80]!r} is no http or https URL")
    if parts.username is not None:
        raise ValueError("a user name or password in a URL is not supported")
    if not limits.allows_host(parts.hostname):
        allowed = ", ".join(limits.allowed_hosts or ())
        raise ValueError(f"host {parts.hostname!r} is not allowed; allowed: {allowed}")
    return parts


def _connect(parts: SplitResult, limits: Limits, deadline: float) -> socket.socket:
    """A connection to the first address of the host that may be used and answers."""
    host, port = parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"host {host!r} is not found ({error}): is there a network?") from error
    failure: OSError | None = None
    for family, kind, protocol, _, address in found:
        if limits.needs_public_address and not is_public(str(address[0])):
            continue
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    if failure is None:
        raise ValueError(f"host {host!r} is not on the public internet, which is not allowed")
    raise failure


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet.

    >>> [is_public(a) for a in ("93.184.216.34", "127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1")]
    [True, False, False, False]
    """
    ip = ipaddress.ip_address(address.partition("%")[0])  # fe80::1%eth0
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:  # an IPv4 address written as IPv6
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


@contextlib.contextmanager
def _shut_down_at(deadline: float, sock: socket.socket) -> Iterator[None]:
    """After `deadline` every read and write on `sock` fails.

    A time-out of the socket's own would begin anew with every byte, and a server that sends one
    now and then would hold us for ever.
    """
    handle = sock.dup()  # of the same connection, and stays ours when TLS takes `sock` over

    def shut_down() -> None:
        with contextlib.suppress(OSError):  # the other side was faster
            handle.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), shut_down)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        handle.close()
