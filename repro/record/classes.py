"""Classes of a parsed source file, as far as their text tells what their fields, constants and members are.

Comes in: a class and a way to evaluate the expressions in its head (decorators, bases). Goes out: its fields with the
expressions of their defaults, and why its instances cannot be read, where they cannot: a decorator or base of unknown
effect, a metaclass, a constructor of its own, a `__post_init__` that may change what was given.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.record.source import MUTATING, Function, NotReadable, Source, bound_below

HARMLESS_BASES = {"object", "abc.ABC", "typing.Generic", "typing.Protocol"}
MIXINS = {"str", "int", "float"}  # of an enumeration: its members are texts or numbers themselves
ENUMS = {"enum.Enum", "enum.StrEnum", "enum.IntEnum"}
CONSTRUCTING = {"__init__", "__new__", "__getattribute__", "__setattr__", "__init_subclass__"}
FIELD_OPTIONS = {"default", "default_factory", "metadata", "kw_only", "repr", "compare", "hash"}


@dataclass(frozen=True, eq=False)
class Spot:
    """An expression and the scope it stands in: a file, and the class within it, if any."""

    source: Source
    owner: ast.ClassDef | None
    node: ast.expr


@dataclass(frozen=True, eq=False)
class ClassRef:
    """A class of one of the files."""

    source: Source
    node: ast.ClassDef


@dataclass(frozen=True)
class Known:
    """Something of Python's own that has a meaning here, by its full name."""

    name: str


@dataclass
class Description:
    """What a class's text says. `attributes`: expressions by name; `fields`: those of a dataclass, None: required."""

    attributes: dict[str, Spot] = field(default_factory=dict)
    fields: dict[str, Spot | None] = field(default_factory=dict)
    unclear: dict[str, str] = field(default_factory=dict)  # attribute: why its text does not tell its value
    own: set[str] = field(default_factory=set)  # names that the class's own body binds: its scope
    keyword_only: set[str] = field(default_factory=set)  # of the fields, those that have no position
    kind: str = ""  # "dataclass", "NamedTuple", "enum", or "" for another class
    mixin: bool = False  # of an enumeration
    strange: str = ""  # why no attribute can be trusted
    opaque: str = ""  # why no instance can be read


Evaluate = Callable[[Spot], Any]


def describe(of: ClassRef, evaluate: Evaluate, describe_base: Callable[[ClassRef], Description]) -> Description:
    """Read a class's text. What `evaluate` cannot read of its head makes it strange or opaque."""
    result = Description()
    if of.node.keywords:
        result.strange = "its class has a metaclass or other keywords"
    for base in of.node.bases:
        _inherit(result, of, base, evaluate, describe_base)
    decorated = _decorators(result, of, evaluate)
    if decorated:
        result.kind = "dataclass"
    for statement in of.node.body:
        _read_statement(result, of, statement, evaluate, is_field=decorated or result.kind == "NamedTuple")
    return result


def _inherit(
    result: Description, of: ClassRef, base: ast.expr, evaluate: Evaluate, describe_base: Callable[..., Description]
) -> None:
    inner = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
    match _or_none(evaluate, Spot(of.source, None, inner)):
        case Known(name="typing.NamedTuple"):
            result.kind = "NamedTuple"
        case Known(name=name) if name in ENUMS:
            result.kind, result.mixin = "enum", result.mixin or name != "enum.Enum"
        case Known(name=name) if name in MIXINS:
            result.mixin = True
        case Known(name=name) if name in HARMLESS_BASES:
            pass
        case ClassRef() as known:
            above = describe_base(known)
            result.attributes = {**above.attributes, **result.attributes}
            result.fields |= above.fields
            result.keyword_only |= above.keyword_only
            result.unclear = {**above.unclear, **result.unclear}
            result.kind = above.kind if above.kind == "enum" else result.kind
            result.mixin = result.mixin or above.mixin
            result.strange, result.opaque = result.strange or above.strange, result.opaque or above.opaque
        case _:
            result.opaque = f"its base {ast.unparse(inner)[:60]} is not among the files read"


