"""Talk with a model in the terminal: `python -m minisgl.chat`.

Every turn sends the whole conversation again, by the model's own template; the radix cache is what
makes that cheap, and `/stats` and `/tree` show it at work.  Nothing is ever dropped from a
conversation in silence: one that outgrows the context says so.

Answers go to stdout and everything else to stderr, so that

    git diff | python -m minisgl.chat --prompt "Sum this up:" - > summary.txt

writes the answer and nothing but the answer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from minisgl.config import DEVICES, DTYPES
from minisgl.sampling import SamplingParams

if TYPE_CHECKING:
    from minisgl.engine.engine import Engine
    from minisgl.engine.output import Completion

Message = dict[str, Any]

COMMANDS = {
    "/help": "show this list",
    "/reset": "start a new conversation (the system message stays)",
    "/system [TEXT]": "set the system message, or remove it",
    "/set [NAME VALUE]": "set a sampling parameter (temperature 0.2, seed none), or show all",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "go on with a conversation that was saved",
    "/stats": "cached and new tokens, speed, and the engine's totals",
    "/tree": "draw the radix tree of cached prefixes",
    "/quit": "leave, as Ctrl-D does",
}
HINTS = 'Ctrl-C stops an answer. A line may go on after "\\"; "//" begins one that starts with "/".'


@dataclass(frozen=True)
class Turn:
    """What one answer took.  Tokens; seconds."""

    prompt_tokens: int
    cached_tokens: int | None  # None: stopped before the engine said
    new_tokens: int
    first_token_s: float
    decode_s: float

    def __str__(self) -> str:
        cached = "" if self.cached_tokens is None else f" ({self.cached_tokens} cached)"
        line = f"{self.prompt_tokens} prompt tokens{cached}, {self.new_tokens} new"
        if self.new_tokens:
            line += f"; the first after {self.first_token_s:.2f} s"
        if self.new_tokens > 1 and self.decode_s > 0:
            line += f", then {(self.new_tokens - 1) / self.decode_s:.1f} tokens/s"
        return line


class Chat:
    """One conversation with one engine.

    Args:
        engine: a running engine, whose model has a chat template.
        params: how to sample; `/set` changes it.
        system: the system message.
        out: where answers go, and what commands show.
        notices: where everything else goes.
        verbose: after each answer, say what it took.
    """

    def __init__(
        self,
        engine: Engine,
        params: SamplingParams,
        *,
        system: str | None = None,
        out: TextIO | None = None,
        notices: TextIO | None = None,
        verbose: bool = False,
    ) -> None:
        self.engine = engine
        self.params = params
        self.messages: list[Message] = []
        self.last: Turn | None = None
        self.verbose = verbose
        self._out = out or sys.stdout
        self._notices = notices or sys.stderr
        self._set_system(system)

    # ------------------------------------------------------------------ one turn

    def answer(self, text: str) -> Completion | None:
        """Say `text` to the model and print what it says.  None if Ctrl-C stopped it.

        A question that gets no answer at all is taken out of the conversation again.

        Raises:
            ValueError: the template or the engine refuses the conversation, or it is too long.
            EngineError: the engine failed.
        """
        self.messages.append({"role": "user", "content": text})
        said = io.StringIO()
        try:
            ids = self.engine.chat_template.encode(self.messages, self.engine.tokenizer)
            context = self.engine.context_length
            if len(ids) >= context:
                raise ValueError(
                    f"the conversation has {len(ids)} tokens now, and the context holds {context}, "
                    "the answer included: /reset starts a new one (/save FILE keeps this one)"
                )
            completion = self._stream(ids, said)
        finally:
            if said.getvalue():
                self.messages.append({"role": "assistant", "content": said.getvalue()})
                if not said.getvalue().endswith("\n"):
                    self._say("")
            else:
                self.messages.pop()
        taken_back = "" if said.getvalue() else "; the question is taken back"
        if completion is None:
            self._note("stopped" + taken_back)
        elif taken_back:
            self._note("no answer" + taken_back)
        elif completion.finish_reason == "length":
            self._note(self._why_it_ends(completion))
        if self.verbose:
            self._note(str(self.last))
        return completion

    def _stream(self, ids: list[int], said: io.StringIO) -> Completion | None:
        """Print an answer as it comes, keep it in `said`, and measure it."""
        completion: Completion | None = None
        new, start = 0, time.perf_counter()
        first = last = start
        pieces = None
        try:
            pieces = self.engine.stream(ids, self.params)
            for chunk in pieces:
                last = time.perf_counter()
                first = last if new == 0 else first
                new += len(chunk.token_ids)
                completion = chunk.completion
                said.write(chunk.text)
                self._out.write(chunk.text)
                self._out.flush()
        except KeyboardInterrupt:
            completion = None
        finally:
            if pieces is not None:
                pieces.close()  # frees the request's slots at the next step
        cached = completion.cached_tokens if completion else None
        self.last = Turn(len(ids), cached, new, first - start, last - first)
        return completion

    def _why_it_ends(self, completion: Completion) -> str:
        new = completion.completion_tokens
        if self.params.max_tokens is not None and new >= self.params.max_tokens:
            return f"cut off after max_tokens={self.params.max_tokens}"
        return (
            f"the context is full: {completion.prompt_tokens} tokens of conversation and {new} of "
            f"answer, of {self.engine.context_length}; /reset starts a new one"
        )

    # ------------------------------------------------------------------ the terminal

    def loop(self, read: Callable[[str], str] = input) -> None:
        """Questions, answers and commands until Ctrl-D.  Mistakes are shown, and it goes on."""
        while True:
            try:
                line = read("> ")
                while line.endswith("\\"):
                    line = line[:-1] + "\n" + read(". ")
                if line.strip() == "/quit":
                    return
                if line.startswith("/") and not line.startswith("//"):
                    self.command(line)
                elif line.strip():
                    self.answer(line[1:] if line.startswith("//") else line)
            except EOFError:
                self._say("")
                return
            except KeyboardInterrupt:
                self._say("")
                self._note("Ctrl-D leaves")
            except (ValueError, OSError, RuntimeError) as error:  # EngineError is a RuntimeError
                self._note(str(error))

    def command(self, line: str) -> None:
        """Do what a line like "/set temperature 0.2" says; ValueError if it says nothing known."""
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match name:
            case "/help":
                width = max(map(len, COMMANDS))
                self._say("\n".join(f"{c.ljust(width)}  {what}" for c, what in COMMANDS.items()))
                self._say(HINTS)
            case "/reset":
                system = self.messages[0]["content"] if self._has_system() else None
                self.messages = []
                self._set_system(system)
                self._note("a new conversation")
            case "/system":
                self._set_system(rest or None)
                self._note("the system message is set" if rest else "no system message")
            case "/set":
                self._set(rest)
            case "/save" | "/load" if not rest:
                raise ValueError(f"{name} needs a file: {name} FILE")
            case "/save":
                text = json.dumps(self.messages, ensure_ascii=False, indent=2)
                Path(rest).expanduser().write_text(text + "\n", encoding="utf-8")
                self._note(f"{len(self.messages)} messages written to {rest}")
            case "/load":
                self.messages = load_messages(Path(rest).expanduser())
                self._note(f"{len(self.messages)} messages read from {rest}")
            case "/stats":
                self._show_stats()
            case "/tree":
                self._say(self.engine.tree())
            case _:
                raise ValueError(f"there is no command {name!r}; /help lists them")

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if not name:
            for field in fields(self.params):
                self._say(f"{field.name} {getattr(self.params, field.name)!r}")
            return
        known = [field.name for field in fields(self.params)]
        if name not in known:
            raise ValueError(f"there is no parameter {name!r}; there are {', '.join(known)}")
        self.params = replace(self.params, **{name: parse_value(value.strip())})
        self._note(f"{name} is {getattr(self.params, name)!r}")

    def _show_stats(self) -> None:
        self._say(f"last answer: {self.last or 'none yet'}")
        self._say(str(self.engine.stats()))

    def _has_system(self) -> bool:
        return bool(self.messages) and self.messages[0]["role"] == "system"

    def _set_system(self, text: str | None) -> None:
        if self._has_system():
            self.messages.pop(0)
        if text is not None:
            self.messages.insert(0, {"role": "system", "content": text})

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _note(self, text: str) -> None:
        print(f"[{text}]", file=self._notices, flush=True)


def parse_value(text: str) -> Any:
    """What somebody types after "/set NAME": JSON, or Python's words for it, or just text.

    >>> [parse_value(text) for text in ("0.2", "none", "True", '["a", "b"]', '"\\\\n"', "END")]
    [0.2, None, True, ['a', 'b'], '\\n', 'END']
    """
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def load_messages(file: Path) -> list[Message]:
    """The conversation in `file`; ValueError if there is none."""
    shape = '[{"role": "user", "content": "..."}, ...]'
    try:
        messages = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); it should be {shape}") from error
    is_message = lambda m: (  # noqa: E731
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
    )
    if not isinstance(messages, list) or not all(map(is_message, messages)):
        raise ValueError(f"{file} is not a conversation; it should be {shape}")
    return messages


@contextlib.contextmanager
def line_editing(history: Path) -> Iterator[None]:
    """Arrow keys, and a history that outlives the program, where Python has readline."""
    try:
        readline: Any = import_module("readline")
    except ImportError:  # Windows, whose console edits lines by itself
        yield
        return
    with contextlib.suppress(OSError):  # there is none yet
        readline.read_history_file(history)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a disk we can't write to is no reason to fail
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)


# ---------------------------------------------------------------------- the command line


def parser() -> argparse.ArgumentParser:
    """The options of `python -m minisgl.chat`."""
    p = argparse.ArgumentParser(prog="python -m minisgl.chat", description=__doc__.split("\n")[0])
    p.add_argument("--model", help="a directory, a hub id, or a .gguf file (default: SmolLM2-135M)")
    p.add_argument("--prompt", help="answer this and leave")
    p.add_argument(
        "stdin",
        nargs="?",
        choices=["-"],
        metavar="-",
        help="read the prompt, or its rest",
    )
    p.add_argument("--system", help="the system message")
    p.add_argument("--max-tokens", type=int, help="most tokens of an answer (default: no limit)")
    p.add_argument(
        "--temperature", type=float, default=0.0, help="0: greedy (default: %(default)s)"
    )
    p.add_argument("--top-p", type=float, default=0.9, help="default: %(default)s")
    p.add_argument("--seed", type=int, help="the same seed gives the same answers")
    p.add_argument("--device", choices=DEVICES, default="auto")
    p.add_argument("--dtype", choices=DTYPES, default="auto")
    p.add_argument("--trace", metavar="FILE", help="write a trace of every step, for Perfetto")
    p.add_argument("--verbose", action="store_true", help="say what each answer took")
    return p


def question(args: argparse.Namespace, stdin: TextIO) -> str | None:
    """The one question to answer, from --prompt and stdin; None: talk."""
    given = [] if args.prompt in (None, "-") else [args.prompt]
    if args.stdin or args.prompt == "-" or (not given and not stdin.isatty()):
        given.append(stdin.read().rstrip("\n"))
    if not given:
        return None
    text = "\n\n".join(part for part in given if part.strip())
    if not text:
        raise ValueError("the prompt is empty")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    options = parser()
    args = options.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        params = SamplingParams(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            seed=args.seed,
        )
        asked = question(args, sys.stdin)
    except ValueError as error:
        options.error(str(error))
    try:
        return run(args, params, asked)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace, params: SamplingParams, asked: str | None) -> int:
    """Load the model, then answer `asked`, or talk if it is None; the exit status."""
    from minisgl.engine.engine import Engine  # here, so that --help does not wait for torch
    from minisgl.models.hub import cache_dir

    bars = sys.stderr.isatty()
    settings = {"device": args.device, "dtype": args.dtype, "trace": args.trace}
    with Engine(args.model, progress=bars, **settings) as engine:
        chat = Chat(engine, params, system=args.system, verbose=args.verbose)
        if asked is not None:
            return 130 if chat.answer(asked) is None else 0
        print("/help lists the commands, Ctrl-D leaves.", file=sys.stderr)
        with line_editing(cache_dir() / "chat_history"):
            chat.loop()
        return 0


if __name__ == "__main__":
    sys.exit(main())
