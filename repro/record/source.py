"""One Python source file, parsed and never run: which name is bound where, and what may have changed it since.

Only a name that is bound once, at the top of the module and outside of any branch, has one meaning that can be read.
Names that something in the file may have changed are noted with the line: assigned into, deleted, a mutating method
called, declared global in a function; and all names where exec or globals() may bind any. What one file does to
another's values, or a function to its arguments, is not seen.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from repro.errors import RecordError

MAX_SOURCE = 2**20  # bytes of one file
MUTATING = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault", "popitem"),
    *("add", "discard", "intersection_update", "difference_update", "symmetric_difference_update"),
    *("__setitem__", "__delitem__", "__setattr__", "__delattr__", "__ior__", "__iadd__"),
}
CONTAINERS = {"dict", "list", "set", "object", "type"}  # dict.update(X, …) changes its first argument
ANY_NAME = {"exec", "eval", "globals", "vars", "locals"}  # a call of these may bind any name
Function = ast.FunctionDef | ast.AsyncFunctionDef


class NotReadable(RecordError):
    """An expression that only running the file could tell. `line` is 0 where no line of the file is meant."""

    def __init__(self, path: str, line: int, expression: str, why: str) -> None:
        place = f"{path}:{line}" if line else path
        super().__init__(f"{place}: `{expression}` is not statically readable: {why}.")
        self.path, self.line, self.expression, self.why = path, line, expression, why


@dataclass(frozen=True)
class Import:
    """`from module import name as …`, or `import module` with the name "". `module` is absolute, dots between parts."""

    module: str
    name: str
    line: int


@dataclass(frozen=True)
class Binding:
    """What a name is bound to: an expression, a class, a function, or an import."""

    to: ast.expr | ast.ClassDef | Function | Import
    line: int


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed file. `unclear` names are bound, but not to one thing that can be read: name → why."""

    path: str
    text: str
    bindings: Mapping[str, Binding]
    unclear: Mapping[str, str]
    star: int | None = None  # line of an `import *`
    doc: ast.Constant | None = None


@dataclass
class _Found:
    bound: dict[str, list[Binding | None]] = field(default_factory=dict)  # None: bound by something else
    lines: dict[str, list[int]] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    anything: str = ""  # why any name may be bound anew

    def bind(self, name: str, line: int, binding: Binding | None) -> None:
        self.bound.setdefault(name, []).append(binding)
        self.lines.setdefault(name, []).append(line)


def parse(path: str, data: bytes) -> Source:
    """Parse one file. Raises ValueError that says why it is not Python that can be read."""
    if len(data) > MAX_SOURCE:
        raise ValueError(f"has {len(data):,} bytes; at most {MAX_SOURCE:,} are read")
    try:
        text = data.decode("utf-8-sig")  # as text: a coding line is then a comment, and loads no codec
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of somebody else's backslashes
            tree = ast.parse(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error
    except SyntaxError as error:
        raise ValueError(f"is not Python at line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:  # MemoryError: the parser's own bound on nesting
        raise ValueError("is nested too deeply to be parsed") from error
    found = _Found()
    star = None
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and any(alias.name == "*" for alias in statement.names):
            star = statement.lineno
        _bind(statement, path, found)
    _note_changes(tree, found)
    bindings = {name: one[0] for name, one in found.bound.items() if len(one) == 1 and one[0] is not None}
    unclear = {name: _why(name, found) for name in found.bound if name not in bindings}
    if star is not None:
        shadowed = {name for name, binding in bindings.items() if binding.line < star}
        unclear |= {name: f"the import of * at line {star} may have replaced it" for name in shadowed}
    if found.anything:
        unclear = {**dict.fromkeys(bindings, found.anything), **unclear}
    unclear = {**_with_aliases(found), **unclear}
    doc = tree.body[0].value if tree.body and isinstance(tree.body[0], ast.Expr) else None
    is_doc = isinstance(doc, ast.Constant) and isinstance(doc.value, str)
    return Source(path, text, bindings, unclear, star, doc if is_doc else None)  # type: ignore[arg-type]


def module_paths(module: str) -> tuple[str, ...]:
    """Files that a module may be, relative to where packages lie."""
    path = module.replace(".", "/")
    return (f"{path}.py", f"{path}/__init__.py")


def _bind(statement: ast.stmt, path: str, found: _Found) -> None:
    """Note what one statement at the top of the module binds."""
    line = statement.lineno
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _bind_target(target, value, line, found)
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            if value is not None:
                found.bind(name, line, Binding(value, line))
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            found.bind(name, line, Binding(statement, line))
        case ast.Import(names=names):
            for alias in names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                found.bind(alias.asname or module, line, Binding(Import(module, "", line), line))
        case ast.ImportFrom(names=names):
            module = _absolute(statement, path)
            for alias in names:
                if alias.name != "*":
                    found.bind(alias.asname or alias.name, line, Binding(Import(module, alias.name, line), line))
        case ast.Expr():
            pass
        case _:
            for name in bound_below(statement):
                found.bind(name, line, None)


def _bind_target(target: ast.expr, value: ast.expr, line: int, found: _Found) -> None:
    match target, value:
        case ast.Name(id=name), _:
            found.bind(name, line, Binding(value, line))
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), (ast.Tuple(elts=values) | ast.List(elts=values))) if (
            len(targets) == len(values) and not any(isinstance(one, ast.Starred) for one in (*targets, *values))
        ):
            for one, its in zip(targets, values, strict=True):
                _bind_target(one, its, line, found)
        case _:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.bind(node.id, line, None)


