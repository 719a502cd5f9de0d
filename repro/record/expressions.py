"""Expressions of parsed source files → values, by rules that this file holds and nothing else.

A name, an attribute or an item is followed to the expression that it leads to (`locate`), an expression is computed
from its parts (`evaluate`), and what came out is made plain (`plain`). Instances keep the expressions of their fields,
so that one that cannot be read hides no other. Raises NotReadable at the innermost expression that has no value.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from repro.record import bounded
from repro.record.bounded import CONSTANTS, PURE, Refused
from repro.record.classes import ClassRef, Description, Known, Spot, describe
from repro.record.source import Import, NotReadable, Source, module_paths

MAX_DEPTH = 120  # expressions within expressions, across names and files
MAX_STEPS = 500_000  # expressions evaluated for one value, and parts of the value
MAX_QUOTED = 80  # characters of an expression in a message

MEANINGFUL = {  # names of the standard library that have a meaning besides the functions and constants of `bounded`
    *("dataclasses.dataclass", "dataclasses.field", "dataclasses.replace", "types.MappingProxyType"),
    *("object", "dict"),
    *("typing.NamedTuple", "typing.Generic", "typing.Protocol", "abc.ABC"),
    *("enum.Enum", "enum.StrEnum", "enum.IntEnum"),
}


@dataclass(frozen=True, eq=False)
class _ModuleRef:
    """A module, whether or not its file is among those read."""

    name: str


@dataclass(frozen=True, eq=False)
class _Instance:
    """An instance of a dataclass or NamedTuple: each field's expression, given or by default."""

    of: ClassRef
    fields: Mapping[str, Spot]


@dataclass(frozen=True, eq=False)
class _Member:
    """A member of an enumeration. `is_value`: it is a text or number itself, as in StrEnum."""

    name: str
    spot: Spot
    is_value: bool


@dataclass
class Run:
    """The state of finding one value: what was found, what is being found, and what may still be spent."""

    sources: Mapping[str, Source]
    roots: tuple[str, ...]
    found: dict[int, tuple[ast.AST, Any]] = field(default_factory=dict)  # id of a node (kept alive): its value
    classes: dict[int, Description] = field(default_factory=dict)  # id of a class's node
    active: list[tuple[str, int]] = field(default_factory=list)
    steps: int = MAX_STEPS

    @contextmanager
    def entering(self, what: str, spot: Spot) -> Iterator[None]:
        mark = (what, id(spot.node))
        self.steps -= 1
        try:
            if mark in self.active:
                raise Refused("it is defined through itself")
            if len(self.active) >= MAX_DEPTH:
                raise Refused(f"it is nested more than {MAX_DEPTH} deep")
            if self.steps < 0:
                raise Refused(f"it takes more than {MAX_STEPS:,} steps")
            self.active.append(mark)
            try:
                yield
            finally:
                self.active.pop()
        except Refused as refused:
            raise NotReadable(spot.source.path, spot.node.lineno, quoted(spot), str(refused)) from refused


def locate(run: Run, spot: Spot) -> Spot:
    """The expression that a name, an attribute or an item leads to; the spot itself where it is none of these."""
    with run.entering("locate", spot):
        target: Any = None
        match spot.node:
            case ast.Name():
                target = _look_up(run, spot)
            case ast.Attribute(value=below, attr=name):
                target = _attribute(run, evaluate(run, _beside(spot, below)), name)
            case ast.Subscript(value=below, slice=index):
                target = _item(run, locate(run, _beside(spot, below)), _beside(spot, index))
        return locate(run, target) if isinstance(target, Spot) else spot


def evaluate(run: Run, spot: Spot) -> Any:
    """The value of an expression: plain, or one of the references above. Raises NotReadable."""
    known = run.found.get(id(spot.node))
    if known is not None:
        return known[1]
    with run.entering("evaluate", spot):
        target = locate(run, spot)
        value = evaluate(run, target) if target is not spot else _of_node(run, spot)
    run.found[id(spot.node)] = (spot.node, value)
    return value


