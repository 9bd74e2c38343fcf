"""What an answer says of its prompts: how many tokens they had, how many of them were cached."""

from __future__ import annotations

import json


def usage_of(content_type: str, body: bytes) -> tuple[int, int] | None:
    """(Prompt tokens, cached tokens) that an answer tells of; None: it doesn't.

    >>> usage_of("application/json", b'{"meta_info": {"prompt_tokens": 7, "cached_tokens": 5}}')
    (7, 5)
    >>> usage_of("text/event-stream", b'data: {"usage": null}\\n\\ndata: [DONE]\\n\\n')

    Args:
        body: of a stream its last events are enough.
    """
    if content_type.startswith("text/event-stream"):
        for line in reversed(body.split(b"\n\n")):
            found = _usage(line.removeprefix(b"data: "))
            if found is not None:
                return found
        return None
    return _usage(body)


def _usage(text: bytes) -> tuple[int, int] | None:
    try:
        given = json.loads(text)
    except ValueError:
        return None
    told = [_told(each) for each in (given if isinstance(given, list) else [given])]
    known = [each for each in told if each is not None]
    return (sum(a for a, _ in known), sum(b for _, b in known)) if known else None


def _told(answer: object) -> tuple[int, int] | None:
    if not isinstance(answer, dict):
        return None
    usage = answer.get("usage") or answer.get("meta_info")
    if not isinstance(usage, dict) or "prompt_tokens" not in usage:
        return None
    details = usage.get("prompt_tokens_details") or usage
    return int(usage["prompt_tokens"]), int(details.get("cached_tokens") or 0)