def bound_below(statement: ast.stmt) -> Iterator[str]:
    """Names that a branch, a loop, a `with` or a `try` binds, imports and definitions included."""
    for node in _outside_functions(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what lies below it, without the insides of functions and classes."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _note_changes(tree: ast.Module, found: _Found) -> None:
    """Note the names that anything in the file, functions included, may change after they were bound."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Global(names=names):
                for name in names:
                    found.changed.setdefault(name, f"a function at line {line} may bind it anew")
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                _note_change(node, line, found)
            case ast.AugAssign(target=target):
                _note_change(target, line, found)
            case ast.NamedExpr(target=ast.Name(id=name)):
                found.changed.setdefault(name, f"line {line} may bind it anew")
            case ast.Call(func=ast.Attribute(attr=method, value=owner)) if method in MUTATING:
                _note_change(owner, line, found)
                if isinstance(owner, ast.Name) and owner.id in CONTAINERS and node.args:
                    _note_change(node.args[0], line, found)
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
                _note_change(owner, line, found)
            case ast.Call(func=ast.Name(id=function)) if function in ANY_NAME:
                found.anything = found.anything or f"line {line} may bind any name, by {function}"
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                found.anything = found.anything or f"line {line} may bind any name, by sys.modules"


def _note_change(node: ast.expr, line: int, found: _Found) -> None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        found.changed.setdefault(node.id, f"line {line} may change it")


def _with_aliases(found: _Found) -> dict[str, str]:
    """The changed names, and those whose value a changed one may share: B = A; B["x"] = 1 changes A."""
    result = dict(found.changed)
    waiting = list(result)
    while waiting:
        name = waiting.pop()
        for binding in found.bound.get(name, ()):
            if binding is None or not isinstance(binding.to, ast.expr):
                continue
            for node in ast.walk(binding.to):
                if isinstance(node, ast.Name) and node.id not in result:
                    result[node.id] = f"{result[name]}, as {name}"
                    waiting.append(node.id)
    return result


def _why(name: str, found: _Found) -> str:
    lines = found.lines[name]
    if len(lines) > 1:
        return f"it is bound {len(lines)} times, at lines {', '.join(map(str, lines[:5]))}"
    return f"line {lines[0]} binds it in a branch, a loop or a pattern"


def _absolute(statement: ast.ImportFrom, path: str) -> str:
    """The module of a `from … import`, resolved against the file's own place where relative; "" where it leads out."""
    if not statement.level:
        return statement.module or ""
    folders = path.split("/")[:-1]
    if statement.level > len(folders):
        return ""
    folders = folders[: len(folders) - statement.level + 1]
    return ".".join([*folders, *([statement.module] if statement.module else [])])
