"""The essay judge once more, on a plain chat API; `scripts/examples/essay_judge.py` is the other.

It does the same: the early end, the branches in parallel, a report of a given form.  What the
language does there is done by hand here: messages are carried about, branches run in threads, the
choice is looked for in the answer, and the report is asked for again while its form is wrong.

For any server that speaks OpenAI's protocol, through a client with the interface of `openai`'s:

    essay_judge(openai.OpenAI(base_url="http://localhost:30000/v1"), "default", essay)
"""

from __future__ import annotations

import base64
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

DIMENSIONS = ("clarity", "originality", "evidence", "structure", "tone", "grammar")
REPORT = r'\{"summary": "[\w ,]{10,120}\.", "grade": "[ABCD][+-]?"\}'
KINDS = ("an essay", "a recipe", "a letter")
TEMPERATURES = (0.0, 0.7, 1.0)  # of the tries: at 0 the same answer would come again


def ask(client: Any, model: str, messages: list[Any], question: Any, **settings: Any) -> str:
    messages = [*messages, {"role": "user", "content": question}]
    settings = {"temperature": 0.0, **settings}
    reply = client.chat.completions.create(model=model, messages=messages, **settings)
    return reply.choices[0].message.content or ""


def say(messages: list[Any], question: Any, answer: str) -> None:
    messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": answer})


def with_picture(text: str, picture: Path) -> list[Any]:
    data = base64.b64encode(picture.read_bytes()).decode()
    url = f"data:image/{picture.suffix[1:]};base64,{data}"
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]


def ask_until(
    pattern: str, client: Any, model: str, messages: list[Any], question: Any, max_tokens: int
) -> str:
    """The first part of an answer that matches `pattern`."""
    for temperature in TEMPERATURES:
        settings = {"max_tokens": max_tokens, "temperature": temperature}
        found = re.search(pattern, ask(client, model, messages, question, **settings))
        if found is not None:
            return found[0]
    raise ValueError(f"{len(TEMPERATURES)} answers, and none has the form {pattern}")


def essay_judge(
    client: Any, model: str, essay: str, picture: Path | None = None, max_tokens: int = 64
) -> dict[str, Any]:
    messages = [{"role": "system", "content": "You judge essays, strictly and fairly."}]
    question: Any = f"Essay: {essay}\n\nWhat kind of text is this?"
    if picture is not None:
        question = with_picture(question, picture)
    kind = ask_until("|".join(KINDS), client, model, messages, question, 8)
    say(messages, question, f"It is {kind}.")
    if kind != "an essay":
        return {"kind": kind}

    def judge(dimension: str) -> str:
        question = f"Judge the {dimension} of the essay in two sentences."
        return ask(client, model, messages, question, max_tokens=max_tokens)

    with ThreadPoolExecutor(len(DIMENSIONS)) as pool:
        judgments = list(pool.map(judge, DIMENSIONS))

    listed = "\n".join(judgments)
    question = f"{listed}\n\nSum these up, and give a grade from A to D, as JSON."
    report = ask_until(REPORT, client, model, messages, question, 128)
    return {"kind": kind, "judgment": judgments, "report": report}
