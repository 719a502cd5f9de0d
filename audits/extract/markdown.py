"""Markdown → passages, through markdown-it: paragraphs, list items, headings, cells of tables, quotations, code.

HTML inside of Markdown (a table in <details>) goes to `pages`. The parser is linear but slow (2 s a MiB), so a text of
more than MAX_MARKDOWN characters is not read, and says so.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

from markdown_it import MarkdownIt
from markdown_it.token import Token

from audits.extract.pages import read_html
from audits.extract.passages import Cell, Oddity, Passage, Reading, Voice, one_line

MAX_MARKDOWN = 256 * 1024  # characters of one text
MAX_MARKS = 20_000  # brackets, or bars, of one text
LOOK_AHEAD = 3000  # characters of markup, such as an address, that may stand before the next words


def read_markdown(text: str) -> Reading:
    """The passages of a Markdown text, in their order."""
    if len(text) > MAX_MARKDOWN:
        said = f"{len(text):,} characters, more than the {MAX_MARKDOWN:,} that are read of one text"
        return Reading(oddities=[Oddity(kind="too long", text=said, end=len(text))])
    for mark in "[|":  # the first opens a search for its end, the second a cell
        if text.count(mark) > MAX_MARKS:
            said = f"{text.count(mark):,} times {mark}, more than the {MAX_MARKS:,} that are read of one text"
            return Reading(oddities=[Oddity(kind="too long", text=said, end=len(text))])
    text = text.replace("\r\n", " \n").replace("\r", "\n")  # as the parser counts lines, and of the same length
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return _Walk(text).read(parser.parse(text))


@dataclass
class _Walk:
    """Goes through the tokens once and keeps where it is."""

    text: str
    reading: Reading = field(default_factory=Reading)
    headings: list[tuple[int, str]] = field(default_factory=list)
    quotes: int = 0
    tables: int = 0
    lines: list[str] = field(init=False)
    starts: list[int] = field(init=False)
    cell_line: int = -1  # the line in which the last inline text ended, and where: cells of a row share a line
    cell_end: int = 0

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        self.starts = [0, *accumulate(len(line) + 1 for line in self.lines)]

    def read(self, tokens: list[Token]) -> Reading:
        """Turn tokens into passages."""
        stream = iter(tokens)
        for token in stream:
            if token.type in ("blockquote_open", "blockquote_close"):
                self.quotes += token.nesting
            elif token.type == "heading_open":
                self._heading(int(token.tag[1:]), next(stream))
            elif token.type == "table_open":
                self._table(token, stream)
            elif token.type == "inline":
                self._paragraph(token)
            elif token.type in ("fence", "code_block"):
                self._code(token)
            elif token.type == "html_block":
                self._html(token)
        return self.reading

    @property
    def voice(self) -> Voice:
        return "quoted" if self.quotes else "author"

    def _heading(self, level: int, inline: Token) -> None:
        passage = self._passage(inline, heading=True)
        self.headings = [*(one for one in self.headings if one[0] < level), (level, one_line(passage.text))]
        self.reading.passages.append(passage)

    def _paragraph(self, inline: Token) -> None:
        passage = self._passage(inline)
        if re.match(r"\s{0,8}\|[^\n|]{0,200}\|", inline.content):
            start, end = passage.origin(0, len(passage.text))
            self.reading.oddities.append(
                Oddity(kind="row of no table", text=one_line(passage.text), start=start, end=end)
            )
        self.reading.passages.append(passage)

    def _code(self, token: Token) -> None:
        assert token.map is not None
        start = self.starts[token.map[0]]
        place = max(self.text.find(token.content, start), start)  # an indented block has lost its indentation
        self.reading.passages.append(
            Passage(text=token.content, voice="code", headings=self._titles(), spans=((0, place),))
        )

    def _html(self, token: Token) -> None:
        assert token.map is not None
        inner = read_html(token.content, first_table=self.tables + 1)
        place = self.starts[token.map[0]]
        for passage in inner.passages:
            self.tables = max(self.tables, passage.cell.table if passage.cell else 0)
            spans = tuple((there, here + place) for there, here in passage.spans)
            voice: Voice = passage.voice if passage.voice != "author" else self.voice
            self.reading.passages.append(
                Passage(text=passage.text, voice=voice, headings=self._titles(), cell=passage.cell, spans=spans)
            )
        self.reading.oddities += inner.oddities

    def _table(self, opening: Token, stream: Iterator[Token]) -> None:
        """Cells become passages; a row that has more cells than the head is told, since the rest is not shown."""
        self.tables += 1
        heads: list[str] = []
        row, column, label = 0, 0, ""
        for token in stream:
            if token.type == "table_close":
                break
            if token.type == "tr_open":
                row, column, label = row + 1, 0, ""
                self._count_cells(token, heads)
            elif token.type == "inline":
                plain = self._passage(token)
                words = one_line(plain.text)
                if row == 1:
                    heads.append(words)
                label = words if column == 0 else label
                head = heads[column] if column < len(heads) else ""
                corner = heads[0] if heads else ""
                cell = Cell(table=self.tables, row=row, column=column, head=head, label=label, corner=corner)
                if plain.text:
                    self.reading.passages.append(replace(plain, cell=cell, heading=row == 1))
                column += 1

    def _count_cells(self, row: Token, heads: list[str]) -> None:
        assert row.map is not None
        line = self.lines[row.map[0]] if row.map[0] < len(self.lines) else ""
        cells = len(re.findall(r"(?<!\\)\|", line.strip().strip("|"))) + 1
        if heads and cells > len(heads):
            start = self.starts[row.map[0]]
            said = f"{cells} cells under {len(heads)} heads; what is beyond is not shown: {one_line(line)}"
            self.reading.oddities.append(
                Oddity(kind="row longer than its table", text=said, start=start, end=start + len(line))
            )

    def _titles(self) -> tuple[str, ...]:
        return tuple(title for _, title in self.headings)

    def _passage(self, inline: Token, heading: bool = False) -> Passage:
        plain, spans, code = self._plain(inline)
        return Passage(
            text=plain,
            voice=self.voice,
            headings=self._titles(),
            spans=spans,
            code=code,
            heading=heading,
        )

    def _plain(self, inline: Token) -> tuple[str, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """What is shown of an inline token, where its pieces stand in the document, and which of them are code."""
        assert inline.map is not None
        raw_starts = self._lines_of(inline)
        raw, cursor = inline.content, 0
        plain: list[str] = []
        length = 0
        spans: list[tuple[int, int]] = []
        code: list[tuple[int, int]] = []
        for child in inline.children or []:
            piece, written = _shown(child)
            if not piece:
                continue
            found = raw.find(written, cursor, cursor + len(written) + LOOK_AHEAD)
            place = found if found >= 0 else cursor  # an entity, an escape: its place is about where the last ended
            cursor = place + len(written)
            spans.append((length, _in_document(raw_starts, place)))
            if child.type == "code_inline":
                code.append((length, length + len(piece)))
            plain.append(piece)
            length += len(piece)
        return "".join(plain), tuple(spans), tuple(code)

    def _lines_of(self, inline: Token) -> list[tuple[int, int]]:
        """(place in the inline's raw text, place in the document) of the start of each of its lines."""
        assert inline.map is not None
        places = []
        position = 0
        for number, line in enumerate(inline.content.split("\n")):
            source = min(inline.map[0] + number, len(self.lines) - 1)
            after = self.cell_end if number == 0 and self.cell_line == source else 0
            column = self.lines[source].find(line, after)
            column = column if column >= 0 else after
            places.append((position, self.starts[source] + column))
            position += len(line) + 1
            self.cell_line, self.cell_end = source, column + len(line)
        return places


def _shown(child: Token) -> tuple[str, str]:
    """What is shown of a part of an inline text, and how it is written; nothing for markup."""
    if child.type in ("softbreak", "hardbreak"):
        return " ", "\n"
    if child.type in ("text", "code_inline", "text_special"):
        return child.content, child.content
    if child.type == "html_inline" and re.match(r"</?(?:br|p|li|td|tr|th)\b", child.content):
        return " ", child.content
    return "", ""


def _in_document(starts: list[tuple[int, int]], place: int) -> int:
    there, here = starts[max(bisect.bisect_right(starts, (place, 1 << 60)) - 1, 0)]
    return here + place - there
