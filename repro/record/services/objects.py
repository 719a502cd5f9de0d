"""Objects in a store over HTTPS, without an account: one object, or (an address that ends in "/") a listing.

An object is compared with every hash its store gives: Google's `x-goog-hash` (crc32c and md5), and an S3 ETag where it
is an MD5. An ETag "<hash>-<parts>" is of an upload in parts and compares with nothing; neither does one of an object
that S3 encrypted with a customer's key (Amazon's documentation, "Common Response Headers"), nor a weak one.

A store may keep an object packed (Google: `x-goog-stored-content-encoding: gzip`); its hashes are then of the packed
bytes. We ask for these, compare them, and keep the unpacked text, which has no publisher's hash.

A refusal is a finding about the record: Forbidden for AccessDenied, Gone for NoSuchKey and NoSuchBucket.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from repro.errors import UsageError
from repro.record.artifacts import Artifact
from repro.record.digests import Digest, crc32c, etag_md5, md5
from repro.record.services.answers import TRY_LATER, Response
from repro.record.services.content import (
    Content,
    canonical_sha256,
    compare,
    limit,
    refuse_html,
    refuse_stand_in,
    safe_name,
    stored_json,
)
from repro.record.services.errors import Malformed, TooLarge, quoted, shown
from repro.record.services.http import Client

PATH_STYLE = re.compile(r"storage\.googleapis\.com|s3([.-][\w-]+)*\.amazonaws\.com")  # https://host/bucket/key
MAX_LISTINGS = 20  # answers of at most 1,000 keys each
COMPUTE: Mapping[str, Callable[[bytes], Digest]] = {"crc32c": crc32c, "md5": md5, "etag-md5": etag_md5}
ACCEPT = {"accept-encoding": "gzip"}  # what a store keeps packed comes as it is kept


class Stored(NamedTuple):
    """One line of a listing."""

    key: str
    bytes: int
    etag: str
    changed_at: str  # as the store writes it, UTC


def read(artifact: Artifact, client: Client) -> Content:
    """What an object, or the listing of a prefix, is now. Raises a ServiceError."""
    if urlsplit(artifact.address).path.endswith("/"):
        return _read_listing(artifact, client)
    name = name_of("objects", artifact.address)
    response = client.get(mirrored(artifact.address), headers=ACCEPT, limit=limit("object", client))
    digest, notes = compare_with_store(response, artifact.digest)
    if digest is None:
        refuse_stand_in(response.body, response.url)
        refuse_html(response.body, response.url)
    return Content(response.body, name, digest, {}, "", response.headers.get("etag", ""), notes)


def compare_with_store(response: Response, wanted: str) -> tuple[Digest | None, tuple[str, ...]]:
    """Compare an object with the hashes that its store gives. The digest of the `wanted` kind where there is one, else
    the first; and notes on what could not be compared. Raises HashMismatch, or Malformed for a stand-in."""
    given, notes = _given_hashes(response.headers, wanted)
    kind, headers = Digest.parse(wanted).kind, response.headers
    kept = headers.get("x-goog-stored-content-encoding", headers.get("content-encoding", "identity"))
    if kept == "identity":
        for digest in given:
            compare(response.body, digest, COMPUTE[digest.kind], response.url)
        if not given and kind in COMPUTE and not (notes and kind == "etag-md5"):
            notes.append(f"the store gives no {kind}")
        return next((digest for digest in given if digest.kind == kind), given[0] if given else None), tuple(notes)
    if response.wire is response.body:
        notes.append(f"kept as {quoted(kept)} and unpacked on the way: its hashes compare with nothing")
    elif given:
        for digest in given:
            compare(response.wire, digest, COMPUTE[digest.kind], response.url)
        notes.append(f"kept as {quoted(kept)}: {given[0]} is of the packed bytes, and was compared with them")
    return None, tuple(notes)


def name_of(folder: str, address: str) -> str:
    """A file name for an address: its host and path; a query becomes a short hash. Raises Malformed."""
    parts = urlsplit(address)
    path = unquote(parts.path).removeprefix("/")
    if path == "" or path.endswith("/"):
        path += "index"
    query = "." + hashlib.sha256(parts.query.encode()).hexdigest()[:8] if parts.query else ""
    return safe_name(folder, parts.netloc.replace(":", "_"), path + query)


def mirrored(address: str) -> str:
    """The address, at the mirror that MARIN_REPRO_MIRRORS names for its host: "https://host=https://mirror …"."""
    for pair in os.environ.get("MARIN_REPRO_MIRRORS", "").split():
        source, _, mirror = pair.partition("=")
        if not re.match(r"https?://[^/]", source) or not re.match(r"https?://[^/]", mirror):
            raise UsageError(f"MARIN_REPRO_MIRRORS: {pair!r} is not of the form https://host=https://mirror.")
        if address.startswith(source.rstrip("/") + "/"):
            return mirror.rstrip("/") + address.removeprefix(source.rstrip("/"))
    return address


def _given_hashes(headers: Mapping[str, str], wanted: str) -> tuple[list[Digest], list[str]]:
    """The hashes of the headers as digests, and notes on those that compare with nothing."""
    given, notes = [], []
    for kind, value in re.findall(r"\b(crc32c|md5)=([A-Za-z0-9+/]+=*)", headers.get("x-goog-hash", "")):
        try:
            given.append(Digest(kind, base64.b64decode(value, validate=True).hex()))
        except (binascii.Error, ValueError):
            notes.append(f"x-goog-hash {kind}={value} is not of its form")
    etag = headers.get("etag", "")
    parts = re.fullmatch(r'"?[0-9a-fA-F]{32}-(\d+)"?', etag)
    whole = re.fullmatch(r'"?([0-9a-fA-F]{32})"?', etag)
    s3 = "x-amz-request-id" in headers or wanted.startswith("etag-md5")
    if parts:
        notes.append(f"uploaded in {parts[1]} parts: its ETag is no MD5 and compares with nothing")
    elif whole and s3 and headers.get("x-amz-server-side-encryption", "AES256") != "AES256":
        notes.append("encrypted by its store: its ETag is no MD5 and compares with nothing")
    elif whole and s3:
        given.append(Digest("etag-md5", whole[1].lower()))
    return given, notes


def _read_listing(artifact: Artifact, client: Client) -> Content:
    name = f"{name_of('objects', artifact.address)}.json"
    url = urlsplit(artifact.address)
    bucket, prefix = "", unquote(url.path[1:])
    if PATH_STYLE.fullmatch(url.netloc):
        bucket, _, prefix = prefix.partition("/")
    objects = sorted(_objects(f"{url.scheme}://{url.netloc}/{quote(bucket)}", prefix, client))
    canonical = {item.key: canonical_sha256([item.key, item.bytes, item.etag]) for item in objects}
    if len(canonical) != len(objects):
        raise Malformed(f"{shown(artifact.address)}: the listing names keys twice. {TRY_LATER}")
    data = stored_json({"address": artifact.address, "objects": [item._asdict() for item in objects]})
    return Content(data, name, None, canonical, "", "")


def _objects(bucket: str, prefix: str, client: Client) -> Iterator[Stored]:
    """Every object below a prefix (S3's ListObjectsV2, which Google's XML interface speaks too)."""
    token, seen = "", set()
    for _ in range(MAX_LISTINGS):
        query = f"?list-type=2&prefix={quote(prefix, safe='')}"
        more = f"&continuation-token={quote(token, safe='')}" if token else ""
        response = client.get(f"{mirrored(bucket)}{query}{more}")
        listing = _xml(response)
        for item in listing.iterfind("{*}Contents"):
            key, size = item.findtext("{*}Key", ""), item.findtext("{*}Size", "")
            if not key.startswith(prefix) or not re.fullmatch(r"\d{1,18}", size):
                raise Malformed(
                    f"{shown(response.url)}: {quoted(key)!r} has no size, or was not asked for. {TRY_LATER}"
                )
            etag = item.findtext("{*}ETag", "").strip('"')
            yield Stored(key, int(size), etag, item.findtext("{*}LastModified", ""))
        if listing.findtext("{*}IsTruncated", "false") != "true":
            return
        token = listing.findtext("{*}NextContinuationToken", "")
        if not token or token in seen:
            raise Malformed(f"{shown(response.url)}: the listing goes on without saying where. {TRY_LATER}")
        seen.add(token)
    raise TooLarge(f"{shown(bucket)}: more than {MAX_LISTINGS * 1000:,} objects. Name a longer prefix in record.toml.")


class _WithoutDoctype(ElementTree.TreeBuilder):
    """Refuses a document type, with which entities could be declared."""

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise ValueError("it brings a document type")


def _xml(response: Response) -> ElementTree.Element:
    """A listing's XML, without document type: no entities of its own."""
    refuse_html(response.body, response.url)
    try:
        root = ElementTree.fromstring(response.body, ElementTree.XMLParser(target=_WithoutDoctype()))
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise Malformed(f"{shown(response.url)}: the listing is not XML ({error}). {TRY_LATER}") from error
    if not root.tag.endswith("ListBucketResult"):
        raise Malformed(f"{shown(response.url)}: the answer is no listing of a bucket. {TRY_LATER}")
    return root
