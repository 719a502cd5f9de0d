from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from repro.errors import UsageError
from repro.record.artifacts import Artifact
from repro.record.services import http, objects
from repro.record.services.errors import Forbidden, Gone, HashMismatch, Malformed, TooLarge
from repro.record.services.http import Client
from tests.servers.base import Answer
from tests.servers.objects import Objects
from tests.servers.outcomes import ALWAYS, OF_HASHED_FILE

HOST = "https://storage.googleapis.com"
KEY = "held/h100-mix25-paloma/final-2026.09.15.1/final_results.csv"
DATA = b"rung,loss\nd768,3.0153\n" * 10
ARTIFACT = Artifact(
    id="mixture-study", role="metrics", kind="object", address=f"{HOST}/marin-public/{KEY}", digest="crc32c"
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    with Objects() as server:
        server.objects[KEY] = DATA
        monkeypatch.setenv("MARIN_REPRO_MIRRORS", f"{HOST}={server.url} https://s3.amazonaws.com={server.url}/")
        yield server


@pytest.fixture
def s3(server: Objects) -> Objects:
    server.google = False
    return server


def test_googles_hashes_are_compared(server: Objects, client: Client) -> None:
    content = objects.read(ARTIFACT, client)
    assert content.data == DATA
    assert content.digest is not None
    assert content.digest.kind == "crc32c"
    assert content.name == f"objects/storage.googleapis.com/marin-public/{KEY}"
    assert objects.read(replace(ARTIFACT, digest="md5"), client).digest.kind == "md5"  # type: ignore[union-attr]
    assert content.notes == ()


def test_the_empty_object_has_the_hashes_that_googles_documentation_gives(server: Objects, client: Client) -> None:
    server.objects[KEY] = b""
    server.more_headers = (("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-hash", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="))
    assert str(objects.read(ARTIFACT, client).digest) == "crc32c:00000000"


def test_a_hash_given_beside_another_is_compared_too(server: Objects, client: Client) -> None:
    server.more_headers = (("x-goog-hash", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="),)
    with pytest.raises(HashMismatch, match="publisher says md5:d41d8cd98f00b204e9800998ecf8427e") as caught:
        objects.read(ARTIFACT, client)
    assert caught.value.data == DATA


def test_an_etag_of_one_part_is_an_md5(s3: Objects, client: Client) -> None:
    content = objects.read(replace(ARTIFACT, digest="etag-md5"), client)
    assert str(content.digest) == "etag-md5:" + content.etag.strip('"')
    s3.fault("flipped byte")
    with pytest.raises(HashMismatch, match="publisher says etag-md5"):
        objects.read(replace(ARTIFACT, digest="etag-md5"), client)


def test_an_etag_of_several_parts_compares_with_nothing(s3: Objects, client: Client) -> None:
    s3.parts[KEY] = 7
    content = objects.read(replace(ARTIFACT, digest="etag-md5"), client)
    assert content.digest is None
    assert content.notes == ("uploaded in 7 parts: its ETag is no MD5 and compares with nothing",)


@pytest.mark.parametrize(
    "header", [("etag", f'W/"{"a" * 32}"'), ("etag", '"5f3-61a"'), ("x-amz-server-side-encryption", "aws:kms")]
)
def test_etags_that_are_no_hash_are_not_compared(s3: Objects, client: Client, header: tuple[str, str]) -> None:
    s3.change(lambda request, answer: answer.having(header))
    assert objects.read(replace(ARTIFACT, digest="etag-md5"), client).digest is None


def test_an_etag_of_a_host_that_is_no_s3_is_not_taken_for_a_hash(s3: Objects, client: Client) -> None:
    s3.change(lambda request, answer: Answer(200, (("etag", '"' + "a" * 32 + '"'),), answer.body))
    assert objects.read(replace(ARTIFACT, digest="none"), client).digest is None
    with pytest.raises(HashMismatch):
        objects.read(replace(ARTIFACT, digest="etag-md5"), client)


def test_an_object_kept_packed_is_compared_packed_and_stored_unpacked(server: Objects, client: Client) -> None:
    server.packed.add(KEY)
    content = objects.read(ARTIFACT, client)
    assert content.data == DATA
    assert content.digest is None
    assert "kept as gzip: crc32c:" in content.notes[0]
    server.more_headers = (("x-goog-hash", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="),)
    with pytest.raises(HashMismatch):
        objects.read(ARTIFACT, client)
    server.unpacks = True
    assert "unpacked on the way" in objects.read(ARTIFACT, client).notes[0]


def test_a_store_that_gives_no_hash_is_noted(s3: Objects, client: Client) -> None:
    content = objects.read(ARTIFACT, client)
    assert content.digest is not None  # its ETag
    s3.parts[KEY] = 2
    assert "the store gives no crc32c" in objects.read(ARTIFACT, client).notes


def test_a_listing_is_read_to_its_end(server: Objects, client: Client) -> None:
    server.page = 3
    server.objects |= {f"ckpt/step & 1/{i:02}": bytes(i) for i in range(8)}
    content = objects.read(replace(ARTIFACT, address=f"{HOST}/marin-public/ckpt/step%20&%201/"), client)
    listing = json.loads(content.data)["objects"]
    assert [(item["key"], item["bytes"]) for item in listing] == [(f"ckpt/step & 1/{i:02}", i) for i in range(8)]
    assert len(server.requests) == 3
    before = content.canonical
    server.objects["ckpt/step & 1/03"] = b"abc"
    after = objects.read(replace(ARTIFACT, address=f"{HOST}/marin-public/ckpt/step%20&%201/"), client).canonical
    assert [key for key in after if after[key] != before[key]] == ["ckpt/step & 1/03"]
    assert content.name == "objects/storage.googleapis.com/marin-public/ckpt/step & 1/index.json"


def test_a_bucket_that_is_a_host_is_listed_at_its_root(
    server: Objects, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_REPRO_MIRRORS", f"https://marin-us-east-02a.cwobject.com={server.url}/marin-public")
    server.objects["marin/grug/step-126000/x"] = b"1"
    address = "https://marin-us-east-02a.cwobject.com/marin/grug/step-126000/"
    content = objects.read(replace(ARTIFACT, address=address), client)
    assert list(content.canonical) == ["marin/grug/step-126000/x"]
    assert server.requests[0].target == "/marin-public/?list-type=2&prefix=marin%2Fgrug%2Fstep-126000%2F"


def test_a_listing_that_goes_in_a_circle_or_too_long_is_told(
    server: Objects, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.objects |= {f"p/{i}": b"" for i in range(9)}
    server.page, server.stuck = 2, True
    listed = replace(ARTIFACT, address=f"{HOST}/marin-public/p/")
    with pytest.raises(Malformed, match="goes on without saying where"):
        objects.read(listed, client)
    server.stuck = False
    monkeypatch.setattr(objects, "MAX_LISTINGS", 3)
    with pytest.raises(TooLarge, match="Name a longer prefix"):
        objects.read(listed, client)


@pytest.mark.parametrize("coding", ["utf-8", "utf-16"])
def test_xml_with_entities_of_its_own_is_refused(server: Objects, client: Client, coding: str) -> None:
    bomb = (
        f'<?xml version="1.0" encoding="{coding}"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
        "<ListBucketResult><IsTruncated>&b;</IsTruncated></ListBucketResult>"
    )
    server.change(lambda request, answer: Answer(body=bomb.encode(coding)))
    with pytest.raises(Malformed, match="it brings a document type"):
        objects.read(replace(ARTIFACT, address=f"{HOST}/marin-public/p/"), client)


@pytest.mark.parametrize("address", ["corpus/.artifact.json", "corpus/"])
def test_what_is_not_open_is_forbidden(server: Objects, client: Client, address: str) -> None:
    with pytest.raises(Forbidden, match="status 403, AccessDenied") as caught:
        objects.read(replace(ARTIFACT, address=f"{HOST}/closed-bucket/{address}"), client)
    assert caught.value.status == 403


def test_what_is_not_there_is_gone(server: Objects, client: Client) -> None:
    with pytest.raises(Gone, match="status 404, NoSuchKey"):
        objects.read(replace(ARTIFACT, address=f"{HOST}/marin-public/other"), client)


@pytest.mark.parametrize("fault", OF_HASHED_FILE)
@pytest.mark.parametrize("kind", ["crc32c", "etag-md5"])
def test_a_fault_is_told_and_a_later_good_run_succeeds(
    server: Objects, make_client: Callable[..., Client], fault: str, kind: str
) -> None:
    server.google = kind == "crc32c"
    artifact = replace(ARTIFACT, digest=kind)
    error, words = OF_HASHED_FILE[fault]
    server.fault(fault)
    with pytest.raises(error, match=words):
        objects.read(artifact, make_client(max_bytes=10_000, timeout=0.1))
    server.faults.clear()
    assert objects.read(artifact, make_client()).data == DATA


@pytest.mark.parametrize("fault", [*ALWAYS, "invalid UTF-8", "empty body", "length too short", "LFS pointer"])
def test_a_fault_of_a_listing_is_told_and_a_later_good_run_succeeds(
    server: Objects, make_client: Callable[..., Client], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER", 10_000)
    error, words = ALWAYS.get(fault, (Malformed, "the listing is not XML"))
    server.fault(fault)
    listed = replace(ARTIFACT, address=f"{HOST}/marin-public/held/")
    with pytest.raises(error, match=words):
        objects.read(listed, make_client(timeout=0.1))
    server.faults.clear()
    assert list(objects.read(listed, make_client()).canonical) == [KEY]


@pytest.mark.parametrize(
    "path", ["%2e%2e/x", "a/%2e%2e/%2e%2e/x", "a%00b", "a%5Cb", "C:/x", "a//b", "x" * 256, "a%0Ab"]
)
def test_addresses_that_would_lead_out_of_the_record_are_not_asked_for(
    server: Objects, client: Client, path: str
) -> None:
    with pytest.raises(Malformed, match="no name for a file of a record"):
        objects.read(replace(ARTIFACT, address=f"{HOST}/{path}"), client)
    assert not server.requests


def test_addresses_that_differ_in_their_query_have_different_names() -> None:
    plain, asked = (objects.name_of("pages", f"{HOST}/a/index.html{query}") for query in ("", "?revision=uniform"))
    assert plain == "pages/storage.googleapis.com/a/index.html"
    assert asked.startswith(plain + ".")
    assert asked != objects.name_of("pages", f"{HOST}/a/index.html?revision=other")
    assert objects.name_of("pages", "https://openathena.ai/blog/note/") == "pages/openathena.ai/blog/note/index"


def test_a_mirror_that_is_none_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_REPRO_MIRRORS", "storage.googleapis.com")
    with pytest.raises(UsageError, match=r"MARIN_REPRO_MIRRORS: 'storage\.googleapis\.com' is not of the form"):
        objects.read(ARTIFACT, client)
