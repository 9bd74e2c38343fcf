"""Where answers grow: a token came, so the text goes on, or has come to its end.

    token --take--> detokenize --follow--> stop? complete? full? --> post, or finish
                        ^            |
                        '--- write --'   what a pattern forces (constrained.py)

On the engine thread only.  Every request that is added ends with exactly one final event in its
mailbox: a `Completion`, or an error.
"""

from __future__ import annotations

from minisgl.cache.tree_node import common_prefix_len
from minisgl.engine.constrained import Constraint, Jump
from minisgl.engine.handle import Outcome
from minisgl.engine.logprobs import has_nan, told_of_prompt
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.output import Chunk, Completion, EngineError, FinishReason, TokenLogprob
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.stats import Meter
from minisgl.engine.trace import Trace
from minisgl.fsm import TooComplexError


class Answers:
    """The requests that have not ended, and what becomes of each token that comes.

    Attributes:
        live: whoever still waits for an end.
    """

    def __init__(
        self, scheduler: Scheduler, runner: ModelRunner, meter: Meter, trace: Trace | None
    ) -> None:
        self.live: set[Req] = set()
        self._scheduler = scheduler
        self._runner = runner
        self._meter = meter
        self._trace = trace

    def add(self, req: Req) -> None:
        """A new request, which `live` knows.  What its answer has to begin with is prefilled
        together with the prompt."""
        self._meter.requests += 1
        self._scheduler.submit(req)
        if req.constraint is not None and req.params.prompt_logprobs_from is None:
            self._follow(req, req.constraint, None, "")

    def take(self, req: Req, token: int, logprob: TokenLogprob | None) -> None:
        """`req`'s next token: sampled, or written before and computed now."""
        if token < 0 or (not req.output_ids and has_nan(req)):
            why = "the model's logits are NaN or infinite, or every token is forbidden"
            self.fail(req, EngineError(f"no token can be sampled for this request: {why}"))
            return
        if req.max_tokens == 0:
            self.finish(req, "length")
            return
        self._meter.token_came(req)
        req.passes += 1
        req.output_ids.append(token)
        if logprob is not None:
            req.logprobs.append(logprob)
        self._meter.output_tokens += 1
        constraint, text = req.constraint, ""
        if constraint is not None and constraint.pending:
            _, data = constraint.pending.popleft()
            self._go_on(req, self._push(req, data))
            return
        is_stop = token in req.stop_ids
        if not is_stop or req.params.no_stop_trim:
            text = req.detokenizer.push([token], may_stop=self._may_stop(req))
        if is_stop:
            self.finish(req, "stop", token, text)
        elif constraint is not None and req.detokenizer.stopped is None:
            self._follow(req, constraint, token, text)
        else:
            self._go_on(req, text)

    def finish(
        self, req: Req, reason: FinishReason, match: str | int | None = None, text: str = ""
    ) -> None:
        """The answer has ended; `text` is what it had not posted yet."""
        self._leave(req, reason)
        asked = req.params
        text += req.detokenizer.finish()
        last = self._piece(req, text, final=len(req.output_ids))
        self._end(
            req,
            Completion(
                request_id=req.id,
                index=req.index,
                text=req.detokenizer.text,
                token_ids=list(req.output_ids),
                finish_reason=reason,
                stop_match=match,
                prompt_tokens=len(req.prompt_ids),
                cached_tokens=req.cached_tokens,
                completion_tokens=len(req.output_ids),
                forward_passes=req.passes,
                logprobs=None if asked.logprobs is None else list(req.logprobs),
                prompt_logprobs=told_of_prompt(req),
                removed=None if req.constraint is None else list(req.constraint.removed),
            ),
            last,
        )

    def fail(self, req: Req, error: BaseException) -> None:
        """The answer ends with an error, and nothing it computed is kept."""
        self._leave(req, "error")
        self._runner.scrub(req)
        self._end(req, error)

    # ------------------------------------------------------------------ patterns

    def _follow(self, req: Req, constraint: Constraint, token: int | None, text: str) -> None:
        """The pattern goes on by the token that came, and by what is forced after it."""
        try:
            if constraint.fault is not None:
                raise constraint.fault
            if token is not None:
                constraint.guide.advance(token)
            jump = constraint.jump(req.output_ids, req.max_tokens)
        except TooComplexError as fault:
            self.fail(req, EngineError(f"this request's pattern grew too complex: {fault}"))
            return
        if jump is not None:
            text += self._write(req, constraint, jump)
        self._go_on(req, text)

    def _write(self, req: Req, constraint: Constraint, jump: Jump) -> str:
        """The text that a jump adds now: all of it, or none if its tokens wait for a pass each."""
        old, new = req.output_ids, req.output_ids[: jump.start] + jump.ids
        same = common_prefix_len(tuple(old), tuple(new))
        if not constraint.jumps:
            constraint.pending += zip(new[same:], jump.added[same - jump.start :], strict=True)
            if same < len(old):  # the model is asked again what follows the last that stays
                self._rewrite(req, old[:same], same, same - 1)
            return ""
        req.output_ids, text = new[: jump.start], ""
        for token, data in zip(jump.ids, jump.added, strict=True):
            req.output_ids.append(token)
            text += self._push(req, data)
            if req.detokenizer.stopped is not None:
                break
        ids, req.output_ids = req.output_ids, old
        self._rewrite(req, ids, same, same)
        return text

    def _rewrite(self, req: Req, ids: list[int], same: int, start: int) -> None:
        """The answer is `ids` now: the first `same` as before, computed anew from `start` on."""
        if req.adjustments is not None:
            req.adjustments.rewind(req.output_ids, same)
        self._meter.output_tokens += len(ids) - len(req.output_ids)
        req.output_ids, req.logprobs = ids, req.logprobs[: len(ids)]
        self._scheduler.rewrite(req, len(req.prompt_ids) + start)

    # ------------------------------------------------------------------ text, and the end

    def _may_stop(self, req: Req) -> bool:
        return len(req.output_ids) > req.params.min_tokens

    def _push(self, req: Req, data: bytes) -> str:
        """What is certain of the text, now that the answer's last token adds `data` to it."""
        return req.detokenizer.push_bytes(data, may_stop=self._may_stop(req))

    def _go_on(self, req: Req, text: str) -> None:
        """`text` was added to the answer, which may have come to its end."""
        constraint, fault = req.constraint, req.detokenizer.fault
        if fault is not None:
            self.fail(req, EngineError(f"a stop_regex of this request grew too complex: {fault}"))
        elif req.detokenizer.stopped is not None:
            self.finish(req, "stop", req.detokenizer.stopped, text)
        elif constraint is not None and constraint.is_complete:
            self.finish(req, "stop", None, text)
        elif len(req.output_ids) == req.max_tokens:
            self.finish(req, "length", None, text)
        elif text:
            # Ids that a jump may still change are posted later.
            final = constraint.final if constraint else len(req.output_ids)
            piece = self._piece(req, text, final)
            req.mailbox.add(piece.text, piece.token_ids, piece.logprobs)

    def _piece(self, req: Req, text: str, final: int) -> Chunk:
        """More text, and what is new of the first `final` ids."""
        ids = req.output_ids[req.sent : final]
        logprobs = None if req.params.logprobs is None else req.logprobs[req.sent : final]
        req.sent += len(ids)
        return Chunk(text, ids, None, logprobs)

    def _end(self, req: Req, outcome: Outcome, last: Chunk | None = None) -> None:
        req.mailbox.end(outcome, last)
        req.images = ()  # who keeps a handle need not keep the pixels
        self.live.remove(req)  # last: until then a fault has to be told

    def _leave(self, req: Req, reason: str) -> None:
        """`req` gives back what it holds, and is counted."""
        self._scheduler.finish(req, keep=reason != "error")
        if req.was_admitted:
            self._meter.prompt_tokens += len(req.prompt_ids)
            self._meter.cached_tokens += req.cached_tokens
        if self._trace is not None:
            self._trace.end(req, reason)
