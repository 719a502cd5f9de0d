"""Arithmetic on values that were read from somebody else's source, so bounded that no expression can take long.

Whole numbers have at most 1024 bits, texts a million characters, collections a hundred thousand items; what would be
larger is refused before it is computed. Only single values are compared, formatted, sorted or used as keys: a nested
collection may share its parts, and then a comparison would take exponentially long.

Every function raises Refused, whose text says why, and nothing else.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MAX_BITS = 1024
MAX_TEXT = 2**20  # characters or bytes
MAX_ITEMS = 100_000
MAX_ARGUMENTS = 64
SPEC = re.compile(r"[<>^=]?[-+ ]?#?0?\d{0,3}[,_]?(\.\d{1,3})?[a-zA-Z%]?")  # of an f-string; widths up to 999


class Refused(Exception):
    """An operation that is not carried out; the text says why."""


def single(value: Any, what: str) -> Any:
    """The value, where it is one number, text or other constant."""
    if not isinstance(value, int | float | str | bytes | None):
        raise Refused(f"{what} is done with single values only")
    return value


def within(value: Any) -> Any:
    """The value, where it keeps to the bounds."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise Refused(f"a whole number of more than {MAX_BITS} bits")
    if isinstance(value, str | bytes) and len(value) > MAX_TEXT:
        raise Refused(f"a text of more than {MAX_TEXT:,} characters")
    if isinstance(value, list | tuple | dict | set | frozenset) and len(value) > MAX_ITEMS:
        raise Refused(f"a collection of more than {MAX_ITEMS:,} items")
    if not isinstance(value, int | float | str | bytes | list | tuple | dict | set | frozenset | None):
        raise Refused(f"a {type(value).__name__} is no value of this reader")
    return value


def key(value: Any) -> Any:
    """The value, where it may be a key: one constant, or a tuple of them."""
    for part in value if isinstance(value, tuple) else (value,):
        single(part, "looking up")
    return value


def binary(operation: ast.operator, left: Any, right: Any) -> Any:
    """left + right and the like."""
    match operation, left, right:
        case (ast.Add(), str(), str()) | (ast.Add(), bytes(), bytes()):
            _length(len(left) + len(right), MAX_TEXT, "text")
            return left + right
        case (ast.Add(), list(), list()) | (ast.Add(), tuple(), tuple()):
            _length(len(left) + len(right), MAX_ITEMS, "collection")
            return left + right
        case (ast.Mult(), str() | list() | tuple(), int()) | (ast.Mult(), int(), str() | list() | tuple()):
            times, items = (right, left) if isinstance(right, int) else (left, right)
            bound, what = (MAX_TEXT, "text") if isinstance(items, str) else (MAX_ITEMS, "collection")
            _length(max(0, times) * len(items), bound, what)
            return items * times
        case _, int() | float(), int() | float():
            return within(_caught(lambda: _of_numbers(operation, left, right)))
    raise Refused(f"{type(operation).__name__} of {type(left).__name__} and {type(right).__name__}")


def _of_numbers(operation: ast.operator, left: Any, right: Any) -> Any:
    match operation:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right  # of at most 2048 bits, before it is refused
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return left // right
        case ast.Mod():
            return left % right
        case ast.Pow():
            if isinstance(left, int) and isinstance(right, int) and right > 0:
                _length(left.bit_length() * right if abs(left) > 1 else 0, 2 * MAX_BITS, "power of bits")
            return left**right
    raise Refused(f"the operator {type(operation).__name__}")


def unary(operation: ast.unaryop, value: Any) -> Any:
    """-value, +value, not value."""
    match operation, value:
        case ast.Not(), _:
            return not single(value, "`not`")
        case ast.USub(), int() | float():
            return -value
        case ast.UAdd(), int() | float():
            return +value
    raise Refused(f"{type(operation).__name__} of {type(value).__name__}")


