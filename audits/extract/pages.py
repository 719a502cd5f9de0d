"""HTML → passages, through lxml: paragraphs, list items, cells of tables, definitions, and small boxes as one.

A box of a few words, such as a figure over its caption, is one passage. Scripts and styles are no text. The place of a
passage is looked for near the last one, since the parser gives none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lxml import etree, html

from audits.extract.passages import Cell, Oddity, Passage, Reading, Voice, one_line

MAX_HTML = 2 * 2**20  # characters of one page
BOX = 120  # characters of a box that is read as one passage
WINDOW = 8000  # characters in which the next piece of text is looked for
UNREAD = frozenset({"script", "style", "template", "noscript", "svg", "head"})
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
BLOCKS = {
    *("p", "li", "ul", "ol", "dl", "dt", "dd", "table", "thead", "tbody", "tfoot", "tr", "td", "th", "caption", "pre"),
    *("div", "section", "article", "main", "header", "footer", "aside", "nav", "blockquote", "details", "summary"),
    *("figure", "figcaption", "body", "html", "form", "fieldset", "br", "hr", "title", *HEADINGS),
}
LEAVES = frozenset({"td", "th", "dt", "dd", "p", "li", "summary", *HEADINGS})  # never joined to a box with others


@dataclass
class _Table:
    number: int
    row: int = 0
    column: int = -1
    heads: list[str] = field(default_factory=list)
    label: str = ""


@dataclass
class _Walk:
    source: str
    tables_before: int
    reading: Reading = field(default_factory=Reading)
    pieces: list[tuple[str, int]] = field(default_factory=list)  # text, its place in the source
    cursor: int = 0
    voices: list[Voice] = field(default_factory=list)
    headings: list[tuple[int, str]] = field(default_factory=list)
    tables: list[_Table] = field(default_factory=list)
    made: int = 0
    term: str = ""  # of a list of definitions
    box: int = 0  # how deep in a box


def read_html(source: str, first_table: int = 1) -> Reading:
    """The passages of a page, or of a piece of one. Tables are numbered from `first_table`."""
    if len(source) > MAX_HTML:
        said = f"{len(source):,} characters, more than the {MAX_HTML:,} that are read of one page"
        return Reading(oddities=[Oddity(kind="too long", text=said, end=len(source))])
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        root = html.document_fromstring(source.encode(errors="replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError) as error:  # nothing but tags, comments or white space
        empty = not source.strip() or "empty" in str(error)
        return Reading(oddities=[] if empty else [Oddity(kind="not HTML", text=one_line(str(error)), end=len(source))])
    walk = _Walk(source=source, tables_before=first_table - 1)
    sizes = _sizes(root)
    skipped = 0
    for event, element in etree.iterwalk(root, events=("start", "end")):
        tag = element.tag if isinstance(element.tag, str) else ""
        if tag in UNREAD:
            skipped += 1 if event == "start" else -1
            if event == "end" and not skipped:
                _text(walk, element.tail)
        elif skipped:
            continue
        elif event == "start":
            _open(walk, tag, small=sizes.get(element, 0) <= BOX)
            _text(walk, element.text)
        else:
            _close(walk, tag, small=sizes.get(element, 0) <= BOX)
            _text(walk, element.tail)
    _flush(walk)
    return walk.reading


def _sizes(root: html.HtmlElement) -> dict[html.HtmlElement, int]:
    """Characters of text in every element that could be a box; more than BOX where a leaf of its own stands inside."""
    sizes: dict[html.HtmlElement, int] = {}
    for _, element in etree.iterwalk(root, events=("end",)):
        size = len((element.text or "").strip())
        for child in element:
            size += len((child.tail or "").strip()) + sizes.get(child, 0)
            size += BOX + 1 if child.tag in LEAVES or child.tag in ("table", "ul", "ol", "dl") else 0
        sizes[element] = size
    return sizes


def _open(walk: _Walk, tag: str, small: bool) -> None:
    if tag == "div" and small:
        if not walk.box:
            _flush(walk)
        walk.box += 1
    if tag not in BLOCKS:
        return
    if walk.box:
        walk.pieces.append((" ", walk.cursor))
    else:
        _flush(walk)
    if tag in ("blockquote", "pre"):
        walk.voices.append("quoted" if tag == "blockquote" else "code")
    elif tag == "table":
        walk.made += 1
        walk.tables.append(_Table(number=walk.tables_before + walk.made))
    elif tag == "tr" and walk.tables:
        table = walk.tables[-1]
        table.row, table.column, table.label = table.row + 1, -1, ""
    elif tag in ("td", "th") and walk.tables:
        walk.tables[-1].column += 1


def _close(walk: _Walk, tag: str, small: bool) -> None:
    if tag == "div" and small:
        walk.box -= 1
    if tag not in BLOCKS or walk.box:
        return
    _flush(walk, tag)
    if tag in ("blockquote", "pre"):
        walk.voices.pop()
    elif tag == "table" and walk.tables:
        walk.tables.pop()


def _text(walk: _Walk, text: str | None) -> None:
    if not text or not text.strip():
        if text:
            walk.pieces.append((" ", walk.cursor))
        return
    found = walk.source.find(text, walk.cursor, walk.cursor + len(text) + WINDOW)
    if found >= 0:
        walk.cursor = found
    walk.pieces.append((text, walk.cursor))
    walk.cursor += len(text)


def _flush(walk: _Walk, tag: str = "") -> None:
    """Make a passage of what was gathered since the last one."""
    text, spans = "", []
    for piece, place in walk.pieces:
        spans.append((len(text), place))
        text += piece.replace("\n", " ") if "code" not in walk.voices else piece
    walk.pieces = []
    if not text.strip():
        return
    voice: Voice = walk.voices[-1] if walk.voices else "author"
    cell = None
    heading = tag in HEADINGS
    if tag in ("td", "th") and walk.tables:
        cell, heading = _cell(walk.tables[-1], one_line(text))
    elif tag == "dt":
        walk.term = one_line(text)
    elif tag == "dd":
        cell = Cell(table=0, row=0, column=1, head="", label=walk.term, corner="")
    titles = tuple(title for _, title in walk.headings)
    walk.reading.passages.append(
        Passage(text=text, voice=voice, headings=titles, cell=cell, spans=tuple(spans), heading=heading)
    )
    if tag in HEADINGS:
        level = int(tag[1])
        walk.headings = [*(one for one in walk.headings if one[0] < level), (level, one_line(text))]


def _cell(table: _Table, words: str) -> tuple[Cell, bool]:
    """Where a cell stands, and whether it is a head."""
    if table.row == 1:
        table.heads += [""] * (table.column - len(table.heads)) + [words]
    if table.column == 0:
        table.label = words
    head = table.heads[table.column] if table.column < len(table.heads) else ""
    corner = table.heads[0] if table.heads else ""
    cell = Cell(table=table.number, row=table.row, column=table.column, head=head, label=table.label, corner=corner)
    return cell, table.row == 1
