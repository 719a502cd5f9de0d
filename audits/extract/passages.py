"""Passages: the pieces of a document that are read by themselves, each with its way back to the document's characters.

A passage is a paragraph, a list item, a heading, a cell of a table. `text` is what a reader sees: markup is gone, so
that 3**90**,139 is one number. `voice` tells the author's own words from what is quoted, and both from code.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Literal

Voice = Literal["author", "quoted", "code"]
OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Where in a table a passage stands. `head` is the column's, `label` the row's first cell; both may be empty."""

    table: int  # number of the table in its document, from 1
    row: int  # from 1
    column: int  # from 0
    head: str
    label: str
    corner: str  # the head of the first column


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One piece of a document."""

    text: str
    voice: Voice = "author"
    headings: tuple[str, ...] = ()  # those it stands under, the outermost first
    cell: Cell | None = None
    spans: tuple[tuple[int, int], ...] = ()  # (place in `text`, place in the document): ascending, one for each piece
    code: tuple[tuple[int, int], ...] = ()  # parts of `text` that are set as code
    heading: bool = False

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Where the characters `start` to `end` of the text stand in the document."""
        if not self.spans:
            return 0, 0
        return self._place(start), self._place(max(end - 1, start)) + 1

    def _place(self, position: int) -> int:
        number = max(bisect.bisect_right(self.spans, (position, 1 << 60)) - 1, 0)
        there, here = self.spans[number]
        return here + max(position - there, 0)

    def is_code(self, start: int, end: int) -> bool:
        """Whether these characters are set as code inside of words."""
        return any(first <= start and end <= last for first, last in self.code)

    @property
    def overridden(self) -> bool:
        """Whether it holds characters that change the direction of reading, so that nobody sees what it says."""
        return not OVERRIDES.isdisjoint(self.text)

    @property
    def place(self) -> str:
        """For a reader: the last heading, and the table."""
        parts = [self.headings[-1]] if self.headings else []
        if self.cell is not None:
            parts.append(f"table {self.cell.table}, row {self.cell.row}")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Oddity:
    """Something about a document that a reader should know: a part that was not read, a row of no table."""

    kind: str
    text: str
    start: int = 0  # in the document
    end: int = 0


@dataclass
class Reading:
    """What a reader of one form makes of a document."""

    passages: list[Passage] = field(default_factory=list)
    oddities: list[Oddity] = field(default_factory=list)


def one_line(text: str, limit: int = 160) -> str:
    """Text as one printable line, cut to `limit` characters."""
    shown = text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(shown.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
