"""A worker in a process of its own, for tests of how processes are started: it answers everything
with what it knows of itself, dies when it is asked to, and ends with its standard input.

    python fake_worker.py [dies] [--host=ADDRESS]        with "dies" it ends at once
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/die":
            os._exit(3)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told = {"pid": os.getpid(), "parent": os.getppid()}
        told |= {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "word": os.environ.get("WORD")}
        body = json.dumps(told).encode()
        self.send_response(404 if self.path.startswith("/router") else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    print("loading", file=sys.stderr)
    if "dies" in sys.argv:
        sys.exit(2)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    hosts = [arg.removeprefix("--host=") for arg in sys.argv if arg.startswith("--host=")]
    host = hosts[-1] if hosts else "127.0.0.1"
    server = ThreadingHTTPServer((host, 0), Handler)
    print(f"http://{host}:{server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()
