"""Typed digests: a value is never apart from its kind, and kinds are never compared with one another.

    Digest.parse("sha256:9f86…")      64 hex digits
    Digest.parse("git-sha1:e69d…")    40 hex digits; the id that Git gives a blob, not the SHA-1 of its bytes
    Digest.parse("git-sha1")          the kind that will be compared; no value known yet

Which kinds exist, and why each, is said in KINDS. A 40-digit value under the name sha256 is an error, not a mismatch.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import google_crc32c

KINDS = {  # kind: the pattern of its value
    "sha256": r"[0-9a-f]{64}",  # the hub's LFS hash, and our own
    "git-sha1": r"[0-9a-f]{40}",  # blob id in a commit's tree
    "md5": r"[0-9a-f]{32}",  # an object store's own
    "etag-md5": r"[0-9a-f]{32}",  # an ETag that is an MD5: only of an object that was uploaded in one part
    "crc32c": r"[0-9a-f]{8}",  # an object store's own
    "canonical": r"[0-9a-f]{64}",  # SHA-256 of content without a publisher's hash, in a form that ignores counters
    "none": r"(?!)",  # nothing to compare with
}


@dataclass(frozen=True)
class Digest:
    """A digest of `kind`; `value` is lower-case hex, None where only the kind is known. ValueError where they clash."""

    kind: str
    value: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            near = difflib.get_close_matches(self.kind, KINDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the kinds are {', '.join(KINDS)}."
            raise ValueError(f"unknown digest kind {self.kind!r}; {hint}")
        if self.value is not None and not re.fullmatch(KINDS[self.kind], self.value):
            fits = [kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, self.value)]
            hint = f"its form is that of {' or '.join(fits)}" if fits else "it is no digest of any known kind"
            raise ValueError(f"{self.value!r} ({len(self.value)} characters) is not a {self.kind}: {hint}")

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read "kind" or "kind:value". Raises ValueError."""
        kind, colon, value = text.partition(":")
        return cls(kind, value if colon else None)

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind}:{self.value}"


def sha256(data: bytes) -> Digest:
    """SHA-256 of the bytes."""
    return Digest("sha256", hashlib.sha256(data).hexdigest())


def git_blob_sha1(data: bytes) -> Digest:
    """The id Git gives a blob: SHA-1 of "blob LENGTH", NUL, and the bytes (Git's documentation, "Git Objects")."""
    header = f"blob {len(data)}\0".encode()
    return Digest("git-sha1", hashlib.sha1(header + data, usedforsecurity=False).hexdigest())


def git_tree_sha1(entries: Iterable[tuple[str, str, str]]) -> Digest:
    """The id Git gives a tree of (mode, name, id): SHA-1 of "tree LENGTH", NUL, and for each "mode name", NUL, raw id,
    in the order of names, where a tree's name counts as if it ended in "/" (Git's documentation, "Git Objects")."""
    order = sorted(entries, key=lambda entry: (entry[1] + ("/" if entry[0] == "40000" else "")).encode())
    lines = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(id) for mode, name, id in order)
    header = f"tree {len(lines)}\0".encode()
    return Digest("git-sha1", hashlib.sha1(header + lines, usedforsecurity=False).hexdigest())


def md5(data: bytes) -> Digest:
    """MD5 of the bytes: what object stores publish, no proof against intent."""
    return Digest("md5", hashlib.md5(data, usedforsecurity=False).hexdigest())


def etag_md5(data: bytes) -> Digest:
    """MD5 of the bytes, under the name it has as an ETag."""
    return Digest("etag-md5", md5(data).value)


def crc32c(data: bytes) -> Digest:
    """CRC-32C (RFC 3720, appendix B.4) of the bytes, as eight hex digits with the most significant first."""
    return Digest("crc32c", f"{google_crc32c.value(data):08x}")


def matches(data: bytes, expected: Digest) -> bool:
    """Whether the bytes have this digest. ValueError for a kind that is not computed from bytes alone, or no value."""
    compute = {"sha256": sha256, "git-sha1": git_blob_sha1, "md5": md5, "etag-md5": etag_md5, "crc32c": crc32c}
    if expected.kind not in compute or expected.value is None:
        raise ValueError(f"cannot compare bytes with {expected}")
    return compute[expected.kind](data) == expected
