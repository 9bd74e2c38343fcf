"""Numbers of a JSON schema: bounds and multiples, as what may be written digit by digit.

    {"minimum": 0.25, "exclusiveMaximum": 2}  ->  0\\.(2[5-9][0-9]*|[3-9][0-9]*)|1(\\.[0-9]+)?

Where anything is asked of it, a number is written without an exponent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from minisgl.fsm.json_strings import is_number
from minisgl.fsm.json_text import (
    ABOVE_ZERO,
    EMPTY,
    FRACTION,
    INTEGER,
    NOTHING,
    NUMBER,
    ZEROS,
    integers_between,
    optional,
    sequence,
    text,
)
from minisgl.fsm.nodes import Choice, Look, Node, Repeat, Rule
from minisgl.fsm.regex import parse
from minisgl.fsm.schema_keywords import FRACTIONAL, NOT_IN, fail, listed, nothing_valid

MAX_RULES = 10_000  # of a `multipleOf`: its digits, as a number, times how many are decimals
MAX_DIGITS = 40  # of a bound

_DECIMAL = parse(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_FRACTIONAL = parse(r"-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*")
_END = parse(r"(?=[^0-9.])|\Z")  # two hold of the same number if both end where it does


def number_node(schema: Mapping[str, Any], path: str, *, whole: bool) -> Node:
    """The numbers within the bounds, and of them the multiples of `multipleOf`."""
    asked: list[Node] = []
    bounds = _bounds(schema, path, whole=whole)
    if bounds != Bounds():
        pattern = _whole_between(bounds) if whole else _decimals(bounds)
        if not pattern:
            nothing_valid(path, f"no number is within the bounds {bounds.low} and {bounds.high}")
        asked.append(parse(pattern))
    asked += [_multiples(step, path, whole=whole) for step in listed(schema.get("multipleOf", []))]
    if schema.get(FRACTIONAL):
        asked.append(NOTHING if whole else _FRACTIONAL)
    excluded = [parse(_forms(v)) for v in schema.get(NOT_IN, []) if is_number(v)]
    if not asked:
        if not excluded:
            return INTEGER if whole else NUMBER
        asked = [INTEGER if whole else _DECIMAL]
    looks = [Look(sequence(n, _END), behind=False, negative=False) for n in asked[:-1]]
    looks += [Look(sequence(n, _END), behind=False, negative=True) for n in excluded]
    return sequence(*looks, asked[-1]) if looks else asked[-1]


def _forms(value: float) -> str:
    """A regex of the ways to write a given number."""
    whole, fraction = _digits(abs(_exact(value)))
    sign = "-?" if value == 0 else "-" if value < 0 else ""
    return sign + whole + (rf"\.{fraction}0*" if fraction else ZEROS)


def _exact(value: float) -> Decimal:
    return Decimal(repr(value))


def _digits(value: Decimal) -> tuple[str, str]:
    """Those before and after the point.

    >>> _digits(Decimal("12.50")), _digits(Decimal("1e2"))
    (('12', '5'), ('100', ''))
    """
    whole, _, fraction = f"{value:f}".partition(".")
    return whole, fraction.rstrip("0")


# ---------------------------------------------------------------------- bounds


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest number, and whether each itself is left out."""

    low: Decimal | None = None
    high: Decimal | None = None
    without_low: bool = False
    without_high: bool = False

    def mirrored(self) -> Bounds:
        """Those of the same numbers with the other sign."""
        return Bounds(
            None if self.high is None else -self.high,
            None if self.low is None else -self.low,
            self.without_high,
            self.without_low,
        )


def _bounds(schema: Mapping[str, Any], path: str, *, whole: bool) -> Bounds:
    low, without_low = _end(schema, "minimum", "exclusiveMinimum", 1, path)
    high, without_high = _end(schema, "maximum", "exclusiveMaximum", -1, path)
    if whole:  # the nearest whole numbers within
        if low is not None:
            low = Decimal(math.ceil(low) + (without_low and low == math.ceil(low)))
        if high is not None:
            high = Decimal(math.floor(high) - (without_high and high == math.floor(high)))
        without_low = without_high = False
    return Bounds(low, high, without_low, without_high)


def _end(
    schema: Mapping[str, Any], name: str, exclusive: str, sign: int, path: str
) -> tuple[Decimal | None, bool]:
    """One of the bounds, and whether it itself is left out."""
    end: Any = schema.get(name)
    without: Any = schema.get(exclusive)
    is_out = without is True  # as JSON Schema had it until draft 4
    if is_number(without):
        is_out = end is None or sign * without >= sign * end
        end = without if is_out else end
    if end is None:
        return None, False
    if not is_number(end):
        fail(path, f"{name!r} is a number, not {end!r}")
    exact = _exact(end)
    if sum(map(len, _digits(abs(exact)))) > MAX_DIGITS:
        fail(path, f"{name!r} of {end!r}: at most {MAX_DIGITS} digits can be enforced")
    return exact, is_out


def _whole_between(bounds: Bounds) -> str:
    low, high = bounds.low, bounds.high
    return integers_between(None if low is None else int(low), None if high is None else int(high))


