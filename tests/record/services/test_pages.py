from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from repro.record.artifacts import Artifact
from repro.record.services import pages
from repro.record.services.errors import HashMismatch, Malformed
from repro.record.services.http import Client
from tests.servers.base import Answer, Request, Server
from tests.servers.objects import Objects
from tests.servers.outcomes import ALWAYS, OF_HASHED_FILE

PAGE = """<!DOCTYPE html>
<html><head><title>Note</title><style>p { color: red }</style><script>var token = "x1";</script></head>
<body><nav><a href="/a">Home</a></nav><!-- build 17 -->
<h1>Marin 535B</h1><p>Trained on <b>18</b>.0T&nbsp;tokens,
by <em>704</em> GPUs — ü.</p><noscript>no</noscript>
<table><tr><td>loss</td><td>2.04</td></tr></table><details><summary>More</summary>shown</details>
</body></html>
"""
TEXT = "Home\nMarin 535B\nTrained on 18.0T tokens, by 704 GPUs — ü.\nloss\n2.04\nMore\nshown"
NOTE = "https://openathena.ai/blog/marin-535b-launch-note/"
STORED = "https://storage.googleapis.com/marin-public/rav/index.html"
ARTIFACT = Artifact(id="launch-note", role="discussion", kind="page", address=NOTE, digest="canonical")


@dataclass
class Site(Server):
    """One page, at any address."""

    page: bytes = PAGE.encode()
    headers: tuple[tuple[str, str], ...] = field(default=(("content-type", "text/html; charset=utf-8"),))

    def answer(self, request: Request) -> Answer:
        return Answer(200, self.headers, self.page)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with Site() as site:
        monkeypatch.setenv("MARIN_REPRO_MIRRORS", f"https://openathena.ai={site.url}")
        yield site


def test_a_page_is_locked_by_what_a_reader_sees(site: Site, client: Client) -> None:
    content = pages.read(ARTIFACT, client)
    assert pages.page_text(content.data) == TEXT
    assert content.data == PAGE.encode()
    assert content.name == "pages/openathena.ai/blog/marin-535b-launch-note/index.html"
    assert content.digest is None
    assert content.notes == ()
    for old, new in (("x1", "x2"), ("build 17", "build 18"), ("/a", "/b"), ("\n", "\r\n"), ("red", "blue")):
        site.page = PAGE.replace(old, new).encode()
        assert pages.read(ARTIFACT, client).canonical == content.canonical, old
    site.page = PAGE.replace("2.04", "2.05").encode()
    assert pages.read(ARTIFACT, client).canonical != content.canonical


def test_a_page_of_a_store_is_compared_with_the_stores_hash(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = replace(ARTIFACT, address=STORED, digest="crc32c")
    with Objects() as store:
        monkeypatch.setenv("MARIN_REPRO_MIRRORS", f"https://storage.googleapis.com={store.url}")
        store.objects["rav/index.html"], store.types["rav/index.html"] = PAGE.encode(), "text/html"
        content = pages.read(artifact, client)
        assert content.digest is not None
        assert content.digest.kind == "crc32c"
        assert "text" in content.canonical
        store.objects["rav/index.html"] += b'<input type="password">'
        assert pages.read(artifact, client).digest is not None  # whatever it asks for, it is the published page
        store.fault("flipped byte")
        with pytest.raises(HashMismatch, match="publisher says crc32c"):
            pages.read(artifact, client)


@pytest.mark.parametrize(
    ("headers", "page"),
    [
        ("text/html; charset=iso-8859-1", PAGE.replace("—", "-").encode("iso-8859-1")),
        ('text/html; charset="UTF-8"', PAGE.replace("—", "-").encode()),
        ("text/html", PAGE.replace("—", "-").replace("<head>", '<head><meta charset="latin-1">').encode("latin-1")),
        ("text/html; charset=latin-1", b"\xef\xbb\xbf" + PAGE.replace("—", "-").encode()),
        ("application/xhtml+xml", b"\xff\xfe" + PAGE.replace("—", "-").encode("utf-16-le")),
    ],
)
def test_a_page_is_read_in_the_charset_that_it_has(site: Site, client: Client, headers: str, page: bytes) -> None:
    site.page = PAGE.replace("—", "-").encode()
    plain = pages.read(ARTIFACT, client).canonical
    site.headers, site.page = (("content-type", headers),), page
    assert pages.read(ARTIFACT, client).canonical == plain


@pytest.mark.parametrize(
    ("kind", "page", "words"),
    [
        ("text/html", b"caf\xe9", "not utf-8 at byte 3"),
        ("text/html; charset=klingon", b"x", "unknown charset, 'klingon'"),
        ("text/html; charset=hex", b"00", "unknown charset, 'hex'"),
        ("application/pdf", b"%PDF-1.7", "application/pdf came instead of a page"),
        ("text/html", b"", "the page is empty"),
        ("text/html", b"<html><body><div id=app></div><script>go()</script></body></html>", "no text to read"),
        ("text/html", b"<input type='PassWord'>x", "this is a login page"),
        ("text/html", b"<div>" * 300 + b"x", "nested too deeply"),
    ],
)
def test_what_cannot_be_read_as_a_page_is_told(site: Site, client: Client, kind: str, page: bytes, words: str) -> None:
    site.headers, site.page = (("content-type", kind),), page
    with pytest.raises(Malformed, match=words):
        pages.read(ARTIFACT, client)


@pytest.mark.parametrize("piece", [b"<div><p>x ", b"<!--", b"<a ", b"<?", b"<!", b"<![CDATA[", b"<a x='", b"<b><i>"])
def test_a_hostile_page_takes_time_in_proportion_to_its_size(site: Site, client: Client, piece: bytes) -> None:
    # html.parser (Python 3.11.7) took more than 15 s for most of these, and selectolax 517 s for the first, at 1-2 MB
    site.page = b"<p>text" + piece * (1_000_000 // len(piece))
    try:
        assert pages.read(ARTIFACT, client).canonical
    except Malformed as error:
        assert "nested too deeply" in str(error)  # noqa: PT017  either is right; taking minutes is not


def test_a_page_that_moved_is_followed_and_noted(site: Site, client: Client) -> None:
    site.fault("redirect to /blog/new/", where="launch-note")
    assert pages.read(ARTIFACT, client).notes == (f"redirected to {site.url}/blog/new/",)


@pytest.mark.parametrize("fault", [*ALWAYS, "LFS pointer", "invalid UTF-8", "empty body"])
def test_a_fault_is_told_and_a_later_good_run_succeeds(
    site: Site, make_client: Callable[..., Client], fault: str
) -> None:
    words = {"invalid UTF-8": "not utf-8 at byte 0", "empty body": "the page is empty"}
    error, told = ALWAYS.get(fault) or (Malformed, words.get(fault) or OF_HASHED_FILE[fault][1])
    site.fault(fault)
    with pytest.raises(error, match=told):
        pages.read(ARTIFACT, make_client(max_bytes=10_000, timeout=0.1))
    site.faults.clear()
    assert pages.read(ARTIFACT, make_client()).data == PAGE.encode()


def test_line_ends_do_not_change_a_page_nor_does_a_short_length_pass(site: Site, client: Client) -> None:
    before = pages.read(ARTIFACT, client).canonical
    site.fault("CRLF")
    assert pages.read(ARTIFACT, client).canonical == before
    site.faults.clear()
    site.page = PAGE.replace("shown", "shown at the end").encode()
    site.fault("length too short")
    assert pages.read(ARTIFACT, client).canonical != before
