"""From the messages of a chat to a prompt, by the model's own template.

[{"role": "user", "content": [{"type": "text", ...}, {"type": "image_url", ...}]}]
    --template--> ids with a placeholder for each image, and the images themselves
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from minisgl import media
from minisgl.engine.prompt import AnyPrompt, Prompt
from minisgl.serve.desk import Desk
from minisgl.serve.openai_types import ChatRequest, Message, Part, Tool

Take = Callable[[str, str], None]
"""Called with "image" or "video", and where it is."""


def read(desk: Desk, body: ChatRequest, tools: Sequence[Tool] = (), begun: str = "") -> AnyPrompt:
    """The prompt after which the model answers the messages; its answer begins with `begun`.

    Raises:
        ValueError: the template refuses them, or has no place for tools or images; an image that
            can't be used.
    """
    template, engine = desk.chat_template, desk.engine
    images: list[media.Image] = []

    def take(kind: str, source: str) -> None:
        load = media.load_video if kind == "video" else media.load_image
        images.append(load(source, limits=desk.media))

    plain = [plain_message(message, take) for message in body.messages]
    described = plain_tools(tools)
    if described and template.render(plain, tools=described) == template.render(plain):
        raise ValueError("tools: the model's chat template has no place for them")
    ids = template.encode(plain, engine.door.encoder, tools=described, **body.ending)
    if begun:
        ids += engine.tokenizer.encode(begun, add_special_tokens=False)
    return Prompt(ids, images) if images else ids


def plain_message(message: Message, take: Take) -> dict[str, Any]:
    """As templates of `transformers` take it; its images are handed to `take`."""
    plain = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        plain["content"] = [_part(part, take) for part in message.content]
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    return plain


def plain_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """As templates take them; None: there are none."""
    return [tool.model_dump(exclude_none=True) for tool in tools] or None


def _part(part: Part, take: Take) -> dict[str, str]:
    if part.type == "text" and part.text is not None:
        return {"type": "text", "text": part.text}
    if part.type == "image_url" and part.image_url is not None:
        take("image", part.image_url.url)
        return {"type": "image"}
    if part.type == "video_url" and part.video_url is not None:
        take("video", part.video_url.url)
        return {"type": "video"}
    raise ValueError(f"a part of type {part.type!r} has no field {part.type!r}")


def _call(call: Any) -> Any:
    """OpenAI's clients send a call's arguments as JSON text; templates print them as JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        raise ValueError(
            f"tool_calls: the arguments {function['arguments']!r} are not JSON: {error}"
        ) from error
    return {**call, "function": {**function, "arguments": arguments}}
