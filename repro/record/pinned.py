"""Facts out of pinned Python source, without executing any of it.

    pinned = read({"experiments/run/launch.py": data, "experiments/run/shapes.py": data})
    pinned.value("experiments/run/launch.py", 'SHAPES["d768"].hidden_dim')    # value, path, line, expression

What is asked for is an expression in the scope of a file. Read are constants, collections, f-strings, arithmetic,
comparisons, `a if b else c`, the functions of `bounded.PURE`, defaults of dataclass and NamedTuple fields, members of
enumerations, attributes of instances of these, `dataclasses.replace`, and names imported from other files of
the mapping. Everything else raises NotReadable with file, line and expression: nothing is imported, called or guessed.
Nesting, steps and the size of values are bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.record.classes import Spot
from repro.record.expressions import Run, evaluate, locate, plain, quoted
from repro.record.source import NotReadable, Source, parse

MAX_LOCATOR = 300  # characters of an expression that is asked for


@dataclass(frozen=True)
class PinnedValue:
    """A value as plain Python: numbers, texts, tuples, lists, dicts; an instance is a dict of its fields."""

    value: Any
    path: str  # where the expression stands that gives the value
    line: int
    expression: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Pinned:
    """Files of one commit, parsed. `failed` are those that could not be: path → why."""

    sources: Mapping[str, Source]
    failed: Mapping[str, str]
    roots: tuple[str, ...]

    def value(self, path: str, expression: str) -> PinnedValue:
        """The value of an expression in the scope of a file. Raises NotReadable."""
        if path not in self.sources:
            why = f"the file {self.failed[path]}" if path in self.failed else "the file is not among those read"
            raise NotReadable(path, 0, expression[:MAX_LOCATOR], why)
        run, spot = Run(self.sources, self.roots), Spot(self.sources[path], None, _locator(path, expression))
        found = locate(run, spot)
        value = plain(run, found, evaluate(run, found))
        if found.node.lineno:
            return PinnedValue(value, found.source.path, found.node.lineno, quoted(found))
        return PinnedValue(value, path, _first_line(spot), expression)

    def names(self, path: str) -> tuple[str, ...]:
        """Names that a file binds to an expression or a class, in its order."""
        bindings = self.sources[path].bindings if path in self.sources else {}
        return tuple(name for name, one in bindings.items() if isinstance(one.to, ast.expr | ast.ClassDef))


def read(sources: Mapping[str, bytes], roots: tuple[str, ...] = ("",)) -> Pinned:
    """Parse files of one commit: path → bytes. `roots` are the folders, "" or "lib/src/", in which packages lie."""
    parsed, failed = {}, {}
    for path, data in sources.items():
        try:
            parsed[path] = parse(path, data)
        except ValueError as error:
            failed[path] = str(error)
    return Pinned(parsed, failed, roots)


def _locator(path: str, expression: str) -> ast.expr:
    """What is asked for, parsed; its nodes have line 0, since they stand in no file."""
    try:
        if len(expression) > MAX_LOCATOR:
            raise ValueError(f"more than {MAX_LOCATOR} characters")
        tree = ast.parse(expression, mode="eval")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise NotReadable(path, 0, expression[:MAX_LOCATOR], f"it is no expression ({error})") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            node.lineno = 0
    return tree.body


def _first_line(spot: Spot) -> int:
    """Line of the first name of the file that a computed expression uses; 0 where it uses none."""
    names = [node.id for node in ast.walk(spot.node) if isinstance(node, ast.Name)]
    return next((spot.source.bindings[name].line for name in names if name in spot.source.bindings), 0)
