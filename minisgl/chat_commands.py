"""The chat's keyboard: questions, and the commands that begin with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from minisgl.chat_media import Message
from minisgl.chat_turns import Chat
from minisgl.sampling import SamplingParams

COMMANDS = {
    "/help": "show this list",
    "/reset": "start a new conversation (the system message stays)",
    "/image [FILE]": "the next question is about this picture too, or about none",
    "/video [FILE]": "the same with a video, of which eight frames are looked at",
    "/system [TEXT]": "set the system message, or remove it",
    "/regex [PATTERN]": "answers match this pattern from now on, or are free again",
    "/schema [FILE]": "answers are JSON by the schema in this file, or are free again",
    "/set [NAME VALUE]": "set a sampling parameter (temperature 0.2, seed none), or show all",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "go on with a conversation that was saved",
    "/stats": "cached and new tokens, speed, and the engine's totals",
    "/tree": "draw the radix tree of cached prefixes",
    "/quit": "leave, as Ctrl-D does",
}
HINTS = 'Ctrl-C stops an answer. A line may go on after "\\"; "//" begins one that starts with "/".'


def talk(chat: Chat, read: Callable[[str], str] = input) -> None:
    """Questions, answers and commands until Ctrl-D.  Mistakes are shown, and it goes on."""
    while True:
        try:
            line = read("> ")
            while line.endswith("\\"):
                line = line[:-1] + "\n" + read(". ")
            if line.strip() == "/quit":
                return
            if line.startswith("/") and not line.startswith("//"):
                command(chat, line)
            elif line.strip():
                chat.answer(line[1:] if line.startswith("//") else line)
        except EOFError:
            chat.say("")
            return
        except KeyboardInterrupt:
            chat.say("")
            chat.note("Ctrl-D leaves")
        except (ValueError, OSError, RuntimeError) as error:  # EngineError is a RuntimeError
            chat.note(str(error))


def command(chat: Chat, line: str) -> None:
    """Do what a line like "/set temperature 0.2" says; ValueError if it says nothing known."""
    name, _, typed = line.lstrip().partition(" ")
    name, rest = name.rstrip(), typed.strip()
    match name:
        case "/help":
            width = max(map(len, COMMANDS))
            chat.say("\n".join(f"{c.ljust(width)}  {what}" for c, what in COMMANDS.items()))
            chat.say(HINTS)
        case "/reset":
            chat.start([m for m in chat.messages if m["role"] == "system"])
            chat.note("a new conversation")
        case "/image" | "/video":
            _show(chat, name[1:], rest)
        case "/system":
            chat.system = rest or None
            chat.note("the system message is set" if rest else "no system message")
        case "/regex" | "/schema":
            _constrain(chat, name, typed)
        case "/set":
            _set(chat, rest)
        case "/save":
            text = json.dumps(chat.messages, ensure_ascii=False, indent=2)
            _file(name, rest).write_text(text + "\n", encoding="utf-8")
            chat.note(f"{len(chat.messages)} messages written to {rest}")
        case "/load":
            chat.start(load_messages(_file(name, rest)))
            chat.note(f"{len(chat.messages)} messages read from {rest}")
        case "/stats":
            chat.say(f"last answer: {chat.last or 'none yet'}")
            chat.say(str(chat.engine.stats()))
        case "/tree":
            chat.say(chat.engine.tree())
        case _:
            raise ValueError(f"there is no command {name!r}; /help lists them")


def _file(name: str, rest: str) -> Path:
    if not rest:
        raise ValueError(f"{name} needs a file: {name} FILE")
    return Path(rest).expanduser()


def _constrain(chat: Chat, name: str, typed: str) -> None:
    rest = typed.strip()
    if not rest:
        chat.params = replace(chat.params, regex=None, json_schema=None)
        chat.note("answers are free")
    elif name == "/regex":  # a space at the end of a pattern belongs to it
        chat.params = checked(replace(chat.params, regex=typed, json_schema=None))
        chat.note(f"answers match {typed}")
    else:
        schema = _file(name, rest).read_text(encoding="utf-8")
        chat.params = checked(replace(chat.params, regex=None, json_schema=schema))
        chat.note(f"answers are JSON by the schema in {rest}")


def _show(chat: Chat, kind: str, rest: str) -> None:
    if not rest:
        chat.shown.next = []
        chat.note("your next question is about no picture")
        return
    is_url = rest.startswith(("http://", "https://"))
    path = rest if is_url else str(Path(rest).expanduser().absolute())
    chat.note(f"{chat.shown.show(kind, path)} goes with your next question")


def _set(chat: Chat, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if not name:
        for field in fields(chat.params):
            chat.say(f"{field.name} {getattr(chat.params, field.name)!r}")
        return
    known = [field.name for field in fields(chat.params)]
    if name not in known:
        raise ValueError(f"there is no parameter {name!r}; there are {', '.join(known)}")
    chat.params = checked(replace(chat.params, **{name: parse_value(value.strip())}))
    chat.note(f"{name} is {getattr(chat.params, name)!r}")


def checked(params: SamplingParams) -> SamplingParams:
    """The same, its pattern found to be one; ValueError if it is none.

    So that a mistake is told where it is made, and not with the next question.
    """
    from minisgl.fsm import compile_json_schema, compile_regex  # here: it waits for NumPy

    if params.regex is not None:
        compile_regex(params.regex)
    if params.json_schema is not None:
        compile_json_schema(params.json_schema, max_space=params.json_space)
    return params


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
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise ValueError(f"{file} is not a conversation; it should be {shape}")
    return messages


def _is_message(value: Any) -> bool:
    match value:
        case {"role": str(), "content": str()}:
            return True
        case {"role": str(), "content": [*parts]}:
            return all(map(_is_part, parts))
        case _:
            return False


def _is_part(value: Any) -> bool:
    match value:
        case {"type": "text", "text": str()} | {"type": "image" | "video", "path": str()}:
            return True
        case _:
            return False