def _decimals(bounds: Bounds) -> str:
    """A regex of the decimal numbers within bounds."""
    low, high = bounds.low, bounds.high
    options = []
    if high is None or high > 0 or (high == 0 and not bounds.without_high):
        at_zero = low is None or low < 0
        options.append(_positive(_from_zero(bounds) if at_zero else bounds))
    if low is None or low < 0:
        mirrored = bounds.mirrored()
        at_zero = mirrored.low is None or mirrored.low < 0
        below = _positive(_from_zero(mirrored) if at_zero else mirrored)
        options.append(f"-(?:{below})" if below else "")
    return "|".join(option for option in options if option)


def _from_zero(bounds: Bounds) -> Bounds:
    return replace(bounds, low=Decimal(0), without_low=False)


def _positive(bounds: Bounds) -> str:
    """Those from 0 up: by their whole part, and then at its ends by the rest."""
    low, high = bounds.low or Decimal(0), bounds.high
    if high is not None and (high < low or (high == low and bounds.without_high)):
        return ""
    least, fraction = _digits(low)
    at_least = _fraction_from(fraction, strict=bounds.without_low)
    if high is None:
        inside = integers_between(int(least) + 1, None)
        return f"{least}{at_least}|(?:{inside}){FRACTION}"
    most, fraction = _digits(high)
    at_most = _fraction_to(fraction, strict=bounds.without_high)
    if least == most:
        return f"{least}(?={at_least}(?![0-9.])){at_most}" if at_most else ""
    inside = integers_between(int(least) + 1, int(most) - 1)
    options = [f"{least}{at_least}", f"(?:{inside}){FRACTION}" if inside else ""]
    options.append(f"{most}{at_most}" if at_most else "")
    return "|".join(option for option in options if option)


def _fraction_from(digits: str, *, strict: bool) -> str:
    """A regex of what may stand after the whole part, so that it is at least 0.digits.

    >>> _fraction_from("25", strict=False)
    '(?:\\\\.(?:[3-9][0-9]*|2[6-9][0-9]*|25[0-9]*))'
    """
    if not digits:
        return ABOVE_ZERO if strict else FRACTION
    options = [
        f"{digits[:i]}[{int(d) + 1}-9][0-9]*" for i, d in enumerate(digits) if d != "9"
    ]  # fmt: skip
    options.append(f"{digits}[0-9]*[1-9][0-9]*" if strict else f"{digits}[0-9]*")
    return rf"(?:\.(?:{'|'.join(options)}))"


def _fraction_to(digits: str, *, strict: bool) -> str:
    """The same for at most 0.digits; empty if there is none.

    >>> _fraction_to("25", strict=True)
    '(?:\\\\.(?:[0-1][0-9]*|2[0-4][0-9]*|2))?'
    """
    if not digits:
        return "" if strict else ZEROS
    options = [f"{digits[:i]}[0-{int(d) - 1}][0-9]*" for i, d in enumerate(digits) if d != "0"]
    options += [digits[:i] for i in range(1, len(digits))]
    if not strict:
        options.append(f"{digits}0*")
    return rf"(?:\.(?:{'|'.join(options)}))?"


# ---------------------------------------------------------------------- multiples


def _multiples(step: Any, path: str, *, whole: bool) -> Node:
    """The multiples of a number: a rule for each remainder of the digits so far."""
    if not is_number(step) or step <= 0:
        fail(path, f"'multipleOf' is a number above 0, not {step!r}")
    before, after = _digits(_exact(step))
    places, divisor = len(after), int(before + after)
    if divisor * (places + 1) > MAX_RULES:
        fail(path, f"'multipleOf' {step!r} can't be enforced: too many remainders")
    # rules[p][r]: p digits after the point are read, and all digits leave r.
    rules = [
        [Rule(f"{r} modulo {divisor}, {p} decimals") for r in range(divisor)]
        for p in range(places + 1)
    ]
    for p in range(places + 1):
        for r, rule in enumerate(rules[p]):
            options: list[Node] = []
            if r * 10 ** (places - p) % divisor == 0:
                options.append(EMPTY if p < places or p == 0 else Repeat(text("0"), 0, None))
            if p == 0:
                options += _digit_then(rules[0], r, divisor)
            elif p < places:
                options += _digit_then(rules[p + 1], r, divisor)
            if p == 0 and places and not whole:
                options.append(sequence(text("."), *_one_of(_digit_then(rules[1], r, divisor))))
            rule.body = Choice(tuple(options)) if options else NOTHING
    zero = sequence(text("0"), _after_zero(rules, whole=whole))
    leading = [sequence(text(str(d)), rules[0][d % divisor]) for d in range(1, 10)]
    return sequence(optional(text("-")), Choice((zero, *leading)))


def _digit_then(rules: list[Rule], remainder: int, divisor: int) -> list[Node]:
    return [sequence(text(str(d)), rules[(10 * remainder + d) % divisor]) for d in range(10)]


def _one_of(options: list[Node]) -> tuple[Node]:
    return (Choice(tuple(options)),)


def _after_zero(rules: list[list[Rule]], *, whole: bool) -> Node:
    """What may follow a whole part of 0: nothing, or decimals."""
    if len(rules) == 1 or whole:
        return EMPTY
    return optional(sequence(text("."), *_one_of(_digit_then(rules[1], 0, len(rules[0])))))
