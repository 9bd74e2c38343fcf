"""A body of /generate, read: prompts, settings and images for the engine."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from minisgl import media
from minisgl.engine.prompt import AnyPrompt, Prompt
from minisgl.sampling import SamplingParams
from minisgl.serve.desk import Desk, Questions
from minisgl.serve.native_types import GenerateRequest, NativeParams

FRAME = re.compile(rb"(?<=\xff\xd9)(?=\xff\xd8\xff)|(?=\x89PNG\r\n\x1a\n)")  # where one begins


@dataclass
class Asking:
    """One prompt of the body, and what its answers have to tell.

    ids: an image is its placeholder.
    start: the first of them whose log-probability is told; None: of none.
    is_scoring: max_new_tokens is 0.
    """

    ids: list[int]
    start: int | None
    is_scoring: bool


@dataclass
class NativePlan:
    """What /generate was asked.

    Attributes:
        is_batch: whether the reply is a list for the body's sake (n > 1 makes it one too).
        each: one for each prompt.
        rids: one for each answer.
    """

    desk: Desk
    body: GenerateRequest
    is_batch: bool = False
    each: list[Asking] = field(default_factory=list)
    answers: list[Asking] = field(default_factory=list)
    rids: list[str] = field(default_factory=list)

    def read(self) -> Questions:
        """ValueError for what is not allowed."""
        prompts = self._prompts()
        given = self.body.sampling_params
        given = NativeParams() if given is None else given
        settings = given if isinstance(given, list) else [given] * len(prompts)
        if len(settings) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(settings)} sampling_params")
        images = self._images(len(prompts))
        questions: Questions = []
        for prompt, setting, its in zip(prompts, settings, images, strict=True):
            ids = self.desk.engine.door.encode(prompt) if isinstance(prompt, str) else prompt
            asked: AnyPrompt = Prompt(ids, [self._image(image) for image in its]) if its else ids
            questions.append((asked, self._params(setting, ids, asked)))
        self.rids = self._ids_of_answers()
        return questions

    def _prompts(self) -> list[Any]:
        text, ids = self.body.text, self.body.input_ids
        if (text is None) == (ids is None):
            raise ValueError("give text or input_ids, one of them")
        if isinstance(text, str) or (ids and isinstance(ids[0], int)):
            return [text if ids is None else ids]
        self.is_batch = True
        prompts: list[Any] = list(text or ids or ())
        if not prompts:
            raise ValueError("the batch is empty: give at least one prompt")
        return prompts

    def _params(self, given: NativeParams, ids: list[int], asked: AnyPrompt) -> SamplingParams:
        body, more = self.body, {}
        scoring, start = given.max_new_tokens == 0, None
        if body.return_logprob:
            more["logprobs"] = body.top_logprobs_num or 0
            start = self._start(asked, scoring=scoring)
            if start is not None:
                more["prompt_logprobs_from"] = start
        elif body.top_logprobs_num or body.logprob_start_len not in (None, -1):
            raise ValueError("top_logprobs_num and logprob_start_len: only with return_logprob")
        params = given.sampling(**more)
        asking = Asking(ids, start, scoring)
        self.each.append(asking)
        self.answers += [asking] * params.n
        if scoring and params.logprobs:
            # What could come next is known only where something is sampled; nobody is shown it.
            params = replace(params, max_tokens=1)
        return params

    def _start(self, asked: AnyPrompt, *, scoring: bool) -> int | None:
        """Which of the prompt's ids is the first whose log-probability is told: the one after token
        S, or the very first.  S counts an image's tokens, as `prompt_tokens` does."""
        given = self.body.logprob_start_len
        after = (0 if scoring else -1) if given is None else given
        if after in (-1, 0):
            return None if after else 0
        reading = self.desk.engine.door.read(asked)
        length = len(reading.tokens)
        if not 0 < after < length:
            raise ValueError(
                f"logprob_start_len={after}: the prompt has {length} tokens; give -1 for none, "
                f"or 0 to {length - 1}"
            )
        first = reading.index(after + 1)
        return first if first < len(reading.ids) else None

    def _images(self, count: int) -> list[list[str]]:
        """Of each prompt; one image for a batch is an image of each."""
        given = self.body.image_data
        if not given:
            return [[]] * count
        if isinstance(given, str):
            return [[given]] * count
        if not self.is_batch:
            if not all(isinstance(image, str) for image in given):
                raise ValueError("image_data: give strings, for one prompt")
            return [[str(image) for image in given]]
        if len(given) != count:
            raise ValueError(f"image_data: {len(given)} for {count} prompts; give one for each")
        return [[its] if isinstance(its, str) else its or [] for its in given]

    def _image(self, source: str) -> media.Image:
        if not source.startswith("video:"):
            return media.load_image(source, self.desk.media)
        try:
            data = base64.b64decode(source.removeprefix("video:"), validate=True)
        except binascii.Error as error:
            raise ValueError(f"image_data: a video that is not base64: {error}") from error
        frames = [frame for frame in FRAME.split(data) if frame]
        return media.load_video(frames, limits=self.desk.media)

    def _ids_of_answers(self) -> list[str]:
        rid, count = self.body.rid, len(self.answers)
        if isinstance(rid, list):
            if len(rid) != len(self.each):
                raise ValueError(f"rid: {len(rid)} for {len(self.each)} prompts; give one for each")
            of_prompt = dict(zip(map(id, self.each), rid, strict=True))
            return [of_prompt[id(asking)] for asking in self.answers]
        return [rid] * count if rid is not None else [uuid.uuid4().hex for _ in range(count)]
