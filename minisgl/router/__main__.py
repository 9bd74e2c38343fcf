"""Serve several copies of a model behind one endpoint: `python -m minisgl.router`.

    python -m minisgl.router --model DIR --workers 4 --port 30000
    python -m minisgl.router --model DIR --workers 4 --ray    # on the hosts of a Ray cluster
    python -m minisgl.router --model DIR --worker http://10.0.0.7:30000 --worker http://10.0.0.8:30000

Options that are none of the router's are those of `python -m minisgl.serve`, and go to each worker
that is started; after `--` all do.  Notices, and what workers say, go to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any

from minisgl.router.config import RouterConfig
from minisgl.router.launcher import Given, Source, Started, gpus_of
from minisgl.router.policy import POLICIES
from minisgl.serve.__main__ import KEY, log_to_stderr, settings_of
from minisgl.serve.__main__ import parser as parser_of_workers

OURS = (
    "--port=0",
    "--report-evictions",
    "--end-with-stdin",
    "--no-access-log",
)
TYPES = {"int": int, "int | None": int, "float": float, "str": str, "str | None": str}


def parser() -> argparse.ArgumentParser:
    """The options of `python -m minisgl.router`."""
    p = argparse.ArgumentParser(
        prog="python -m minisgl.router",
        description=__doc__.split("\n")[0],
        epilog="Other options are those of `python -m minisgl.serve`, for each worker.",
        allow_abbrev=False,  # --tp is a worker's
    )
    for field in fields(RouterConfig):
        option = "--" + field.name.replace("_", "-")
        about: dict[str, Any] = {"default": field.default, "help": f"default: {field.default}"}
        if field.name == "worker":
            about |= {"action": "append", "default": None, "metavar": "URL"}
            about["help"] = "a server that runs already; may be repeated, in place of --workers"
        elif field.name == "ray":
            about |= {"nargs": "?", "const": "auto", "metavar": "ADDRESS"}
            about["help"] = "have Ray start the workers; default address: auto"
        elif field.name == "cors_origins":
            about |= {"action": "append", "default": None, "metavar": "ORIGIN"}
            about["help"] = "a web origin whose pages may ask; may be repeated"
        elif field.name == "policy":
            about["choices"] = POLICIES
        else:
            about["type"] = TYPES[str(field.type)]
        if field.name == "api_key":
            about["help"] = f"better in the environment, as {KEY}, than where `ps` shows it"
        p.add_argument(option, **about)
    p.add_argument("--no-access-log", action="store_true", help="log no requests")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the router; the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    after = given.index("--") if "--" in given else len(given)
    options = parser()
    args, rest = options.parse_known_args(given[:after])
    rest += given[after + 1 :]
    workers_args = parser_of_workers().parse_args(rest)  # so that what is wrong is said now, once
    key = args.api_key or os.environ.get(KEY) or None
    try:
        config = RouterConfig(**settings_of(RouterConfig, args) | {"api_key": key})
    except ValueError as error:
        options.error(str(error))
    log_to_stderr(access=not args.no_access_log)
    try:
        return route(config, workers_args, rest)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def route(config: RouterConfig, workers_args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Answer until told to stop; the exit status."""
    from pathlib import Path

    from minisgl.models.hub import resolve_model  # here, so that --help does not wait for torch
    from minisgl.router.fleet import Fleet
    from minisgl.router.reader import Reader
    from minisgl.router.server import Server

    template = workers_args.chat_template
    text = Path(template).read_text(encoding="utf-8") if template else None
    reader = Reader(resolve_model(workers_args.model), text)
    program, count = ["-m", "minisgl.serve", *rest, *OURS], config.workers or 2
    key, sources = config.api_key, list[Source](Given(url) for url in config.worker)
    with contextlib.ExitStack() as held:
        if config.ray is not None:
            ray_workers = _ray_workers()
            held.enter_context(ray_workers.cluster(config.ray))
            needs = ray_workers.needs_of(workers_args.device, workers_args.tp_size, config.ray_cpus)
            key = key or secrets.token_urlsafe()  # some may listen on a network
            for number in range(count):
                source = ray_workers.Placed(number, program, config.restarts, {KEY: key}, needs)
                sources.append(source)
        elif not sources:
            command = [sys.executable, *program, "--host=127.0.0.1"]
            env = {} if key is None else {KEY: key}
            for number, gpus in enumerate(_gpus(count, workers_args)):
                sources.append(Started(number, command, config.restarts, {**env, **gpus}))

        server = Server(Fleet(config, sources, key), reader)
        server.ready.add_done_callback(
            lambda port: print(f"http://{config.host}:{port.result()}", file=sys.stderr, flush=True)
        )
        server.run()
    if server.has_failed:
        print("error: no worker is left", file=sys.stderr)
    return 0 if server.started and not server.has_failed else 1


def _ray_workers() -> ModuleType:
    try:
        from minisgl.router import ray_workers
    except ModuleNotFoundError as error:
        raise RuntimeError("--ray needs Ray: pip install 'minisgl[ray]'") from error
    return ray_workers


def _gpus(workers: int, args: argparse.Namespace) -> list[dict[str, str]]:
    """The environment that gives each worker its own GPUs; nothing, where there are none."""
    import torch

    if args.device == "cpu" or not torch.cuda.is_available():
        return [{}] * workers
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else list(map(str, range(torch.cuda.device_count())))
    return [{"CUDA_VISIBLE_DEVICES": g} for g in gpus_of(visible, workers, args.tp_size)]


if __name__ == "__main__":
    sys.exit(main())
