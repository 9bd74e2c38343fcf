"""Pictures from the web: what a server may do to us, and where a URL may lead."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minisgl.media import Limits, load, load_video
from tests.media.common import CAT, PNG


class Site(BaseHTTPRequestHandler):
    """What a web server may do."""

    leave = threading.Event()  # set when the test is over
    seen: list[str] = []  # noqa: RUF012  # paths that were asked for

    def do_GET(self) -> None:
        self.seen.append(self.path)
        path, _, query = self.path.partition("?")
        match path:
            case "/cat.png" | "/a%20cat.png":
                self._answer(200, PNG)
            case "/to":
                self._answer(302, b"", Location=query)
            case "/loop":
                self._answer(301, b"", Location="/loop")
            case "/short":
                self._answer(200, PNG[:-1], length=len(PNG))
            case "/endless":  # no length, and never an end
                self.send_response(200)
                self.end_headers()
                while not self.leave.is_set() and self._write(b"x" * 4096):
                    pass
            case "/drip":  # a byte at a time, of a promised thousand
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                while not self.leave.wait(0.01) and self._write(b"x"):
                    pass
            case _:
                self._answer(404, b"nothing here")

    def _answer(self, status: int, body: bytes, length: int | None = None, **head: str) -> None:
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self._write(body)

    def _write(self, data: bytes) -> bool:
        try:
            self.wfile.write(data)
        except OSError:
            return False
        return True

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a web server on this machine."""
    Site.leave.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Site.leave.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_forms_that_the_docs_name_are_read(site: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lang.md").read_text(encoding="utf-8")
    table = page.split("| form of `image(...)` | example |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    (tmp_path / "cat.png").write_bytes(PNG)
    text = base64.b64encode(PNG).decode()
    forms: dict[str, Any] = {
        "a file": str(tmp_path / "cat.png"),
        "its bytes": PNG,
        "base64": text,
        "a data: URL": f"data:image/png;base64,{text}",
        "an http or https URL": f"{site}/cat.png",
        "a PIL image": CAT,
        "an array": np.asarray(CAT),
    }
    assert [row.split("|")[1].strip() for row in table.splitlines()] == list(forms)
    assert len({load(form).key for form in forms.values()}) == 1


class TestHttp:
    def test_a_url_is_what_it_shows(self, site: str) -> None:
        for path in ("/cat.png", "/a cat.png", "/to?/cat.png", f"/to?{site}/cat.png", "/cat.png#x"):
            assert load(site + path).key == load(PNG).key
        assert load(f"HTTP{site[4:]}/cat.png").key == load(PNG).key

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("/none", "the server answers 404 Not Found"),
            ("/loop", "redirected more than 5 times"),
            ("/short", "ended too early"),
            ("/endless", "longer than the 10000 bytes"),
            ("/to?ftp://example.org/cat.png", "no http or https URL"),
            ("/to?file:///etc/passwd", "no http or https URL"),
            ("/to?http://a:b@127.0.0.1/", "user name"),
        ],
    )
    def test_what_a_server_must_not_do(self, site: str, path: str, words: str) -> None:
        with pytest.raises(ValueError) as refusal:
            load(site + path, Limits(max_bytes=10000))
        assert words in str(refusal.value)
        assert load(site + "/cat.png")

    def test_a_promise_of_too_much_is_enough(self, site: str) -> None:
        with pytest.raises(ValueError, match="longer than the 999 bytes"):
            load(site + "/drip", Limits(max_bytes=999))

    def test_a_server_that_drips_is_left_in_time(self, site: str) -> None:
        with pytest.raises(ValueError, match=r"no whole answer within 0\.2 seconds"):
            load(site + "/drip", Limits(timeout=0.2))

    @pytest.mark.parametrize(
        "url",
        ["http://", "http:///cat.png", "http://[::1", "http://a:b/", "https://u@example.org/"],
    )
    def test_a_url_that_is_none(self, url: str) -> None:
        with pytest.raises(ValueError, match=r"^image .http"):
            load(url)

    def test_no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror("Temporary failure in name resolution")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(ValueError, match=r"'example\.org' is not found .*is there a network"):
            load("https://example.org/cat.png")
        assert load(PNG)

    def test_nobody_listens(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            with pytest.raises(ValueError, match=r"can.t be fetched: .*refused"):
                load(f"http://127.0.0.1:{sock.getsockname()[1]}/cat.png")

    def test_not_at_all(self, site: str) -> None:
        Site.seen.clear()
        for kind in (load, load_video):
            with pytest.raises(ValueError, match="not allowed here"):
                kind(site + "/cat.png", limits=Limits(allow_http=False))
        assert Site.seen == []

    def test_only_some_hosts_and_so_for_redirects(self, site: str) -> None:
        mine = Limits(allowed_hosts=("127.0.0.1",), public_only=False)
        assert load(site + "/cat.png", mine)
        Site.seen.clear()
        elsewhere = site.replace("127.0.0.1", "localhost")
        for url in (f"{elsewhere}/cat.png", f"{site}/to?{elsewhere}/cat.png"):
            with pytest.raises(ValueError, match="'localhost' is not allowed; allowed: 127"):
                load(url, mine)
        assert [path[:4] for path in Site.seen] == ["/to?"]

    @pytest.mark.parametrize(
        "limits", [Limits(public_only=True), Limits(allowed_hosts=("127.0.0.1", "example.org"))]
    )
    def test_no_way_into_the_own_network(
        self, site: str, limits: Limits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By its address, and by a name that somebody has pointed at it."""
        Site.seen.clear()
        port = int(site.rpartition(":")[2])
        with pytest.raises(ValueError, match="not on the public internet"):
            load(f"{site}/cat.png", limits)
        asked = []

        def resolve(host: str, *_: object, **__: object) -> list[Any]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        with pytest.raises(ValueError, match="not on the public internet"):
            load(f"http://example.org:{port}/cat.png", limits)
        assert asked == ["example.org"] and Site.seen == []
        # Where that is allowed, the name is looked up once: the address that was checked is used.
        assert load(f"http://example.org:{port}/cat.png").key == load(PNG).key
        assert asked == ["example.org"] * 2
