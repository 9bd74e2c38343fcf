"""The constant beginning of a program: what it says before it needs an argument or a model."""

from __future__ import annotations

from minisgl.lang import ir
from minisgl.lang.context import Context
from minisgl.lang.graph import Block
from minisgl.lang.program import Program

WORTH_CACHING = 64  # characters of a constant prefix


def constant_prefix(block: Block, program: Program) -> Context:
    """What the first stream of `block` will say in every run, up to its first argument, picture,
    branch or call of the model.

    Args:
        program: a run that knows its backend and its settings.
    """
    context = Context(namespace=program.settings.get("namespace"))
    for node in block.nodes:
        if node.stream != 0:
            continue
        match node.op:
            case ir.Text(text):
                context = context.say(text)
            case ir.RoleBegin(role):
                context = context.begin_role(role, program.backend.chat)
            case ir.RoleEnd():
                context = context.end_role(program.backend.chat)
            case ir.ScopeBegin() | ir.ScopeEnd():
                pass
            case _:
                break
    return context
