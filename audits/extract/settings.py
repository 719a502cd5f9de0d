"""Settings → readings: leaves of a configuration, metrics of a run, constants of a launcher.

A leaf names its quantity by the end of its path; a constant of code by its whole name, or as an argument by its key.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from audits.extract.registry import Registry
from audits.extract.words import key_words
from audits.intervals import read_number

MAX_CODE = 512 * 1024  # characters of a file of code


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One setting with a number or a name; `quantity` is empty where none has this leaf, and `why` says more."""

    path: str
    value: str
    quantity: str = ""
    is_name: bool = False
    start: int = 0
    end: int = 0
    why: str = ""


def read_leaves(leaves: tuple[tuple[str, Any], ...], registry: Registry) -> Iterator[Leaf]:
    """Every number among leaves, and the names that state a quantity."""
    for path, value in leaves:
        if isinstance(value, bool) or value is None:
            continue
        quantity = registry.metrics.get(path, "") or _by_path(path, registry)
        yield from _leaf(path, value, quantity, registry)


def read_constants(code: str, registry: Registry) -> tuple[list[Leaf], str]:
    """Constants of Python code: those assigned to a name, and those given as an argument. Or why it was not read."""
    if len(code) > MAX_CODE:
        return [], f"{len(code):,} characters, more than the {MAX_CODE:,} that are read of code"
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [], f"it is no Python that can be parsed ({type(error).__name__})"
    starts = [0]
    for line in code.split("\n"):
        starts.append(starts[-1] + len(line.encode(errors="replace")) + 1)
    found = []
    for node in ast.walk(tree):
        for name, value in _named_constants(node):
            number = _constant(value)
            if number is None:
                continue
            start = starts[value.lineno - 1] + value.col_offset
            end = starts[(value.end_lineno or value.lineno) - 1] + (value.end_col_offset or 0)
            candidates = registry.keys.get(key_words(name), ())
            quantity = _by_path(name.lower(), registry) or (candidates[0].quantity if len(candidates) == 1 else "")
            found += [
                Leaf(**{**one.__dict__, "start": start, "end": end}) for one in _leaf(name, number, quantity, registry)
            ]
    return sorted(found, key=lambda one: one.start), ""


def _named_constants(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.keyword(arg=str(name), value=value):
            yield name, value


def _constant(node: ast.expr) -> int | float | str | None:
    """A number or a text as it stands in code; None for what is computed."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None


def _by_path(path: str, registry: Registry) -> str:
    """The quantity whose setting is the longest end of this path; empty where there is none."""
    matching = [
        (len(end), quantity)
        for end, quantity in registry.settings.get(path.rpartition(".")[2], ())
        if path == end or path.endswith(f".{end}")
    ]
    longest = max((length for length, _ in matching), default=0)
    named = {quantity for length, quantity in matching if length == longest}
    return named.pop() if len(named) == 1 else ""


def _leaf(path: str, value: Any, quantity: str, registry: Registry) -> Iterator[Leaf]:
    is_name = bool(quantity) and registry.quantities[quantity].is_name
    if isinstance(value, str):
        words = key_words(value)
        known = (name for text, name in registry.names.get(quantity, ()) if text == words) if is_name else iter(())
        for name in known:
            yield Leaf(path=path, value=name, quantity=quantity, is_name=True)
            return
        if value.strip("-").lower() not in ("nan", "inf", "infinity"):
            return
    text = str(value) if isinstance(value, int) and abs(value) < 10**60 else repr(value)[:60]
    try:
        exact = read_number(text, "exact").low
    except ValueError:
        yield Leaf(path=path, value=text, why="no number that somebody published")
        return
    if not quantity or is_name:
        yield Leaf(path=path, value=text, why="no quantity has this leaf")
        return
    entry = registry.entries[quantity]
    if (entry.least is not None and exact < entry.least) or (entry.most is not None and exact > entry.most):
        yield Leaf(path=path, value=text, why=f"too large or too small for {quantity}")
        return
    yield Leaf(path=path, value=text, quantity=quantity)
