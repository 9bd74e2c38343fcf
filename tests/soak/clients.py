"""The crowd: clients with good manners, and with bad ones.

keeps       one connection for many requests          trickles    a body that comes in drops
closes      one for each                              leaves      before, amid or after a question
reads slowly, with no room for more than it reads     floods      a body that is too long
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from tests.serve.common import LONG
from tests.soak.processes import KEY
from tests.soak.questions import GENERATE, Lost, Question, Told

CONNECTIONS = 64
ROOM = 2048  # bytes that a slow reader's side has room for
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a connection that is closed is cut


@dataclass(frozen=True)
class Stock:
    """What there is to ask.

    most: bytes of the longest body that is allowed.
    """

    good: Sequence[Question]
    long: Sequence[Question]
    bad: Sequence[Question]
    looks: Sequence[Question]
    most: int


class Client:
    """One after the other does what its `manners` say, and judges every answer."""

    def __init__(self, port: int, stock: Stock, seed: int, *, may_lose: bool) -> None:
        self.did: Counter[str] = Counter()
        self.failed = threading.Event()  # shared, so that nobody goes on for long
        self._port = port
        self._stock = stock
        self._random = random.Random(seed)
        self._may_lose = may_lose
        self._kept = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
        self._last_kept = time.monotonic()

    def run(self, count: int) -> Counter[str]:
        """`count` requests."""
        manners = [
            self.keeps, self.keeps, self.keeps, self.keeps, self.closes, self.closes,
            self.errs, self.errs, self.errs, self.reads_slowly, self.leaves, self.leaves,
            self.trickles, self.floods, self.looks,
        ]  # fmt: skip
        try:
            for _ in range(count):
                if self.failed.is_set():
                    break
                manner = self._random.choice(manners)
                try:
                    manner()
                except Lost:
                    if not self._may_lose:
                        raise
                    self.did["lost"] += 1
                self.did[manner.__name__] += 1
        except BaseException:
            self.failed.set()
            raise
        finally:
            self._kept.close()
        return self.did

    # ------------------------------------------------------------------ good manners

    def keeps(self) -> None:
        self._ask_kept(self._choose(self._stock.good))

    def errs(self) -> None:
        self._ask_kept(self._choose(self._stock.bad))

    def looks(self) -> None:
        self._ask_kept(self._choose(self._stock.looks))

    def closes(self) -> None:
        question = self._choose(self._stock.good)
        with self._connect() as sock:
            sock.sendall(self._request(question))
            self._judge(question, self._read(sock))

    # ------------------------------------------------------------------ bad ones

    def reads_slowly(self) -> None:
        question = self._choose(self._stock.long)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
            sock.settimeout(LONG)
            sock.connect(("127.0.0.1", self._port))
            sock.sendall(self._request(question))
            time.sleep(0.05)
            self._judge(question, self._read(sock, piece=ROOM // 4))

    def trickles(self) -> None:
        question = self._choose(self._stock.good)
        data = self._request(question)
        with self._connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            step = max(1, len(data) // 10)
            for start in range(0, len(data), step):
                sock.sendall(data[start : start + step])
                time.sleep(0.001)
            self._judge(question, self._read(sock))

    def leaves(self) -> None:
        """Amid the body, after it, amid the answer; saying so or not."""
        question = self._choose(
            self._stock.long if self._random.random() < 0.7 else self._stock.good
        )
        data, moment = self._request(question), self._random.randrange(3)
        with self._connect() as sock:
            sock.sendall(data if moment else data[:-5])
            if moment == 2:
                sock.recv(200)
            if self._random.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def floods(self) -> None:
        """A little too long, or so long that nobody reads it all."""
        is_little = self._random.random() < 0.5
        size = self._stock.most + 1 if is_little else 100 * self._stock.most
        head = self._head("POST", GENERATE, size, has_key=True)
        with self._connect() as sock:
            sock.sendall(head)
            with suppress(ConnectionError):  # it is told before it has sent everything
                sock.sendall(b" " * (size if is_little else 1000))
            told = self._read(sock)
        assert told.status == 413 and told.json["error"]["message"]

    # ------------------------------------------------------------------ HTTP

    def _choose(self, questions: Sequence[Question]) -> Question:
        return self._random.choice(questions)

    def _ask_kept(self, question: Question) -> None:
        if time.monotonic() - self._last_kept > LONG:  # the server may close it any moment
            self._kept.close()
        headers = {"Content-Type": "application/json"}
        if question.has_key:
            headers["X-API-Key"] = KEY
        self._kept.request(question.method, question.path, question.body or None, headers)
        reply = self._kept.getresponse()
        told = Told(reply.status, reply.read())
        self._last_kept = time.monotonic()
        self._judge(question, told)

    def _judge(self, question: Question, told: Told) -> None:
        question.check(told)
        self.did[f"  {question.kind}"] += 1

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=LONG)

    def _request(self, question: Question) -> bytes:
        size = len(question.body)
        head = self._head(question.method, question.path, size, has_key=question.has_key)
        return head + question.body

    def _head(self, method: str, path: str, size: int, *, has_key: bool) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1", "Host: soak", "Connection: close",
            "Content-Type: application/json", f"Content-Length: {size}",
        ]  # fmt: skip
        if has_key:
            lines.append(f"Authorization: Bearer {KEY}")
        return "\r\n".join([*lines, "", ""]).encode()

    def _read(self, sock: socket.socket, piece: int = 65536) -> Told:
        """All of the answer."""
        reading = _Pieces(sock, piece)
        reply = http.client.HTTPResponse(reading)  # type: ignore[arg-type]
        reply.begin()
        body = b""
        while data := reply.read(piece):
            body += data
        return Told(reply.status, body)


class _Pieces:
    """A socket as `http.client` reads it: in pieces of this size."""

    def __init__(self, sock: socket.socket, piece: int) -> None:
        self._sock = sock
        self._piece = piece

    def makefile(self, mode: str) -> object:
        return self._sock.makefile(mode, buffering=self._piece)  # type: ignore[call-overload]


def crowd(
    port: int, stock: Stock, count: int, *, seed: int, may_lose: bool = False
) -> Counter[str]:
    """`count` requests of 64 clients at once; what they did."""
    each = -(-count // CONNECTIONS)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        clients = [
            Client(port, stock, CONNECTIONS * seed + i, may_lose=may_lose)
            for i in range(CONNECTIONS)
        ]
        for client in clients:
            client.failed = clients[0].failed
        runs = [pool.submit(client.run, each) for client in clients]
        total: Counter[str] = Counter()
        for run in runs:
            total += run.result()
    return total
