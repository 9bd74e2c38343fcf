"""`ProgramStateGroup`: the branches of a fork, and how they come together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

from minisgl.lang import ir

if TYPE_CHECKING:
    from minisgl.lang.state import ProgramState

JoinMode = Literal["gather_variable", "concate_and_append"]


class ProgramStateGroup:
    """The branches of a fork.

    forks += sgl.gen("tip")              the same to all
    forks += lambda i: f"Tip {i}:"       to each its own; or a list of as many
    forks[0], len(forks), for f in forks
    with s.fork(3) as forks: ...         joined at the end of the block
    """

    def __init__(self, states: list[ProgramState], source: ProgramState) -> None:
        self.states = states
        self._source = source

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    @overload
    def __getitem__(self, i: int) -> ProgramState: ...
    @overload
    def __getitem__(self, i: slice) -> ProgramStateGroup: ...
    def __getitem__(self, i: int | slice) -> ProgramState | ProgramStateGroup:
        if isinstance(i, slice):
            return ProgramStateGroup(self.states[i], self._source)
        return self.states[i]

    def __setitem__(self, i: int, state: ProgramState) -> None:
        """The second half of `forks[i] += ...`, which changes the state and not the group."""
        if self.states[i] is not state:
            raise ValueError("a branch can't be replaced, only added to")

    def __iadd__(self, value: object) -> ProgramStateGroup:
        for state, each in zip(self.states, self._for_each(value), strict=True):
            state += each
        return self

    def _for_each(self, value: Any) -> list[Any]:
        if isinstance(value, (str, ir.Expr)):
            return [value] * len(self)
        if isinstance(value, Callable):  # type: ignore[arg-type]  # it can be asked
            return [value(i) for i in range(len(self))]
        if isinstance(value, (list, tuple)):
            if len(value) != len(self):
                raise ValueError(f"{len(value)} values for {len(self)} branches")
            return list(value)
        raise ValueError(
            f"{value!r} can't be added to branches: give one text or expression for all, a list "
            "with one for each, or a function of the branch's number"
        )

    def join(self, mode: JoinMode = "gather_variable", *, align: bool = False) -> None:
        """Bring the branches together in the state they were forked from.

        Args:
            mode: "gather_variable" waits for the branches and makes a list of each new variable,
                in the order of the branches (those that the state has already stay as they are);
                "concate_and_append" appends what each branch has said, and waits for nothing.
            align: a branch that lacks a variable has None in its list, so that the i-th item is
                always the i-th branch's.

        Raises:
            ValueError: another mode, or `align` where no lists are made.
            BaseException: what went wrong in a branch; with "concate_and_append", whoever reads the
                state gets it.
        """
        if mode == "gather_variable":
            self._gather(align=align)
        elif align:
            raise ValueError(f'align=True with mode={mode!r}: it is for "gather_variable"')
        elif mode == "concate_and_append":
            branches = [state.stream_executor for state in self.states]
            self._source.stream_executor.join(branches)
        else:
            raise ValueError(
                f'mode={mode!r}: choose one of "gather_variable", "concate_and_append"'
            )

    def _gather(self, *, align: bool) -> None:
        self._source.stream_executor.gather([state.stream_executor for state in self.states])
        known = set(self._source.stream_executor.outline.variables)
        names = [name for state in self.states for name in state.stream_executor.outline.variables]
        for name in dict.fromkeys(names):
            if name not in known:
                having = [state for state in self.states if align or name in state]
                self._source[name] = [s[name] if name in s else None for s in having]  # noqa: SIM401

    def __enter__(self) -> ProgramStateGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.join()