def _of_node(run: Run, spot: Spot) -> Any:
    def of(node: ast.expr) -> Any:
        return evaluate(run, _beside(spot, node))

    match spot.node:
        case ast.Constant(value=value):
            return bounded.within(value)
        case ast.Name():
            return _look_up(run, spot)
        case ast.Attribute(value=below, attr=name):
            return _attribute(run, of(below), name)
        case ast.Subscript(value=below, slice=index):
            return _subscript(of(below), of(index))
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            values: list[Any] = []
            for item in items:
                values += _unpacked(of(item.value)) if isinstance(item, ast.Starred) else [of(item)]
                bounded.within(values)
            kind = {ast.Tuple: "tuple", ast.List: "list", ast.Set: "set"}[type(spot.node)]
            return bounded.call(kind, [values])
        case ast.Dict(keys=keys, values=nodes):
            pairs: dict[Any, Any] = {}
            for key, node in zip(keys, nodes, strict=True):
                pairs |= {bounded.key(of(key)): of(node)} if key is not None else _mapping(of(node))
            return bounded.within(pairs)
        case ast.JoinedStr(values=parts):
            return bounded.within("".join(_text(part, of) for part in parts))
        case ast.BinOp(left=left, op=operation, right=right):
            return bounded.binary(operation, of(left), of(right))
        case ast.UnaryOp(op=operation, operand=operand):
            return bounded.unary(operation, of(operand))
        case ast.Compare(left=left, ops=operations, comparators=nodes):
            here = of(left)
            for link, node in zip(operations, nodes, strict=True):
                there = of(node)
                if not bounded.compare(link, here, there):
                    return False
                here = there
            return True
        case ast.BoolOp(op=operation, values=nodes):
            for node in nodes:
                value = bounded.single(of(node), "`and` and `or`")
                if bool(value) is isinstance(operation, ast.Or):
                    break
            return value
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return of(body if bounded.single(of(test), "`if`") else orelse)
        case ast.Call(func=function, args=nodes, keywords=keywords):
            if any(isinstance(node, ast.Starred) for node in nodes) or any(one.arg is None for one in keywords):
                raise Refused("a call with * or **")
            named = {str(one.arg): _beside(spot, one.value) for one in keywords}
            return _call(run, of(function), [_beside(spot, node) for node in nodes], named)
    raise Refused(f"the reader has no rule for {type(spot.node).__name__}")


def _look_up(run: Run, spot: Spot) -> Any:
    """What a name means where it stands: a Spot, or a reference."""
    assert isinstance(spot.node, ast.Name)
    name, source = spot.node.id, spot.source
    if spot.owner is not None:
        description = _describe(run, ClassRef(source, spot.owner))
        if name in description.own:  # a class's body does not see what it inherits
            return _named(name, description.attributes, description.unclear)
    if name in source.bindings or name in source.unclear:
        return _bound(run, source, name)
    if name == "__doc__" and source.doc is not None:
        return Spot(source, None, source.doc)
    if source.star is not None:
        raise Refused(f"it may come from the import of * at line {source.star}")
    if name in PURE or name in MEANINGFUL:
        return Known(name)
    raise Refused(f"the file binds no such name{_nearest(name, source.bindings)}")


def _bound(run: Run, source: Source, name: str) -> Any:
    """What a file binds a name to."""
    binding = _named(name, source.bindings, source.unclear)
    match binding.to:
        case ast.expr() as node:
            return Spot(source, None, node)
        case ast.ClassDef() as node:
            return ClassRef(source, node)
        case Import(module=module, name=imported):
            return _imported(run, module, imported)
    raise Refused(f"{name} is a function")


