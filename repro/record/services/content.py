"""What a service gave for one artifact: `Content`; how large it may be, what it may be called, and what it may not be.

`digest` is the publisher's own hash of `data`, already compared. Where the publisher gives none, `canonical` has the
SHA-256 of each part in a form that ignores what changes without meaning, so that a later edit is told by its part.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from repro.record.artifacts import ArtifactKind
from repro.record.digests import Digest
from repro.record.services.answers import LOGIN_PAGE, looks_like_html
from repro.record.services.errors import HashMismatch, Malformed, quoted, shown
from repro.record.services.http import Client

MEBIBYTE = 2**20
LIMITS: Mapping[ArtifactKind, int] = {  # bytes that an artifact of a kind may have
    "github-file": 32 * MEBIBYTE,
    "github-tree": 64 * MEBIBYTE,
    "github-issue": 64 * MEBIBYTE,
    "wandb-run": 64 * MEBIBYTE,
    "wandb-report": 64 * MEBIBYTE,
    "hub-file": 64 * MEBIBYTE,
    "hub-tree": 64 * MEBIBYTE,
    "object": 64 * MEBIBYTE,
    "page": 16 * MEBIBYTE,
}
MAX_NAME = 255  # bytes of one part of a file name: the bound of the common file systems
POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\r?\noid sha256:([0-9a-f]{64})\r?\nsize (\d{1,18})\b"
)


@dataclass(frozen=True)
class Content:
    """What one artifact is now."""

    data: bytes  # what is stored
    name: str  # relative file name, `/` between its parts; safe to join to a folder
    digest: Digest | None  # the publisher's own hash of `data`, compared
    canonical: Mapping[str, str]  # part, "comment 5335872267": SHA-256 of its canonical form
    resolved: str  # the commit or revision that was read; "" where the service has none
    etag: str
    notes: tuple[str, ...] = ()


def limit(kind: ArtifactKind, client: Client) -> int:
    """Bytes that an artifact may have: what the client was told, else the bound of its kind."""
    return client.max_bytes or LIMITS[kind]


def safe_name(*parts: str) -> str:
    """Join parts to a relative name. Raises Malformed for `..`, absolute names, drive letters, NUL and long names."""
    name = "/".join(parts)
    for part in name.split("/"):
        if (
            part in ("", ".", "..")
            or re.search(r"[\\:\x00-\x1f\x7f]", part)
            or len(part.encode(errors="replace")) > MAX_NAME
        ):
            raise Malformed(
                f"{quoted(name)!r} is no name for a file of a record (at {quoted(part)!r}). Report it upstream."
            )
    return name


def canonical_sha256(value: Any) -> str:
    """SHA-256 of a value as JSON with sorted keys and no spaces."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def stored_json(value: Any, indent: int | None = 2) -> bytes:
    """A value as it is stored: strict JSON, keys in the order given, a newline at its end; lone surrogates escaped."""
    separators = None if indent else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def compare(data: bytes, expected: Digest, compute: Callable[[bytes], Digest], url: str) -> Digest:
    """The publisher's hash, where the bytes have it. Raises Malformed for a stand-in, otherwise HashMismatch."""
    found = compute(data)
    if found == expected:
        return expected
    refuse_stand_in(data, url)
    refuse_html(data, url)
    lines = ""
    if expected in (compute(data.replace(b"\r\n", b"\n")), compute(re.sub(rb"(?<!\r)\n", b"\r\n", data))):
        lines = " (only the line ends differ: something between rewrote them)"
    raise HashMismatch(
        f"{shown(url)}: hash-mismatch: {len(data):,} bytes with {found}, but the publisher says {expected}{lines}. "
        "The download was damaged, or the file was replaced: fetch again, and report it if it stays.",
        expected,
        found,
        data,
    )


def refuse_stand_in(data: bytes, url: str) -> None:
    """Raise Malformed where the bytes are the pointer of Git LFS to a file, not the file."""
    if match := POINTER.match(data):
        raise Malformed(
            f"{shown(url)}: the Git LFS pointer to sha256:{match[1].decode()} ({int(match[2]):,} bytes) came instead "
            "of the file. The mirror has no LFS: ask the original."
        )


def refuse_html(data: bytes, url: str) -> None:
    """Raise Malformed where an HTML page came, and the address is not one of a page."""
    if looks_like_html(data) and not shown(url).lower().endswith((".html", ".htm")):
        raise Malformed(f"{shown(url)}: an HTML page came instead of the file. {LOGIN_PAGE}")
