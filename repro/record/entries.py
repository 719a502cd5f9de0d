"""One entry of a record → one typed value, or a RecordError that names file, entry, field and what to do.

An entry is a table of record.toml, an object of a JSON file, or a row of a CSV file. Types are pydantic dataclasses;
their schemas are the only description of a format. Every key is accounted for: an unknown one is an error that offers
the nearest known one. Numbers are finite.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from repro.errors import RecordError

ENTRY = ConfigDict(extra="forbid", allow_inf_nan=False)  # of every type that is read from a record
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")  # pydantic's names for a key that no field has
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")

T = TypeVar("T")


def read_entry(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a `kind` from an entry of TOML or JSON, without converting types. Raises RecordError."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values, default=str), strict=True)  # default: a date of TOML
    except ValidationError as error:
        raise RecordError(_message(kind, error, where)) from error


def read_rows(kind: type[T], data: bytes, name: str) -> tuple[T, ...]:
    """Read a CSV file with one header line into rows of `kind`; text becomes numbers, an empty cell None.

    A dot in a column's name opens a mapping: `domain.ptb` is key `ptb` of the field `domain`. Raises RecordError that
    names the line and the column.
    """
    columns, lines = _read_csv(data, name)
    known = _fields(kind)
    for column in columns:
        if column.partition(".")[0] not in known:
            raise RecordError(f"{name}, line 1: unknown column {column!r}{_nearest(column, known)}.")
    adapter, rows = TypeAdapter(kind), []
    for number, cells in lines:
        where = f"{name}, line {number}"
        if len(cells) != len(columns):
            raise RecordError(
                f"{where}: {len(cells)} cells under {len(columns)} columns. The line was cut off, or a text with a "
                "comma lacks its quotes."
            )
        try:
            rows.append(adapter.validate_python(_nested(columns, cells)))
        except ValidationError as error:
            raise RecordError(_message(kind, error, where, absent="is empty or has no column")) from error
    return tuple(rows)


def refuse_repeated(items: Iterable[T], key: Callable[[T], Any], where: str, what: str) -> None:
    """Raise RecordError where two items have one key."""
    seen = set()
    for number, item in enumerate(items, start=1):
        if key(item) in seen:
            raise RecordError(f"{where}: {what} {key(item)!r} stands twice (again as entry {number}); keep one.")
        seen.add(key(item))


def _read_csv(data: bytes, name: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Column names, and each non-empty line's number and cells."""
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        columns = next(reader, None)
        if not columns:
            raise RecordError(f"{name}: empty; a table begins with a line of column names.")
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except UnicodeDecodeError as error:
        raise RecordError(f"{name}: not UTF-8 at byte {error.start}.") from error
    except csv.Error as error:
        raise RecordError(f"{name}, line {reader.line_num}: not CSV: {error}.") from error
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise RecordError(f"{name}, line 1: column {twice!r} stands twice.")
    return columns, lines


def _nested(columns: list[str], cells: list[str]) -> dict[str, Any]:
    """{"a": …, "b": {"c": …}} from columns a and b.c; empty cells are left out at the top, None below."""
    row: dict[str, Any] = {}
    for column, cell in zip(columns, cells, strict=True):
        first, *below = column.split(".")
        if not below:
            if cell != "":
                row[first] = cell
            continue
        place = row.setdefault(first, {})
        for part in below[:-1]:
            place = place.setdefault(part, {})
        place[below[-1]] = cell if cell != "" else None
    return row


def _message(kind: type[Any], error: ValidationError, where: str, absent: str = "is missing") -> str:
    """One complaint of pydantic in our words, and how many more there are; a misspelt key before what it left out."""
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] not in UNKNOWN)
    problem = problems[0]
    place = list(problem["loc"])
    field = ".".join(str(part) for part in place)
    if problem["type"] in UNKNOWN:
        text = f"{where}: unknown key {field!r}{_nearest(str(place[-1]), _fields(_descend(kind, place[:-1])))}."
    elif problem["type"] in MISSING:
        text = f"{where}: {field} {absent}."
    else:
        why = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
        text = f"{where}, {field or 'entry'}: {_shown(problem['input'])}: {why}."
    return text + (f" (And {len(problems) - 1} more in this entry.)" if len(problems) > 1 else "")


def _descend(kind: Any, place: list[int | str]) -> Any:
    """The dataclass that stands at `place` below `kind`."""
    for part in place:
        if isinstance(part, str) and is_dataclass(kind):
            hint = get_type_hints(kind)[part]
            kind = next((inner for inner in (hint, *get_args(hint)) if is_dataclass(inner)), hint)
    return kind


def _fields(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known are {', '.join(known)}" if known else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
