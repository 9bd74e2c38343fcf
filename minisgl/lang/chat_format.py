"""`ChatFormat`: what the model's own chat template prints before and after a role's words.

    template:  <|im_start|>user\\n  WORDS  <|im_end|>\\n  <|im_start|>assistant\\n  WORDS ...
                     before                  after              before

A template prints whole conversations, and a program says one word after another.  So the template
is asked with marks in place of words, and cut at the marks: what stands around a role's words does
not depend on the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from minisgl.chat_template import PLACEHOLDERS, ChatTemplate

Roles = tuple[str, ...]


class ChatFormat:
    """The layout of one model's conversations.

    >>> chat = ChatFormat(ChatTemplate({
    ...     "chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    ...     "{% if add_generation_prompt %}<assistant>{% endif %}"
    ... }))
    >>> chat.before(("user",)), chat.after(("user",)), chat.before(("user", "assistant"))
    ('<user>', '</>', '<assistant>')
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        # A program says the same roles over and over.
        self.before = lru_cache(maxsize=4096)(self._before)
        self.after = lru_cache(maxsize=4096)(self._after)
        self.mark = lru_cache(maxsize=2)(self._mark)

    def _before(self, roles: Roles) -> str:
        """What comes before the words of the last of `roles`, after what `after` said of the one
        before it.

        Raises:
            ValueError: the template refuses such a conversation; in its words.
        """
        said = self.after(roles[:-1]) if len(roles) > 1 else ""
        if roles[-1] == "assistant" and len(roles) > 1:
            # What the model was trained to answer to; no words of an answer are there yet.
            between = self._print(roles[:-1], answer=True)[-1]
        else:
            between = self._around(roles)[-2]
        if not between.startswith(said):
            raise ValueError(
                f"the model's chat template prints {said!r} after a conversation of "
                f"{', '.join(roles[:-1])}, but {between!r} once {roles[-1]} speaks: such a "
                "template can't be followed role by role; use its whole messages instead"
            )
        return between[len(said) :]

    def _after(self, roles: Roles) -> str:
        """What comes after the words of the last of `roles`, whoever may speak next.

        Nothing, where the template prints a message only together with the next (Llama 2 puts what
        the system says into the user's message).
        """
        try:
            return self._print(roles)[-1]
        except ValueError:
            self._around(roles)  # so it is allowed, if someone follows
            return ""

    def _mark(self, kind: str) -> str:
        """What stands for an "image" or a "video": its placeholder, and perhaps a new line."""
        words, placeholder = {"type": "text", "text": "\ufdd0"}, PLACEHOLDERS[kind]
        try:
            before, shown = (
                self._template.render([{"role": "user", "content": parts}]).partition("\ufdd0")[0]
                for parts in ([words], [{"type": kind}, words])
            )
        except ValueError:  # no conversation begins so
            return placeholder
        mark = shown.removeprefix(before)
        return mark if placeholder in mark else placeholder

    def _around(self, roles: Roles) -> list[str]:
        """What stands before, between and after the words of `roles`; the last piece belongs to
        nobody where a user has to follow."""
        try:
            return self._print(roles)
        except ValueError as error:
            if roles[-1] != "system":
                raise
            try:
                return self._print((*roles, "user"))[:-1]
            except ValueError:
                raise error from None

    def _print(self, roles: Roles, *, answer: bool = False) -> list[str]:
        """The conversation of `roles`, cut where their words are."""
        marks = [f"\ufdd0{i}\ufdd1" for i in range(len(roles))]
        messages = [
            {"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)
        ]
        rest = self._template.render(messages, add_generation_prompt=answer)
        pieces = []
        for mark in marks:
            piece, found, rest = rest.partition(mark)
            if not found:
                raise ValueError(
                    f"the model's chat template does not print every message of {_list(roles)}"
                )
            pieces.append(piece)
        return [*pieces, rest]


def _list(roles: Sequence[str]) -> str:
    return f"a conversation of {', '.join(roles)}"
