"""Values that only a run has, and what a program may do with them before it.

A program that is traced gets a `Value` in place of each argument and of whatever is generated.  It
can be said, compared, and asked what a string can be asked; each gives a new `Value`, which knows
the expression that a run will compute:

    question                      Argument("question")
    "Q: " + question              Call("+", (Constant("Q: "), Argument("question")))
    s["x"].strip() == "yes"       Call("==", (Call("strip", (Ref(3, "x"),)), Constant("yes")))

Whatever else Python asks of it (is it true? how long is it? what does an f-string print?) has no
answer yet, and stops the trace with the program's line and the way out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NoReturn, TypeAlias

from minisgl.lang import ir
from minisgl.lang.source_line import program_line


class DataDependence(BaseException):
    """A program that is traced needs a value that only a run has.

    No `Exception`, so that no `except` of the program takes it for its own.
    """


class TraceError(TypeError):
    """A program can't be traced: what it does depends on a value that only a run has."""


# ---------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Constant:
    """Known already."""

    value: Any


@dataclass(frozen=True)
class Argument:
    """What a run gives for an argument of the program."""

    name: str


@dataclass(frozen=True)
class Ref:
    """The value that the graph's node `node` gives the variable `name`."""

    node: int
    name: str


@dataclass(frozen=True)
class Call:
    """`OPERATIONS[operation]` of some values."""

    operation: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = Constant | Argument | Ref | Call

METHODS = (
    "capitalize", "endswith", "isalpha", "isdigit", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rpartition", "rstrip", "split", "splitlines", "startswith",
    "strip", "title", "upper",
)  # fmt: skip
"""Of `str`: those whose result depends on nothing but their arguments."""

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&": operator.and_,
    "|": operator.or_,
    "+": lambda first, *others: reduce(operator.add, others, first),
    "[]": operator.getitem,
    "slice": slice,
    "list": lambda *items: list(items),
    "tuple": lambda *items: items,
    "dict": lambda keys, *values: dict(zip(keys, values, strict=True)),
    **{name: getattr(str, name) for name in METHODS},
}


def refs(expression: Expression) -> Iterator[Ref]:
    """What it needs from the graph's nodes."""
    match expression:
        case Ref():
            yield expression
        case Call(_, operands):
            for operand in operands:
                yield from refs(operand)


def arguments(expression: Expression) -> Iterator[Argument]:
    """What it needs from whoever runs the program."""
    match expression:
        case Argument():
            yield expression
        case Call(_, operands):
            for operand in operands:
                yield from arguments(operand)


def compute(expression: Expression, leaf: Callable[[Argument | Ref], Any]) -> Any:
    """Its value.

    >>> compute(Call("upper", (Argument("q"),)), lambda argument: "why")
    'WHY'

    Args:
        leaf: the values of arguments and of the nodes' results.
    """
    match expression:
        case Constant(value):
            return value
        case Call(operation, operands):
            return OPERATIONS[operation](*(compute(operand, leaf) for operand in operands))
        case _:
            return leaf(expression)


def terms(expression: Expression) -> tuple[Expression, ...]:
    """What it is the sum of.

    >>> terms(Call("+", (Constant("a"), Argument("b"))))
    (Constant(value='a'), Argument(name='b'))
    """
    match expression:
        case Call("+", operands):
            return operands
        case _:
            return (expression,)


def shown(expression: Expression) -> str:
    """As the program wrote it, more or less.

    >>> shown(Call("==", (Call("strip", (Ref(3, "x"),)), Constant("yes"))))
    "s['x'].strip() == 'yes'"
    """
    match expression:
        case Constant(value):
            return repr(value)
        case Argument(name):
            return name
        case Ref(_, name):
            return f"s[{name!r}]"
        case Call("list" | "tuple", operands):
            return f"[{', '.join(map(shown, operands))}]"
        case Call("dict", (Constant(keys), *values)):
            pairs = zip(keys, map(shown, values), strict=True)
            return "{" + ", ".join(f"{key!r}: {value}" for key, value in pairs) + "}"
        case Call("slice", operands):
            ends = ["" if o == Constant(None) else shown(o) for o in operands]
            return ":".join(ends if ends[2] else ends[:2])
        case Call("[]", (of, index)):
            return f"{shown(of)}[{shown(index)}]"
        case Call(name, (of, *others)) if name in METHODS:
            return f"{shown(of)}.{name}({', '.join(map(shown, others))})"
        case Call(name, operands):
            return f" {name} ".join(map(shown, operands))


# ---------------------------------------------------------------------- in the program's hands