def _imported(run: Run, module: str, name: str) -> Any:
    """What `from module import name` means, or `import module` where `name` is ""."""
    full = f"{module}.{name}" if name else module
    if full in CONSTANTS:
        return CONSTANTS[full]
    if full in PURE or full in MEANINGFUL:
        return Known(full)
    source = _source_of(run, module)
    if name and source is not None and (name in source.bindings or name in source.unclear):
        mark = (full, id(source))
        if mark in run.active:
            raise Refused("it is imported in a circle")
        run.active.append(mark)
        try:
            return _bound(run, source, name)
        except Refused as refused:
            raise Refused(f"in {source.path}, {refused}") from refused
        finally:
            run.active.pop()
    if not name or _source_of(run, full) is not None or _is_package(run, full):
        return _ModuleRef(full)
    if source is not None:
        raise Refused(f"{source.path} binds no {name}{_nearest(name, source.bindings)}")
    raise Refused(f"it comes from {module or 'outside'}, of which no file is among those read")


def _source_of(run: Run, module: str) -> Source | None:
    paths = (root + path for root in run.roots for path in module_paths(module))
    return next((run.sources[path] for path in paths if path in run.sources), None)


def _is_package(run: Run, module: str) -> bool:
    """Whether files below a module are among those read."""
    folders = tuple(f"{root}{module.replace('.', '/')}/" for root in run.roots)
    return any(path.startswith(folders) for path in run.sources)


def _attribute(run: Run, owner: Any, name: str) -> Any:
    """What an attribute means: a Spot, or a reference."""
    match owner:
        case _ModuleRef(name=module):
            return _imported(run, module, name)
        case _Instance(of=of, fields=fields):
            return _named(name, fields, _describe(run, of).unclear)
        case _Member(name=called):
            return {"name": called, "value": owner.spot}.get(name) or _no_name(name, ("name", "value"))
        case ClassRef():
            description = _describe(run, owner)
            if description.strange:
                raise Refused(description.strange)
            found = _named(name, description.attributes, description.unclear)
            if description.kind == "enum" and description.opaque:
                raise Refused(description.opaque)
            return _Member(name, found, description.mixin) if description.kind == "enum" else found
    raise Refused(f"an attribute of a {_kind(owner)}")


def _describe(run: Run, of: ClassRef) -> Description:
    if id(of.node) not in run.classes:
        run.classes[id(of.node)] = Description(strange="its bases go in a circle", opaque="its bases go in a circle")
        run.classes[id(of.node)] = describe(of, lambda spot: evaluate(run, spot), lambda base: _describe(run, base))
    return run.classes[id(of.node)]


def _item(run: Run, container: Spot, index: Spot) -> Spot | None:
    """The expression that an index leads to in a dictionary as it is written; None for any other container."""
    if not isinstance(container.node, ast.Dict):
        return None
    wanted = bounded.key(evaluate(run, index))
    for key, node in reversed([*zip(container.node.keys, container.node.values, strict=True)]):  # the last one counts
        if key is None:
            return None
        if evaluate(run, _beside(container, key)) == wanted:
            return _beside(container, node)
    raise Refused(f"there is no key {str(wanted)[:MAX_QUOTED]!r}")


def _subscript(container: Any, index: Any) -> Any:
    match container:
        case dict():
            if bounded.key(index) not in container:
                raise Refused(f"there is no key {str(index)[:MAX_QUOTED]!r}")
            return container[index]
        case list() | tuple() | str():
            if not isinstance(index, int) or not -len(container) <= index < len(container):
                raise Refused(f"there is no item {str(index)[:MAX_QUOTED]} of {len(container)}")
            return container[index]
    raise Refused(f"an item of a {_kind(container)}")


def _call(run: Run, function: Any, given: list[Spot], named: Mapping[str, Spot]) -> Any:
    if isinstance(function, ClassRef):
        return _instance(run, function, given, named)
    arguments = [evaluate(run, spot) for spot in given] if isinstance(function, Known) else []
    match function:
        case Known(name="dataclasses.replace"):
            if len(arguments) != 1 or not isinstance(arguments[0], _Instance):
                raise Refused("replace of what is no instance that can be read")
            before = arguments[0]
            return _Instance(before.of, {**before.fields, **_fields(run, before.of, named)})
        case Known(name="types.MappingProxyType") if len(arguments) == 1 and not named:
            return _mapping(arguments[0])
        case Known(name="dict") if not arguments:
            return bounded.within({name: evaluate(run, spot) for name, spot in named.items()})
        case Known(name=name) if name in PURE and not named:
            return bounded.call(name, arguments)
    raise Refused("it is the result of a call")


