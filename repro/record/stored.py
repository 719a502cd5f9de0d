"""What `fetch` stored of an artifact, as values with their places: JSON at a pointer, a W&B run's settings and series.

A place is a JSON pointer (RFC 6901) into the stored file. What is not there, or not of the form that the readers of
services write, raises Absent, whose text says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from repro.errors import RecordError
from repro.files import parse_json


class Absent(Exception):
    """A fact that the bytes do not show. `place` is where it was looked for."""

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why)
        self.why, self.place = why, place


class Row(NamedTuple):
    """One value of a series."""

    step: int
    time: float  # seconds since 1970, UTC
    value: float
    place: str


@dataclass(frozen=True)
class StoredRun:
    """A W&B run as it was stored."""

    content: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.content["id"])

    @property
    def steps(self) -> tuple[int, int | None] | None:
        """First step and end (exclusive) that it was cut to when it was fetched."""
        match self.content.get("steps"):
            case [int(first), int() | None as end]:
                return first, end
        return None

    def setting(self, path: str) -> Any:
        """The leaf or branch of the configuration at a dotted path. Raises Absent."""
        return at_pointer(self.content, pointer("config", *path.split(".")))

    def number(self, paths: str | tuple[str, ...]) -> int:
        """A whole number of the configuration, or the product of several. Raises Absent."""
        product = 1
        for path in (paths,) if isinstance(paths, str) else paths:
            value = self.setting(path)
            if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
                raise Absent(f"it is {str(value)[:40]!r}, no whole number", pointer("config", *path.split(".")))
            product *= int(value)
        return product

    def metrics(self) -> Iterable[str]:
        """Names of the metrics whose series were stored."""
        return self.content.get("history", {})

    def is_whole(self, metric: str) -> bool:
        """Whether the series has all rows that the service has, and is no sample."""
        series = self.content["history"][metric]
        return bool(series.get("whole"))

    def series(self, metric: str) -> list[Row]:
        """The finite rows of a metric, by step. Raises Absent where there is no such series."""
        place = pointer("history", metric, "rows")
        rows = at_pointer(self.content, place)
        if not isinstance(rows, list):
            raise Absent("it is no list of rows", place)
        found = []
        for number, row in enumerate(rows):
            match row:
                case [int(step), int() | float() as time, value]:
                    if (known := _number(value)) is not None:
                        found.append(Row(step, float(time), known, f"{place}/{number}"))
                case _:
                    raise Absent(f"row {number} is not a step, a time and a value", place)
        return sorted(found)

    def not_finite(self, metric: str) -> list[int]:
        """Steps at which the metric is NaN, infinite or null."""
        rows = self.content.get("history", {}).get(metric, {}).get("rows") or []
        return [row[0] for row in rows if isinstance(row, list) and len(row) == 3 and _number(row[2]) is None]


def read_run(data: bytes, name: str) -> StoredRun:
    """A stored W&B run. Raises RecordError where it is not JSON, Absent where it is not a run."""
    content = parse_json(data, name)
    if not isinstance(content, dict) or not isinstance(content.get("id"), str):
        raise Absent("the file is no stored W&B run: it has no id")
    if not all(isinstance(content.get(part, {}), dict) for part in ("config", "summary", "history")):
        raise Absent("the file is no stored W&B run: config, summary and history are objects")
    if not all(isinstance(series, dict) for series in content.get("history", {}).values()):
        raise Absent("the file is no stored W&B run: each series is an object")
    return StoredRun(content)


def pointer(*keys: str | int) -> str:
    """The JSON pointer that leads through the keys."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def at_pointer(content: Any, place: str) -> Any:
    """The value at a JSON pointer; "" is the whole. Raises Absent."""
    if place and not place.startswith("/"):
        raise Absent("a JSON pointer begins with /", place)
    value = content
    for part in place.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and re.fullmatch(r"\d{1,9}", key) and int(key) < len(value):
            value = value[int(key)]
        else:
            raise Absent(f"there is no {key!r}", place)
    return value


def read_json(data: bytes, name: str) -> Any:
    """A JSON file. Raises Absent where it is none."""
    try:
        return parse_json(data, name)
    except RecordError as error:
        raise Absent(str(error)) from error


def text_table(text: str, key: str, heads: Iterable[str]) -> dict[str, dict[str, str]]:
    """Rows by the `key` column of the first table in a text whose heads are all there: {row: {head: cell}}.

    Columns are two or more blanks apart; the table ends where a line has another number of cells. Raises Absent.
    """
    wanted = {key, *heads}
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    for number, columns in enumerate(lines):
        if wanted <= set(columns):
            rows: dict[str, dict[str, str]] = {}
            for cells in lines[number + 1 :]:
                if len(cells) != len(columns):
                    break
                row = dict(zip(columns, cells, strict=True))
                if row[key] in rows:
                    raise Absent(f"the table has two rows {row[key]!r}")
                rows[row[key]] = row
            return rows
    raise Absent(f"the text has no table with the columns {', '.join(sorted(wanted))}")


def _number(value: Any) -> float | None:
    """A finite number as it was sent; None for what is none. W&B's NaN and Infinity are stored as words."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
