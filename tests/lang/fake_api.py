"""A server on a loopback socket that speaks OpenAI's and Anthropic's protocols, and SGLang's own.

What it says is a function of what it is asked, and what goes wrong is on a list: each request takes
the first fault from it.

    with FakeApi(lambda asked: "Paris") as api:
        api.faults.append(Fault(status=429, headers={"retry-after": "0"}))
        OpenAI("m", base_url=api.url + "/v1", api_key="k")
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

from minisgl.lang.stops import cut


@dataclass(frozen=True)
class Fault:
    """How a request fails.

    status: an HTTP error with an API's error body.
    cut: the connection breaks after so many pieces of a stream, or in the middle of a body.
    clean_cut: so, but as if that had been all.
    hangs: no reply, until the server is closed.
    body: what is sent instead of a reply.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "it failed"
    code: str | None = None
    cut: int | None = None
    clean_cut: bool = False
    hangs: bool = False
    body: str | None = None


@dataclass(frozen=True)
class Asked:
    """A request.  text: the prompt, or all words of a conversation, a line for each turn."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    text: str = ""


def tokens(text: str) -> list[str]:
    """
    >>> tokens("Name: Ada\\n")
    ['Name', ':', ' Ada', '\\n']
    """
    return re.findall(r" ?\w+|\W", text)


class FakeApi:
    """Attributes:
    asked: the requests, in order of arrival; those of models only.
    faults: of the requests to come.
    info: what the native server tells about its model.
    refuses: names in a body that are an error 400, and what it knows instead.
    """

    def __init__(self, says: Callable[[Asked], str]) -> None:
        self.says = says
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.info: dict[str, Any] = {"model_path": "fake", "is_generation": True}
        self.refuses: dict[str, str] = {}
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeApi:
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="fake-api", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def texts(self) -> list[str]:
        return [asked.text for asked in self.asked]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(tokens(asked.text)) for asked in self.asked)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *_: object) -> None:
        pass

    # ------------------------------------------------------------------ routes

    def do_GET(self) -> None:
        api = self.server.api
        match self.path:
            case "/get_model_info":
                self._json(api.info)
            case "/get_server_info":
                self._json({"version": "fake", "asked": len(api.asked)})
            case _:
                self._json({"error": {"message": f"no route {self.path}"}}, 404)

    def do_POST(self) -> None:
        api = self.server.api
        size = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        if self.path == "/flush_cache":
            return self._json({})
        asked = Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, body, _text(body))
        with api.lock:
            api.asked.append(asked)
            fault = api.faults.pop(0) if api.faults else Fault()
        if fault.hangs:
            api.closing.wait()
            self.close_connection = True
            return None
        if fault.status != 200:
            return self._error(fault.status, fault.message, fault.headers, fault.code)
        for name, other in api.refuses.items():
            if name in body:
                message = f"Unsupported parameter: {name!r} is not supported. Use {other!r}."
                return self._error(400, message)
        if fault.body is not None:
            return self._send(fault.body.encode(), 200, "application/json", {})
        match self.path:
            case "/v1/completions":
                return self._completions(asked, fault)
            case "/v1/chat/completions":
                return self._chat(asked, fault)
            case "/v1/messages":
                return self._messages(asked, fault)
            case "/generate":
                return self._generate(asked, fault)
        return self._json({"error": {"message": f"no route {self.path}"}}, 404)

    # ------------------------------------------------------------------ OpenAI

    def _completions(self, asked: Asked, fault: Fault) -> None:
        body = asked.body
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices, spent = [], 0
        for prompt in prompts:
            for _ in range(body.get("n", 1)):
                text, used, reason = _cut(self.server.api.says(asked), body)
                spent += len(used)
                shown = [*(tokens(prompt) if body.get("echo") else []), *used]
                logprobs = {
                    "tokens": shown,
                    "token_logprobs": [
                        None if i == 0 and body.get("echo") else _logprob(t)
                        for i, t in enumerate(shown)
                    ],
                    "top_logprobs": None,
                }
                choices.append(
                    {
                        "index": len(choices),
                        "text": prompt + text if body.get("echo") else text,
                        "finish_reason": reason,
                        "logprobs": logprobs if body.get("logprobs") is not None else None,
                    }
                )
        usage = _usage(sum(len(tokens(p)) for p in prompts), spent)
        reply = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "fake"}
        if not body.get("stream"):
            return self._whole({**reply, "choices": choices, "usage": usage}, fault)
        (choice,) = choices
        events = [
            {**reply, "choices": [{"index": 0, "text": t, "finish_reason": None, "logprobs": None}]}
            for t in tokens(choice["text"])
        ]
        events.append({**reply, "choices": [{**choice, "text": ""}]})
        events.append({**reply, "choices": [], "usage": usage})
        return self._events([(None, e) for e in events], fault, done=True)

    def _chat(self, asked: Asked, fault: Fault) -> None:
        body = asked.body
        choices, spent = [], 0
        for i in range(body.get("n", 1)):
            text, used, reason = _cut(self.server.api.says(asked), body)
            spent += len(used)
            told = [
                {"token": t, "bytes": list(t.encode()), "logprob": _logprob(t), "top_logprobs": []}
                for t in used
            ]
            choices.append(
                {
                    "index": i,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": reason,
                    "logprobs": {"content": told} if body.get("logprobs") else None,
                }
            )
        usage = _usage(len(tokens(asked.text)), spent)
        reply = {"id": "chat-1", "object": "chat.completion", "created": 0, "model": "fake"}
        if not body.get("stream"):
            return self._whole({**reply, "choices": choices, "usage": usage}, fault)
        reply["object"] = "chat.completion.chunk"
        (choice,) = choices
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": t} for t in tokens(choice["message"]["content"])]
        events = [
            {**reply, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
        ]
        last = {"index": 0, "delta": {"content": ""}}
        last |= {"finish_reason": choice["finish_reason"], "logprobs": choice["logprobs"]}
        events += [{**reply, "choices": [last]}, {**reply, "choices": [], "usage": usage}]
        return self._events([(None, e) for e in events], fault, done=True)

    # ------------------------------------------------------------------ Anthropic

    def _messages(self, asked: Asked, fault: Fault) -> None:
        body = asked.body
        if problem := _anthropic_problem(body):
            return self._error(400, problem)
        text, used, reason = _cut(self.server.api.says(asked), body)
        end = {"stop": "end_turn", "length": "max_tokens"}[reason]
        matched = None
        if end == "end_turn" and body.get("stop_sequences"):
            _, matched = cut(self.server.api.says(asked), body["stop_sequences"])
        if matched is not None:
            end = "stop_sequence"
        usage = {"input_tokens": len(tokens(asked.text)), "output_tokens": len(used)}
        reply = {"id": "msg-1", "type": "message", "role": "assistant", "model": "fake"}
        tail = {"stop_reason": end, "stop_sequence": matched}
        if not body.get("stream"):
            content = [{"type": "text", "text": text}]
            return self._whole({**reply, "content": content, **tail, "usage": usage}, fault)
        start = {**reply, "content": [], "stop_reason": None, "stop_sequence": None}
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        events = [
            {"type": "message_start", "message": {**start, "usage": {**usage, "output_tokens": 1}}},
            {"type": "content_block_start", **block},
            {"type": "ping"},
            *(
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": token},
                }
                for token in tokens(text)
            ),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": tail, "usage": {"output_tokens": len(used)}},
            {"type": "message_stop"},
        ]
        return self._events([(e["type"], e) for e in events], fault, done=False)

    # ------------------------------------------------------------------ SGLang's own

    def _generate(self, asked: Asked, fault: Fault) -> None:
        body = asked.body
        given = body["text"] if "text" in body else body["input_ids"]
        batch = isinstance(given, list) and ("text" in body or isinstance(given[0], list))
        replies = []
        for prompt in given if batch else [given]:
            for _ in range(body["sampling_params"].get("n", 1)):
                replies.append(self._native(asked, prompt))
        if not body.get("stream"):
            many = batch or body["sampling_params"].get("n", 1) > 1
            return self._whole(replies if many else replies[0], fault)
        (reply,) = replies
        pieces, so_far = [], ""
        for token in tokens(reply["text"]):
            so_far += token
            meta = {**reply["meta_info"], "finish_reason": None}
            pieces.append((None, {"text": so_far, "meta_info": meta}))
        return self._events([*pieces, (None, reply)], fault, done=True)

    def _native(self, asked: Asked, prompt: str | list[int]) -> dict[str, Any]:
        body, params = asked.body, asked.body["sampling_params"]
        ids = [_id(t) for t in tokens(prompt)] if isinstance(prompt, str) else prompt
        said = {"stop": params.get("stop") or [], "max_tokens": params.get("max_new_tokens", 128)}
        text, used, reason = _cut(self.server.api.says(asked), said)
        kind = {"type": "stop", "matched": None}
        if reason == "length":
            kind = {"type": "length", "length": len(used)}
        meta: dict[str, Any] = {
            "id": "r1", "prompt_tokens": len(ids), "completion_tokens": len(used),
            "cached_tokens": 0, "finish_reason": kind,
        }  # fmt: skip
        if body.get("return_logprob"):
            start = body.get("logprob_start_len") or 0
            told: list[list[Any]] = [[_logprob(_NAMES[i]), i, _NAMES[i]] for i in ids]
            told[0][0] = None
            meta["input_token_logprobs"] = told[start + 1 :] if start else told
            meta["output_token_logprobs"] = [[_logprob(t), _id(t), t] for t in used]
        return {"text": text, "meta_info": meta}

    # ------------------------------------------------------------------ replies

    def _whole(self, reply: Any, fault: Fault) -> None:
        data = json.dumps(reply).encode()
        if fault.cut is not None:
            self._head(200, "application/json", {"content-length": str(len(data))})
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self._send(data, 200, "application/json", {})

    def _events(self, events: list[tuple[str | None, Any]], fault: Fault, *, done: bool) -> None:
        self._head(200, "text/event-stream", {"transfer-encoding": "chunked"})
        sent = events if fault.cut is None else events[: fault.cut]
        for kind, event in sent:
            name = f"event: {kind}\n" if kind else ""
            self._chunk(f"{name}data: {json.dumps(event)}\n\n")
        if fault.cut is not None and not fault.clean_cut:
            self.close_connection = True
            return
        if done and fault.cut is None:
            self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _error(
        self, status: int, message: str, headers: dict[str, str] | None = None, code: Any = None
    ) -> None:
        error = {"type": "error", "error": {"type": "error", "message": message, "code": code}}
        self._send(json.dumps(error).encode(), status, "application/json", headers or {})

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status, "application/json", {})

    def _send(self, data: bytes, status: int, kind: str, headers: dict[str, str]) -> None:
        self._head(status, kind, {**headers, "content-length": str(len(data))})
        self.wfile.write(data)

    def _head(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _text(body: dict[str, Any]) -> str:
    if "messages" in body:
        turns = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        return "\n".join(_words(turn["content"]) for turn in turns + body["messages"])
    given = body.get("prompt", body.get("text", ""))
    return given if isinstance(given, str) else "\n".join(given)


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "<image>") for part in content)


def _cut(said: str, body: dict[str, Any]) -> tuple[str, list[str], str]:
    """The text, its tokens and the finish reason, as a request's limits have them."""
    stops = body.get("stop") or body.get("stop_sequences") or []
    limit = body.get("max_tokens", body.get("max_completion_tokens"))
    all_tokens = tokens(said)
    limit = len(all_tokens) + 1 if limit is None else limit
    within = "".join(all_tokens[:limit])
    text, matched = cut(within, [stops] if isinstance(stops, str) else stops)
    used = tokens(within[: len(text) + len(matched or "")])
    ended = matched is not None or len(all_tokens) < limit
    return text, used, "stop" if ended else "length"


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


_IDS: dict[str, int] = {}
_NAMES: list[str] = []


def _id(token: str) -> int:
    if token not in _IDS:
        _IDS[token] = len(_NAMES)
        _NAMES.append(token)
    return _IDS[token]


def _logprob(token: str) -> float:
    """Words that begin early in the alphabet are likely."""
    return -1.0 - (ord(token.strip()[0].lower()) % 32) / 32 if token.strip() else -0.5


def _anthropic_problem(body: dict[str, Any]) -> str | None:
    """What the real API refuses."""
    roles = [m["role"] for m in body["messages"]]
    last = body["messages"][-1]["content"]
    if roles[0] != "user" or any(a == b for a, b in pairwise(roles)):
        return "roles must alternate, and the first is user"
    if any(not stop.strip() for stop in body.get("stop_sequences", [])):
        return "stop_sequences: each stop sequence must contain non-whitespace"
    if roles[-1] == "assistant" and _words(last) != _words(last).rstrip():
        return "final assistant content cannot end with trailing whitespace"
    if any(not part.get("text", "x") for m in body["messages"] for part in m["content"]):
        return "text content blocks must be non-empty"
    return None