def _instance(run: Run, of: ClassRef, given: list[Spot], named: Mapping[str, Spot]) -> _Instance:
    """An instance of a dataclass or NamedTuple, whose arguments are its fields and nothing else."""
    description = _describe(run, of)
    if why := description.strange or description.opaque:
        raise Refused(why)
    if description.kind not in ("dataclass", "NamedTuple"):
        raise Refused("it is an instance of a class that is neither a dataclass nor a NamedTuple")
    places = [name for name in description.fields if name not in description.keyword_only]
    if len(given) > len(places):
        raise Refused(f"it has {len(given)} arguments without names, for {len(places)} fields")
    by_place = dict(zip(places, given, strict=False))
    if twice := by_place.keys() & named.keys():
        raise Refused(f"its field {min(twice)} is given twice")
    fields = {**description.fields, **by_place, **_fields(run, of, named)}
    if missing := [name for name, spot in fields.items() if spot is None]:
        raise Refused(f"its field {missing[0]} is not given")
    return _Instance(of, {name: spot for name, spot in fields.items() if spot is not None})


def _fields(run: Run, of: ClassRef, named: Mapping[str, Spot]) -> Mapping[str, Spot]:
    """The keywords of a call, where all of them are fields of the class."""
    for name in named:
        if name not in _describe(run, of).fields:
            _no_name(name, _describe(run, of).fields)
    return named


def _named(name: str, places: Mapping[str, Any], unclear: Mapping[str, str]) -> Any:
    if name in unclear:
        raise Refused(unclear[name])
    return places[name] if name in places else _no_name(name, places)


def _no_name(name: str, known: Iterable[str]) -> Any:
    raise Refused(f"there is no {name} that can be read{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _unpacked(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise Refused(f"unpacking a {_kind(value)}")
    return list(value)


def _mapping(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise Refused(f"a {_kind(value)} in place of a dictionary")
    return value


def _text(part: ast.expr, of: Callable[[ast.expr], Any]) -> str:
    """One part of an f-string."""
    if isinstance(part, ast.FormattedValue):
        spec = "".join(_text(inner, of) for inner in getattr(part.format_spec, "values", ()))
        return bounded.formatted(of(part.value), part.conversion, spec)
    assert isinstance(part, ast.Constant)
    return str(part.value)


def plain(run: Run, spot: Spot, value: Any) -> Any:
    """The value without references. Raises NotReadable for one that has no value of its own."""
    run.steps -= 1
    if run.steps < 0:
        raise NotReadable(spot.source.path, spot.node.lineno, quoted(spot), f"it has over {MAX_STEPS:,} parts")
    match value:
        case list() | tuple():
            return type(value)([plain(run, spot, item) for item in value])
        case dict():
            return {key: plain(run, spot, item) for key, item in value.items()}
        case _Instance(fields=fields):
            return {name: plain(run, where, evaluate(run, where)) for name, where in fields.items()}
        case _Member(name=name, spot=where, is_value=is_value):
            return plain(run, where, evaluate(run, where)) if is_value else name
        case ClassRef() | Known() | _ModuleRef():
            raise NotReadable(spot.source.path, spot.node.lineno, quoted(spot), f"it is a {_kind(value)}, no value")
    return value


def _kind(value: Any) -> str:
    kinds = {ClassRef: "class", Known: "function or type", _ModuleRef: "module", _Instance: "class's instance"}
    return kinds.get(type(value), type(value).__name__)


def _beside(spot: Spot, node: ast.expr) -> Spot:
    return Spot(spot.source, spot.owner, node)


def quoted(spot: Spot) -> str:
    text = ast.get_source_segment(spot.source.text, spot.node) if spot.node.lineno else ast.unparse(spot.node)
    text = " ".join((text or "").split())
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 1]}…"