def _decorators(result: Description, of: ClassRef, evaluate: Evaluate) -> bool:
    """Whether it is made a dataclass."""
    found = False
    for decorator in of.node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _or_none(evaluate, Spot(of.source, None, function)) == Known("dataclasses.dataclass"):
            found = True
            options = {keyword.arg for keyword in decorator.keywords} if isinstance(decorator, ast.Call) else set()
            if options & {"init", None}:
                result.opaque = "its constructor is not that of a dataclass"
        elif not (isinstance(function, ast.Attribute) and function.attr == "register_subclass"):
            # draccus's register_subclass, which enters the class in a table and returns it, is the one let pass
            result.strange = f"its class has a decorator of unknown effect, {ast.unparse(function)[:60]}"
    return found


def _read_statement(
    result: Description, of: ClassRef, statement: ast.stmt, evaluate: Evaluate, *, is_field: bool
) -> None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
            _bind(result, name)
            words = ast.unparse(annotation)
            if "InitVar" in words or "KW_ONLY" in words:
                result.opaque = f"its field {name} is for the constructor only"
                return
            default, settled = _default(of, value, evaluate)
            if not settled:
                result.opaque = f"the default of its field {name} has options of unknown effect"
            if default is not None:
                result.attributes[name] = default
            if is_field and "ClassVar" not in words:
                result.fields[name] = default
                if _says_keyword_only(value) or any(map(_says_keyword_only, of.node.decorator_list)):
                    result.keyword_only.add(name)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            _bind(result, name)
            result.attributes[name] = Spot(of.source, of.node, value)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            _bind(result, name)
            result.unclear[name] = "it is computed by code"
            if name in CONSTRUCTING:
                result.opaque = f"its class has a {name} of its own"
            if name == "__post_init__" and _may_change(statement):
                result.opaque = "its __post_init__ may change what was given"
        case ast.Expr() | ast.Pass():
            pass
        case _:
            for name in bound_below(statement):
                _bind(result, name)
                result.unclear[name] = f"line {statement.lineno} binds it in a branch, a loop or a pattern"


def _bind(result: Description, name: str) -> None:
    """Note that the class's own body binds a name. What it inherits is no longer meant; bound twice, it is unclear."""
    result.attributes.pop(name, None)
    if name in result.own:
        result.unclear[name] = "its class binds it twice"
    else:
        result.unclear.pop(name, None)
    result.own.add(name)


def _default(of: ClassRef, value: ast.expr | None, evaluate: Evaluate) -> tuple[Spot | None, bool]:
    """The expression of a field's default, None where it is required; and whether its options are all known."""
    spot = Spot(of.source, of.node, value) if value is not None else None
    if not isinstance(value, ast.Call):
        return spot, True
    if _or_none(evaluate, Spot(of.source, None, value.func)) != Known("dataclasses.field"):
        return spot, True
    options: Mapping[str | None, ast.expr] = {keyword.arg: keyword.value for keyword in value.keywords}
    settled = not value.args and not (set(options) - FIELD_OPTIONS)
    if "default" in options:
        return Spot(of.source, of.node, options["default"]), settled
    if "default_factory" not in options:
        return None, settled
    factory = options["default_factory"]
    if isinstance(factory, ast.Lambda) and not (factory.args.args or factory.args.vararg or factory.args.kwarg):
        return Spot(of.source, None, factory.body), settled
    made = ast.copy_location(ast.Call(func=factory, args=[], keywords=[]), factory)
    return Spot(of.source, of.node, made), settled


def _says_keyword_only(call: ast.expr | None) -> bool:
    """Whether a call has kw_only, and not False."""
    options = call.keywords if isinstance(call, ast.Call) else []
    values = [one.value for one in options if one.arg == "kw_only"]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in values)


def _may_change(function: Function) -> bool:
    """Whether a method may change its instance: it stores, calls a mutating method, or passes the instance on."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    itself = arguments[0].arg if arguments else ""
    read = set()  # ids of the nodes `self` that are only read from: self.x, and not called
    called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    for node in ast.walk(function):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                return True
            case ast.Call(func=ast.Name(id="setattr" | "delattr" | "super" | "vars" | "locals")):
                return True
            case ast.Call(func=ast.Attribute(attr=name)) if name in MUTATING:
                return True
            case ast.Attribute(value=ast.Name() as owner) if id(node) not in called and node.attr != "__dict__":
                read.add(id(owner))
    return any(isinstance(node, ast.Name) and node.id == itself and id(node) not in read for node in ast.walk(function))


def _or_none(evaluate: Evaluate, spot: Spot) -> Any:
    """What a decorator, a base or a callee is; None where that cannot be told."""
    try:
        return evaluate(spot)
    except NotReadable:
        return None
