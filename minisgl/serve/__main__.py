"""Serve a model over HTTP: `python -m minisgl.serve`.

    python -m minisgl.serve --port 30000
    curl http://127.0.0.1:30000/v1/completions -H 'Content-Type: application/json' \\
        -d '{"prompt": "The capital of France is", "max_tokens": 8}'

Every field of `EngineConfig` and of `ServeConfig` is an option.  Notices and the access log go to
stderr.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from minisgl.config import DEVICES, DTYPES, LOAD_FORMATS, POLICIES, PREFIX_CACHES, EngineConfig
from minisgl.serve.config import ServeConfig

CHOICES = {
    "load_format": LOAD_FORMATS,
    "device": DEVICES,
    "dtype": DTYPES,
    "kv_dtype": DTYPES,
    "policy": POLICIES,
    "prefix_cache": PREFIX_CACHES,
}
KEY = "MINISGL_API_KEY"


def parser() -> argparse.ArgumentParser:
    """The options of `python -m minisgl.serve`."""
    p = argparse.ArgumentParser(prog="python -m minisgl.serve", description=__doc__.split("\n")[0])
    p.add_argument("--chat-template", metavar="FILE", help="use this jinja template for chats")
    p.add_argument("--no-access-log", action="store_true", help="log no requests")
    p.add_argument(
        "--end-with-stdin",
        action="store_true",
        help="stop when standard input ends: so does a process whose parent is gone",
    )
    for config in (ServeConfig, EngineConfig):
        group = p.add_argument_group(f"settings of {config.__name__}")
        for field in fields(config):
            _add_option(group, field.name, str(field.type), field.default)
    return p


def _add_option(group: Any, name: str, kind: str, default: Any) -> None:
    option = "--" + name.replace("_", "-")
    shown = "none" if default in (None, ()) else default
    about: dict[str, Any] = {"default": default, "help": f"default: {shown}"}
    if kind == "bool":
        about["action"] = argparse.BooleanOptionalAction
        about["help"] = f"default: {'on' if default else 'off'}"
    elif name in CHOICES:
        about["choices"] = CHOICES[name]
    elif kind.startswith("tuple"):
        about |= {"action": "append", "default": None, "metavar": "NAME", "help": "may be repeated"}
    else:
        number = int if kind.startswith("int") else float if kind.startswith("float") else str
        about |= {"type": number, "metavar": {int: "N", float: "X", str: "TEXT"}[number]}
    if name == "api_key":
        about["help"] = f"better in the environment, as {KEY}, than where `ps` shows it"
    group.add_argument(option, **about)


def settings_of(config: type, args: argparse.Namespace) -> dict[str, Any]:
    """The options that are fields of `config`."""
    given = {field.name: getattr(args, field.name) for field in fields(config)}
    for field in fields(config):
        if field.default == ():
            given[field.name] = tuple(given[field.name] or ())
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; the exit status."""
    options = parser()
    args = options.parse_args(argv)
    args.api_key = args.api_key or os.environ.get(KEY) or None
    try:
        config = ServeConfig(**settings_of(ServeConfig, args))
        engine_settings = settings_of(EngineConfig, args)
        EngineConfig.make(**engine_settings)
        template = args.chat_template and Path(args.chat_template).read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        options.error(str(error))
    log_to_stderr(access=not args.no_access_log)
    if args.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        return serve(config, engine_settings, template)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _end_with_stdin() -> None:
    """Whoever started us holds the other end.  subtle: a buffered read would hold a lock that the
    interpreter, when it ends, aborts without."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # at once while the model is loaded; later we drain


def log_to_stderr(*, access: bool) -> None:
    """Warnings of all, and one line for each request if `access`."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    log = logging.getLogger("minisgl.serve.access")
    handler = logging.StreamHandler(sys.stderr)  # just the line, which is JSON
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO if access else logging.WARNING)


def serve(config: ServeConfig, engine_settings: dict[str, Any], template: str | None) -> int:
    """Load the model, then answer until told to stop; the exit status."""
    from minisgl.chat_template import ChatTemplate  # here, so that --help does not wait for torch
    from minisgl.engine.engine import Engine
    from minisgl.engine.ranks import is_helper
    from minisgl.engine.tp_worker import work_under_torchrun
    from minisgl.models.hub import resolve_model
    from minisgl.serve.desk import Desk
    from minisgl.serve.server import Server

    if is_helper():  # rank 0 serves, and ends the others when it ends
        work_under_torchrun(EngineConfig.make(**engine_settings))
        return 0
    settings = dict(engine_settings)
    with Engine(settings.pop("model"), progress=sys.stderr.isatty(), **settings) as engine:
        own = None
        if template is not None:
            path = resolve_model(engine.config.model, weights=not engine.config.is_dummy)
            own = ChatTemplate(path, template)
        server = Server(Desk(engine, config, own))
        server.listening.add_done_callback(
            lambda port: print(f"http://{config.host}:{port.result()}", file=sys.stderr, flush=True)
        )
        server.run()
        if server.has_failed:
            print(f"error: {engine.ended.exception()}", file=sys.stderr)
        return 0 if server.started and not server.has_failed else 1


if __name__ == "__main__":
    sys.exit(main())
