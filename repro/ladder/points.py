"""A CSV file of one's own points → checked numbers, or an error that names file, line, column and mend.

    form         columns                   a row
    power        flops, loss               compute spent, and the loss it bought
    chinchilla   params, tokens, loss      model size, tokens trained on, and the loss

One header line; columns in any order and case; `compute` is read as flops, `parameters` as params. Other columns are
left out, and a note names them. Loss is the natural logarithm's (nats a token) where an asymptote is to mean something,
but any positive loss is fitted. Several rows at one place, as of several seeds, are several points.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.errors import FitError

LOSS = "loss"
OTHER_NAMES = {"compute": "flops", "parameters": "params"}
EXAMPLES = {"flops": "2.6e24", "params": "70e9", "tokens": "1.4e12", LOSS: "1.937"}
MAX_FILE = 64 * 2**20  # bytes; a million points are about 40 MB


@dataclass(frozen=True, kw_only=True)
class Points:
    """Points in the order of the file: positive, finite, at least one."""

    name: str  # the file as the user named it
    sha256: str  # of the file's bytes
    columns: Mapping[str, tuple[float, ...]]  # without the loss
    losses: tuple[float, ...]
    lines: tuple[int, ...]  # where each stands in the file, the header being line 1
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.losses)

    def places(self) -> list[dict[str, float]]:
        """Each point without its loss."""
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]

    def where(self, index: int) -> str:
        """The place of a point, for messages."""
        return f"{self.name}, line {self.lines[index]}"


def read_points(path: Path, columns: Sequence[str]) -> Points:
    """Read the columns that a form needs, and the loss. Raises FitError by line and column."""
    data, wanted = _read(path), (*columns, LOSS)
    rows = _rows(data, str(path))
    header, places = _places(rows[0][1], wanted, str(path))
    values: dict[str, list[float]] = {column: [] for column in wanted}
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise FitError(
                f"{path}, line {line}: {len(cells)} cells under {len(header)} columns. The line was cut off, or a "
                "text with a comma lacks its quotes."
            )
        for column in wanted:
            values[column].append(_number(cells[places[column]], column, f"{path}, line {line}"))
    if len(rows) == 1:
        raise FitError(f"{path}: a header and no rows. Add a line a point: {','.join(wanted)}.")
    notes = []
    if ignored := [name for number, name in enumerate(header) if number not in places.values()]:
        notes.append(f"{path}: not used: {', '.join(repr(name) for name in ignored)}.")
    lines = tuple(line for line, _ in rows[1:])
    notes += _repeated(list(zip(*values.values(), strict=True)), lines, str(path))
    return Points(
        name=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        columns={column: tuple(values[column]) for column in columns},
        losses=tuple(values[LOSS]),
        lines=lines,
        notes=tuple(notes),
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise FitError(f"cannot read {path}: {error.strerror or error}. --points takes a CSV file.") from error
    if len(data) > MAX_FILE:
        raise FitError(f"{path} is larger than {MAX_FILE:,} bytes; fit on fewer points.")
    return data


def _rows(data: bytes, name: str) -> list[tuple[int, list[str]]]:
    """Line number and cells of each line that is not empty; the first is the header."""
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if cells]
    except UnicodeDecodeError as error:
        raise FitError(f"{name}: not UTF-8 at byte {error.start}. Save the table as CSV in UTF-8.") from error
    except csv.Error as error:
        raise FitError(f"{name}, line {reader.line_num}: {error}. Mend the quotes of this line.") from error
    if not rows:
        raise FitError(f"{name}: empty. The first line names the columns.")
    return rows


def _places(cells: Sequence[str], wanted: Sequence[str], name: str) -> tuple[list[str], dict[str, int]]:
    """The header as written, and where each wanted column stands in it."""
    known = [OTHER_NAMES.get(cell.lower(), cell.lower()) for cell in cells]
    for column in wanted:
        if known.count(column) > 1:
            raise FitError(f"{name}, line 1: two columns of {column}; keep one.")
    if missing := [column for column in wanted if column not in known]:
        found = ", ".join(repr(cell) for cell in cells)
        mend = "Separate the columns by commas." if len(cells) == 1 else f"Rename the column that holds {missing[0]}"
        if missing == ["flops"] and {"params", "tokens"} <= set(known):
            mend = "Points of params and tokens are fitted with --form chinchilla; or add a column of flops"
        elif "flops" in known and len(cells) > 1:
            mend = "Points of flops are fitted with --form power; or add the missing columns"
        raise FitError(f"{name}, line 1: no column {' or '.join(missing)} among {found}. {mend.rstrip('.')}.")
    return list(cells), {column: known.index(column) for column in wanted}


def _number(cell: str, column: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if 0 < value < math.inf:
        return value
    found = repr(cell) if cell else "an empty cell"
    raise FitError(
        f"{where}, {column}: {found} is not a positive number. Write it plainly, as {EXAMPLES[column]}, or remove the "
        "line."
    )


def _repeated(rows: Sequence[tuple[float, ...]], lines: Sequence[int], name: str) -> list[str]:
    """A note where a row stands again in every digit: rather a copy than a second run."""
    first: dict[tuple[float, ...], int] = {}
    again = [(line, first[row]) for line, row in zip(lines, rows, strict=True) if first.setdefault(row, line) != line]
    if not again:
        return []
    line, before = again[0]
    more = f", and {len(again) - 1} more" if len(again) > 1 else ""
    return [f"{name}: line {line} repeats line {before} in every digit{more}; each counts as a point of its own."]
