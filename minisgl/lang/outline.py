"""`Outline`: what a program has written into a stream, which may be ahead of what has run.

Roles, scopes and names follow from the program's words alone.  So what is wrong with them is raised
where it was written, and not when its turn comes.
"""

from __future__ import annotations

from minisgl.lang import ir
from minisgl.lang.backends.base import Backend
from minisgl.lang.changes import Changes
from minisgl.lang.program import Program
from minisgl.lang.variables import Variable


class Outline:
    """The names of a stream, and who is speaking.

    Attributes:
        variables: by name, in the order of the program; later ones replace earlier ones.
    """

    def __init__(self, program: Program, changes: Changes) -> None:
        self.variables: dict[str, Variable] = {}
        self._program = program
        self._changes = changes
        self._role: str | None = None
        self._scopes: list[str] = []  # that have not ended
        self._counts: dict[str, int] = {}  # of names given here

    def branch(self, changes: Changes) -> Outline:
        """Of a stream that goes on from here."""
        other = Outline(self._program, changes)
        other.variables = dict(self.variables)
        other._role = self._role
        other._counts = dict(self._counts)
        return other

    def add(self, node: ir.Node) -> Variable | None:
        """One more; the variable that it will set.

        Raises:
            ValueError, TypeError: it can't stand here.
        """
        match node:
            case ir.Gen():
                self.require_role("gen")
                self._program.params(node)  # refuses settings that don't go together
                return self._declare(node.name, "gen")
            case ir.Select():
                self.require_role("select")
                return self._declare(node.name, "select")
            case ir.ScopeBegin(name):
                self._scopes.append(name)  # a variable only at its end: nobody waits inside for it
            case ir.ScopeEnd(name):
                if self._scopes[-1:] != [name]:
                    raise ValueError(f"the scope of {name!r} ends, but is not the last that began")
                self._scopes.pop()
                return self._declare(name, "scope")
            case ir.RoleBegin() | ir.RoleEnd():
                self._change_role(node)
            case ir.Text(text):
                if text.strip():
                    self.require_role(f"the text {text[:40]!r}")
            case ir.Image() | ir.Video():
                require_sight(self._program.backend)
            case ir.When() | ir.Repeat():
                raise AssertionError("control.py adds what is in them")
            case ir.Unknown():
                raise TypeError(f"{node!r} has no value: it stands for one in a traced program")
        return None

    def go_on(self, role: str | None) -> None:
        """What comes was written elsewhere, and `role` is speaking now."""
        self._role = role

    @property
    def inside(self) -> tuple[str | None, tuple[str, ...]]:
        """Who is speaking, and the scopes that have not ended."""
        return self._role, tuple(self._scopes)

    def _change_role(self, node: ir.RoleBegin | ir.RoleEnd) -> None:
        begins, role = isinstance(node, ir.RoleBegin), node.role
        if begins and self._role is not None:
            raise ValueError(f"role {role!r} begins, but {self._role!r} is still speaking")
        if not begins and self._role != role:
            raise ValueError(f"role {role!r} ends, but {self._role or 'nobody'!r} is speaking")
        self._role = role if begins else None

    def require_role(self, what: str) -> None:
        """Raise if `what`, which is to be said here, may stand in a role only."""
        require_role(self._program.backend, self._role, what)

    def _declare(self, name: str | None, kind: str) -> Variable:
        if name is None:
            count = self._counts.get(kind, 0)
            self._counts[kind] = count + 1
            name = f"{kind}_{count}"
        variable = Variable(name, self._changes)
        with self._changes:
            self.variables[name] = variable
        return variable


def require_role(backend: Backend, role: str | None, what: str) -> None:
    """Raise if `what`, which is said while `role` is speaking, may stand in a role only."""
    if backend.needs_roles and role is None:
        raise ValueError(
            f"{what} stands outside of any role, and {backend.name} understands conversations "
            'only: put it into system(...), user(...) or assistant(...), or "with s.user():"'
        )


def require_sight(backend: Backend) -> None:
    """Raise if the model takes no pictures."""
    if not backend.can_see:
        raise ValueError(f"this model can't see: {backend.name}")
