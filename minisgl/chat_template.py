"""Messages to prompt, by the model's own jinja template and no other.

    [{"role": "user", "content": "Hi"}]  --render-->  "<s>[INST] Hi [/INST]"  --encode-->  [1, ...]

A model is trained on one exact layout of a conversation, and its makers ship it as a template.  A
model without one gets none made up: it is not a chat model.  The environment is that of
`transformers`, so that the same template prints the same text: sandboxed, since a template is a
program from the internet.  Messages go in as they are; what the template can't take it says itself
(`raise_exception`), and we add the roles that it was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


PLACEHOLDERS = {"image": "<image>", "video": "<video>"}  # of every model that sees
_MARK = "\ufdd0"  # a noncharacter: no template prints it by itself


class Encoder(Protocol):
    """What `ChatTemplate.encode` asks of a tokenizer."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """As `Tokenizer.special_tokens`."""

    @property
    def bos_token_id(self) -> int | None:
        """As `Tokenizer.bos_token_id`."""

    @property
    def adds_bos(self) -> bool:
        """As `Tokenizer.adds_bos`."""

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        as_text: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """As `Tokenizer.encode`."""


class ChatTemplate:
    """The template of a Hugging Face directory: chat_template.jinja, else tokenizer_config.json's.

    >>> template = ChatTemplate({
    ...     "chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    ...     "{% if add_generation_prompt %}<assistant>{% endif %}"
    ... })
    >>> template.render([{"role": "user", "content": "Hi"}])
    '<user>Hi<assistant>'

    Args:
        source: the directory, or the contents of its tokenizer_config.json.
        template: one to use in place of the one there.

    Raises:
        ValueError: there is no template, or it is not valid jinja.
    """

    def __init__(self, source: str | Path | Mapping[str, Any], template: str | None = None) -> None:
        config = source if isinstance(source, Mapping) else _read_config(Path(source))
        self.source = _default_of(config.get("chat_template") if template is None else template)
        named = {name: _content(config.get(name)) for name in _NAMED}
        self._named = {name: text for name, text in named.items() if text is not None}
        self.bos_token = self._named.get("bos_token")
        self.config = {"chat_template": self.source, **self._named}  # which makes the same again
        try:
            self._template = _environment().from_string(self.source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the model's chat template is broken: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as the model reads it.  BOS is in it if the template prints one, so
        encode it with `add_special_tokens=False`; `encode` does both and more.

        Args:
            messages: dicts with "role" and "content", the oldest first.
            add_generation_prompt: end where the assistant's answer begins.
            tools: what the model may call, each {"type": "function", "function": {"name", ...}}; a
                template that knows of none leaves them out.

        The content of a message is a text, or a list of parts for a model that sees: {"type":
        "image"}, {"type": "video"}, {"type": "text", "text": "..."}.  A template that knows texts
        only prints the placeholder of an image in a line of its own, as LLaVA was trained.

        Raises:
            ValueError: no message, not a message, or the template refuses them (its own words).
        """
        if not messages:
            raise ValueError("no messages: a conversation has at least one")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ValueError(
                    f"{message!r} is not a message: "
                    'give {"role": "user", "content": "..."}, with any role the model knows'
                )
        messages = [self._with_content(message) for message in messages]
        try:
            return self._render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        except (jinja2.TemplateError, TypeError) as error:
            roles = ", ".join(m["role"] for m in messages)
            raise ValueError(
                f"the model's chat template refuses these messages (roles: {roles}): {error}"
            ) from error

    def _render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        return self._template.render(
            messages=[{k: v for k, v in m.items() if v is not None} for m in messages],
            add_generation_prompt=add_generation_prompt,
            tools=tools,  # defined, as templates expect of `transformers`
            documents=None,
            **self._named,
        )

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether it prints the parts of a content that is a list; else it would print what Python
        prints for a list."""
        printed = self._probe([{"type": "text", "text": _MARK}])
        return _MARK in printed and "'type'" not in printed and '"type"' not in printed

    @cached_property
    def _takes_parts_only(self) -> bool:
        """Whether it prints nothing of a content that is a text, since it loops over parts."""
        return self._takes_parts and _MARK not in self._probe(_MARK)

    def _probe(self, content: Any) -> str:
        try:
            return self._render([{"role": "user", "content": content}])
        except (jinja2.TemplateError, TypeError):
            return ""

    def _with_content(self, message: Message) -> Message:
        """The message, its content in a form that the template prints."""
        content = message.get("content")
        if isinstance(content, str) and self._takes_parts_only:
            return {**message, "content": [{"type": "text", "text": content}]}
        if isinstance(content, list) and not self._takes_parts:
            return {**message, "content": "".join(map(_text_of, content))}
        return message

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Encoder,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """The conversation's ids.

        Args:
            continue_final_message: end with the last message's own last character, so that the
                model goes on with it; no answer of its own is begun then.

        With exactly one BOS if the tokenizer puts one before a text: the template's, or else ours.
        A special token written inside a message ("what does <|im_end|> mean?") or a tool stays
        ordinary text, so that nobody can end their own turn and speak as somebody else.

        Raises:
            ValueError: as `render`; or the last message, which is to go on, has no text or is not
                printed.
        """
        quote = _Quote([*messages, *(tools or ())], tokenizer.special_tokens)
        quoted = quote.quoted[: len(messages)]
        if continue_final_message and quoted:
            quoted[-1] = _with_end(quoted[-1], quote.end)
        rendered = self.render(
            quoted,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            tools=quote.quoted[len(messages) :] or None,
        )
        if continue_final_message:
            rendered, found, _ = rendered.rpartition(quote.end)
            if not found:
                raise ValueError("the chat template does not print the message that is to go on")
        text, spans = quote.unquote(rendered)
        ids = tokenizer.encode(text, add_special_tokens=False, as_text=spans)
        bos = tokenizer.bos_token_id
        if bos is not None and tokenizer.adds_bos and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids


def _text_of(part: Mapping[str, Any]) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "video" as kind}:
            return f"{PLACEHOLDERS[kind]}\n"
        case _:
            raise ValueError(f"{part!r} is no part of a message: give a text, an image or a video")


def _with_end(message: Message, end: str) -> Message:
    """The message, with `end` after its text."""
    match message.get("content"):
        case str(text):
            return {**message, "content": text + end}
        case [*parts, {"type": "text", "text": str(text)}]:
            return {**message, "content": [*parts, {"type": "text", "text": text + end}]}
        case _:
            raise ValueError("the message that is to go on does not end with a text")


class _Quote:
    """Special tokens in messages, put between two marks on their way through the template.

    end: a third mark, for where a message ends.

    The marks are two of Unicode's noncharacters, which no text is meant to hold; those that these
    messages hold all the same are not used.
    """

    def __init__(self, messages: Sequence[Message], special_tokens: Mapping[str, int]) -> None:
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._special = "|".join(map(re.escape, longest_first)) or "(?!)"  # (?!) matches nothing
        held = set("".join(_strings(messages)))
        unused = (c for c in map(chr, range(0xFDD0, 0xFDF0)) if c not in held)
        self._open, self._close, self.end = islice(unused, 3)
        self.quoted: list[Message] = self._quote(list(messages))

    def _quote(self, value: Any) -> Any:
        match value:
            case str():
                return re.sub(self._special, rf"{self._open}\g<0>{self._close}", value)
            case Mapping():
                return {key: self._quote(item) for key, item in value.items()}
            case list() | tuple():
                return [self._quote(item) for item in value]
            case _:
                return value

    def unquote(self, rendered: str) -> tuple[str, list[tuple[int, int]]]:
        """The text without marks, and the spans that were between them, in characters."""
        text, spans, size = [], [], 0
        # A template may have cut a marked text in two: a lone mark just goes.
        marked = f"{self._open}({self._special}){self._close}|[{self._open}{self._close}]"
        for i, piece in enumerate(re.split(marked, rendered)):
            if piece is None:
                continue
            if i % 2:
                spans.append((size, size + len(piece)))
            text.append(piece)
            size += len(piece)
        return "".join(text), spans


def _strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case Mapping():
            return [s for item in value.values() for s in _strings(item)]
        case list() | tuple():
            return [s for item in value for s in _strings(item)]
        case _:
            return []


# ---------------------------------------------------------------------- jinja, as in transformers


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; here it prints what is in it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    # Jinja's own escapes <, > and & for HTML, which a prompt is not.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


# ---------------------------------------------------------------------- files


def _read_config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config |= _read_json(path / name)
    # A model that sees has a processor, whose template comes before its tokenizer's.
    for name in ("processor_config.json", "chat_template.json"):
        processor = _read_json(path / name)
        config |= {key: processor[key] for key in processor if key == "chat_template"}
    if (path / "chat_template.jinja").is_file():
        config["chat_template"] = (path / "chat_template.jinja").read_text(encoding="utf-8")
    return config


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} can't be read ({error}): fetch it anew") from error


def _default_of(template: object) -> str:
    """A model may have several templates by name; "default" is the one for chat."""
    if isinstance(template, str) and template:
        return template
    if isinstance(template, list):
        by_name = {t.get("name"): t.get("template") for t in template if isinstance(t, Mapping)}
        if isinstance(by_name.get("default"), str):
            return str(by_name["default"])
        names = ", ".join(map(repr, by_name))
        raise ValueError(f"the model has chat templates {names}, but none named 'default'")
    raise ValueError(
        "the model has no chat template (neither chat_template.jinja nor one in "
        "tokenizer_config.json): it is not a chat model. Take its instruct or chat version, "
        "or complete plain text with Engine.generate"
    )


def _content(token: object) -> str | None:
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