class Value(ir.Unknown):
    """What stands for a value while its program is traced.

    Attributes:
        expression: how a run will compute it.
    """

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def _with(self, operation: str, *operands: object) -> Value:
        return Value(Call(operation, (self.expression, *map(expression_of, operands))))

    def __add__(self, other: object) -> Any:
        if not isinstance(other, (str, Value)):
            return super().__add__(other)
        return Value(Call("+", terms(self.expression) + terms(expression_of(other))))

    def __radd__(self, other: object) -> Any:
        if not isinstance(other, str):
            return super().__radd__(other)
        return Value(Call("+", (Constant(other), *terms(self.expression))))

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._with("==", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._with("!=", other)

    def __lt__(self, other: object) -> Value:
        return self._with("<", other)

    def __le__(self, other: object) -> Value:
        return self._with("<=", other)

    def __gt__(self, other: object) -> Value:
        return self._with(">", other)

    def __ge__(self, other: object) -> Value:
        return self._with(">=", other)

    def __and__(self, other: object) -> Value:
        return self._with("&", other)

    def __or__(self, other: object) -> Value:
        return self._with("|", other)

    def __getitem__(self, item: object) -> Value:
        if isinstance(item, slice):
            item = Value(
                Call("slice", tuple(map(expression_of, (item.start, item.stop, item.step))))
            )
        return self._with("[]", item)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name in METHODS:
            return partial(self._with, name)
        if name.startswith("_"):  # what Python and its tools ask, to find out what this is
            raise AttributeError(name)
        raise self._unknown(f"`.{name}`", _METHODS_ONLY)

    def __str__(self) -> str:
        raise self._unknown("its text", _ADD)

    def __format__(self, _: str) -> str:
        raise self._unknown("an f-string", _ADD)

    def __bool__(self) -> bool:
        raise self._unknown("whether it is true (`if`, `while`, `and`, `or`, `not`, `in`)", _WHEN)

    def __len__(self) -> int:
        raise self._unknown("how long it is", _GIVE)

    def __iter__(self) -> NoReturn:
        raise self._unknown("what is in it, one by one", _GIVE)

    def __contains__(self, _: object) -> bool:
        raise self._unknown("what is in it (`in`)", _WHEN)

    def __hash__(self) -> int:
        raise self._unknown("where it stands in a dict or a set", _GIVE)

    def __int__(self) -> int:
        raise self._unknown("its number", _GIVE)

    __index__ = __int__

    def __float__(self) -> float:
        raise self._unknown("its number", _GIVE)

    def __repr__(self) -> str:
        return f"Value({shown(self.expression)})"

    def _unknown(self, asked: str, way_out: str) -> DataDependence:
        names = sorted({argument.name for argument in arguments(self.expression)})
        example = f"{names[0]}=..." if names else "argument=..."
        return no_value(f"{describe(self.expression)}, and the program asks for {asked}",
                        way_out.format(example=example))  # fmt: skip


_GIVE = "give it for the trace, trace({example}) or compile({example}), if it is an argument"
_ADD = 'put texts together by "..." + value + "..."'
_WHEN = f"write s += sgl.when(condition, then, otherwise) or sgl.repeat(...); or {_GIVE}"
_METHODS_ONLY = f"a graph can say it, compare it, and call {', '.join(METHODS)}; or {_GIVE}"


def no_value(what: str, way_out: str) -> DataDependence:
    """`what` is not known before the program runs; `way_out`: what its author can do about it."""
    return DataDependence(f"{program_line()}: there is no value yet of {what}: {way_out}")


def describe(expression: Expression) -> str:
    """In a message to people."""
    match expression:
        case Argument(name):
            return f"argument {name!r}"
        case Ref(_, name):
            return f"variable {name!r}"
        case _:
            return f"`{shown(expression)}`"


def expression_of(value: object) -> Expression:
    """Anything in the program's hands, as an expression.

    >>> expression_of(["a", Value(Argument("b"))])
    Call(operation='list', operands=(Constant(value='a'), Argument(name='b')))
    """
    if isinstance(value, Value):
        return value.expression
    # Of containers only Python's own, which every run makes anew.
    if type(value) is list or type(value) is tuple:
        return Call(type(value).__name__, tuple(map(expression_of, value)))
    if type(value) is dict:
        return Call("dict", (Constant(tuple(value)), *map(expression_of, value.values())))
    if isinstance(value, ir.Chain):  # "a" + gen(...) is no value; `Value.__add__` makes the others
        raise TypeError(f"{value!r} can be added to a program, but is no value")
    return Constant(value)
