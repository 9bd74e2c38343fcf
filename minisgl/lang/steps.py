"""What a primitive does to the context of its stream: for programs as functions, and as graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from minisgl.lang import ir
from minisgl.lang.backends.base import Backend
from minisgl.lang.context import Context
from minisgl.lang.program import Program
from minisgl.lang.speculative import Ask, exactly
from minisgl.lang.usage import Tally
from minisgl.sampling import SamplingParams


@dataclass(frozen=True)
class Step:
    """What a model has made of a primitive.

    text: that was said; of several answers, the first.
    value, meta: of the variable; lists if the gen asked for several answers.
    """

    context: Context
    text: str
    value: Any
    meta: Any


def said(
    node: ir.Text | ir.RoleBegin | ir.RoleEnd | ir.Image | ir.Video,
    context: Context,
    backend: Backend,
) -> Context:
    """The context after a primitive that asks nobody."""
    match node:
        case ir.Text(text):
            return context.say(text)
        case ir.RoleBegin(role):
            return context.begin_role(role, backend.chat)
        case ir.RoleEnd():
            return context.end_role(backend.chat)
        case ir.Image() | ir.Video():
            return context.show(node)


async def generated(
    node: ir.Gen, params: SamplingParams, context: Context, program: Program, ask: Ask
) -> Step:
    """What the model says; `ask` is how it is called."""
    speculation = program.speculation
    if speculation is None:
        outcome = await exactly(context, params, ask)
    else:
        outcome = await speculation.generate(context, params, ask)
    program.count(outcome.spent, outcome.without)
    answers = outcome.answers
    values = [node.parse(a.text) if node.parse else a.text for a in answers]
    metas = [a.meta for a in answers]
    first = answers[0].text
    after = replace(context, ahead=outcome.ahead).say(first)
    if params.n == 1:
        return Step(after, first, values[0], metas[0])
    return Step(after, first, values, metas)


async def selected(node: ir.Select, context: Context, program: Program) -> Step:
    """The choice that the model finds likeliest."""
    decision = await program.backend.select(context, node)
    choice = decision.decision
    if len(node.choices) > 1:  # one alone needs no model
        program.count(Tally.of_call(decision.meta_info))
    return Step(context.say(choice), choice, choice, decision.meta_info)