def compare(operation: ast.cmpop, left: Any, right: Any) -> bool:
    """One link of a comparison."""
    if isinstance(operation, ast.In | ast.NotIn):
        if not isinstance(right, str | tuple | list | dict | set | frozenset):
            raise Refused(f"`in` a {type(right).__name__}")
        found: bool = _caught(lambda: single(left, "`in`") in right)
        return found is isinstance(operation, ast.In)
    left, right = single(left, "comparing"), single(right, "comparing")
    compute: dict[type[ast.cmpop], Callable[[], bool]] = {
        ast.Eq: lambda: left == right,
        ast.NotEq: lambda: left != right,
        ast.Lt: lambda: left < right,
        ast.LtE: lambda: left <= right,
        ast.Gt: lambda: left > right,
        ast.GtE: lambda: left >= right,
    }
    if isinstance(operation, ast.Is | ast.IsNot):
        if left is not None and right is not None and not (isinstance(left, bool) and isinstance(right, bool)):
            raise Refused("`is` of anything but None, True and False")  # of numbers and texts it is an accident
        return (left is right) is isinstance(operation, ast.Is)
    result: bool = _caught(compute[type(operation)])
    return result


def formatted(value: Any, conversion: int, spec: str) -> str:
    """A field of an f-string; `conversion` as `ast` has it."""
    if not SPEC.fullmatch(spec):
        raise Refused(f"the format {spec[:20]!r}")
    value = single(value, "formatting")
    value = {-1: lambda: value, 115: lambda: str(value), 114: lambda: repr(value), 97: lambda: ascii(value)}[
        conversion
    ]()
    text: str = _caught(lambda: format(value, spec))
    return str(within(text))


def _round(number: Any, digits: Any = None) -> Any:
    if isinstance(number, int) and isinstance(digits, int) and digits < -400:  # 10**-digits would be computed
        raise Refused("rounding to so many places")
    return round(number, digits)


def _number(kind: type[int] | type[float]) -> Callable[..., Any]:
    return lambda value=0: kind(single(value, kind.__name__))


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def of(*values: Any) -> Any:
        chosen = values[0] if len(values) == 1 and isinstance(values[0], list | tuple | set | frozenset) else values
        return function([single(value, "comparing") for value in chosen])

    return of


def _collection(kind: Callable[[Iterable[Any]], Any]) -> Callable[..., Any]:
    return lambda items=(): kind([key(item) if kind in (set, frozenset) else item for item in items])


PURE: Mapping[str, Callable[..., Any]] = {  # the functions that may be called, by their full name
    "int": _number(int),
    "float": _number(float),
    "bool": lambda value=False: bool(single(value, "bool")),
    "str": lambda value="": str(single(value, "str")),
    "abs": abs,
    "round": _round,
    "min": _extreme(min),
    "max": _extreme(max),
    "sum": lambda items: sum(single(item, "sum") for item in items),
    "len": len,
    "sorted": lambda items: sorted(single(item, "sorting") for item in items),
    "tuple": _collection(tuple),
    "list": _collection(list),
    "set": _collection(set),
    "frozenset": _collection(frozenset),
    **{
        f"math.{name}": getattr(math, name)
        for name in (
            *("sqrt", "isqrt", "cbrt", "log", "log2", "log10", "log1p", "exp", "exp2", "expm1", "pow", "floor", "ceil"),
            *("trunc", "fabs", "copysign", "fmod", "gcd", "lcm", "hypot", "fsum", "isfinite", "isinf", "isnan"),
            *("sin", "cos", "tan", "atan", "atan2", "tanh", "degrees", "radians"),
        )
    },
}
CONSTANTS: Mapping[str, float] = {f"math.{name}": getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")}


def call(name: str, arguments: Sequence[Any]) -> Any:
    """The result of one of the PURE functions."""
    if len(arguments) > MAX_ARGUMENTS:
        raise Refused(f"a call with more than {MAX_ARGUMENTS} arguments")
    return within(_caught(lambda: PURE[name](*arguments)))


def _caught(compute: Callable[[], Any]) -> Any:
    """The result; what Python's own arithmetic refuses, as Refused."""
    try:
        return compute()
    except (ArithmeticError, TypeError, ValueError) as error:
        raise Refused(f"Python refuses it: {error}") from error


def _length(size: int, bound: int, what: str) -> None:
    if size > bound:
        raise Refused(f"a {what} of more than {bound:,}")
