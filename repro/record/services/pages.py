"""Plain pages: stored as they came, compared with a store's hash where there is one, locked by what a reader sees.

The canonical form is the visible text: elements that are not shown are left out, white space is one space, blocks are
lines. A new script, style or attribute changes the bytes and not the text; another figure changes both.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator

from lxml import etree

from repro.record.artifacts import Artifact
from repro.record.services.answers import LOGIN_PAGE, Response
from repro.record.services.content import Content, limit, refuse_stand_in
from repro.record.services.errors import Malformed, quoted, shown
from repro.record.services.http import Client
from repro.record.services.objects import ACCEPT, compare_with_store, mirrored, name_of

HTML_TYPES = ("text/html", "application/xhtml+xml", "")
NOT_SHOWN = {"script", "style", "template", "noscript", "head", "iframe", "object"}
INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "i", "ins", "kbd", "label", "mark", "q", "s"),
    *("samp", "small", "span", "strong", "sub", "sup", "u", "var"),
}
NO_TEXT = "If a script fills it in, name the address that the script reads."
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def read(artifact: Artifact, client: Client) -> Content:
    """What a page is now. Raises a ServiceError; Malformed for a login page, or what is not HTML or not its charset."""
    name = name_of("pages", artifact.address)
    name = name if name.endswith((".html", ".htm")) else f"{name}.html"
    response = client.get(mirrored(artifact.address), headers=ACCEPT, limit=limit("page", client))
    digest, notes = compare_with_store(response, artifact.digest)
    refuse_stand_in(response.body, response.url)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in HTML_TYPES:
        raise Malformed(f"{shown(response.url)}: {quoted(kind)} came instead of a page. Correct kind in record.toml.")
    root = _parse(response)
    if digest is None and root.xpath('//input[translate(@type, "PASWORD", "pasword") = "password"]'):
        raise Malformed(f"{shown(response.url)}: this is a login page. {LOGIN_PAGE}")
    text = visible_text(root)
    if not text:
        raise Malformed(f"{shown(response.url)}: the page has no text to read. {NO_TEXT}")
    if response.url != mirrored(artifact.address):
        notes = (*notes, f"redirected to {shown(response.url)}")
    canonical = {"text": hashlib.sha256(text.encode()).hexdigest()}
    return Content(response.body, name, digest, canonical, "", response.headers.get("etag", ""), notes)


def page_text(data: bytes) -> str:
    """The visible text of a stored page, for a difference between two of them. Raises Malformed."""
    return visible_text(_parse(Response("stored page", 200, {}, data, data)))


def visible_text(root: etree._Element) -> str:
    """The text that a reader sees, one line a block."""
    lines = "".join(_pieces(root)).splitlines()
    return "\n".join(line for line in (" ".join(line.split()) for line in lines) if line)


def _pieces(element: etree._Element) -> Iterator[str]:
    """The element's text, with line feeds around blocks and none within a text."""
    if not isinstance(element.tag, str) or element.tag in NOT_SHOWN:
        return
    edge = "" if element.tag in INLINE else "\n"
    yield edge
    yield " ".join(re.split(r"\s+", element.text or ""))
    for child in element:
        yield from _pieces(child)
        yield " ".join(re.split(r"\s+", child.tail or ""))
    yield edge


def _parse(response: Response) -> etree._Element:
    """The page's tree: linear in its size, at most 256 deep (libxml2's bound), and nothing else is loaded."""
    parser = etree.HTMLParser(encoding="utf-8", no_network=True, huge_tree=False, remove_comments=True, remove_pis=True)
    root = etree.fromstring(_decoded(response).encode(errors="replace"), parser)
    if any(entry.level == etree.ErrorLevels.FATAL for entry in parser.error_log):
        raise Malformed(f"{shown(response.url)}: nested too deeply, or one text too long, to be read. Report it.")
    if root is None:
        raise Malformed(f"{shown(response.url)}: the page is empty. {NO_TEXT}")
    return root


def _decoded(response: Response) -> str:
    """The page as text: by its byte order mark, else the header's charset, else its own `<meta>`, else UTF-8."""
    body = response.body
    marked = next((name for mark, name in MARKS if body.startswith(mark)), "")
    said = re.search(r"charset=\"?([\w.:-]+)", response.headers.get("content-type", ""), re.I)
    own = re.search(rb"<meta[^>]{0,200}charset=[\"']?([\w.:-]+)", body[:1024], re.I)
    charset = marked or (said[1] if said else own[1].decode() if own else "utf-8")
    try:
        return body.decode(charset)
    except UnicodeDecodeError as error:
        place = f"not {quoted(charset)} at byte {error.start}"
    except LookupError:
        place = f"in an unknown charset, {quoted(charset)!r}"
    raise Malformed(f"{shown(response.url)}: the page is {place}. Try again; if it stays, tell its owner.")
