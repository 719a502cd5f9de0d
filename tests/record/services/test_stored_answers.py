"""The clients read what the real services answered, and the stand-ins answer with the same fields."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.record.artifacts import Artifact
from repro.record.digests import git_blob_sha1
from repro.record.services import readers
from repro.record.services.content import Content
from repro.record.services.errors import Gone
from repro.record.services.github import linked_issues
from repro.record.services.http import Client
from tests.servers.base import Answer, Request, Server
from tests.servers.github import issue
from tests.servers.hub import REVISION, Hub

GOLDENS = Path(__file__).parents[2] / "goldens" / "services"
ISSUE, TREE = ((GOLDENS / name).read_bytes() for name in ("github_issue.json", "hub_tree.json"))


class Stored(Server):
    """Gives the stored answers at their addresses."""

    def answer(self, request: Request) -> Answer:
        answers = {
            "/repos/marin-community/marin/issues/9162": ISSUE,
            "/repos/marin-community/marin/issues/9162/comments": b"[]",
            f"/api/datasets/marin-community/swarm/revision/{REVISION}": b'{"id": "x", "sha": "%s"}' % REVISION.encode(),
            f"/api/datasets/marin-community/swarm/tree/{REVISION}": TREE,
        }
        return Answer(200, (("content-type", "application/json"),), answers[request.path])


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    with Stored() as server:
        monkeypatch.setenv("MARIN_REPRO_GITHUB_API", server.url)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_pull_request_of_github_is_read(client: Client) -> None:
    artifact = Artifact(
        id="mixture-switch-pr",
        role="discussion",
        kind="github-issue",
        address="marin-community/marin#9162",
        digest="canonical",
    )
    content = readers.read(artifact, client)
    thread = json.loads(content.data)
    assert thread["title"] == "[grug] Switch the hero mixture after checkpoint 108000"
    assert (thread["author"], thread["merged_at"]) == ("Helw150", "2026-09-14T23:41:46Z")
    assert "The hero switches at steps 108000 and 312192" in thread["body"]
    assert linked_issues(content) == ("marin-community/marin#9126",)
    assert content.notes == ("the issue counts 1 comments, 0 were given",)


def test_a_listing_of_the_hub_is_read_and_its_ids_agree(client: Client) -> None:
    artifact = Artifact(
        id="swarm",
        role="data manifest",
        kind="hub-tree",
        address="datasets/marin-community/swarm",
        pin=REVISION,
        digest="sha256",
    )
    files = json.loads(readers.read(artifact, client).data)["files"]
    assert len(files) == 5
    for file in files:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{file['sha256']}\nsize {file['bytes']}\n"
        assert git_blob_sha1(pointer.encode()).value == file["blob_id"]


class Moto(Server):
    """Gives what moto's S3 server answered (goldens/services/moto_s3.py)."""

    def answer(self, request: Request) -> Answer:
        stored = json.loads((GOLDENS / "moto_s3.json").read_bytes())[request.target]
        return Answer(stored["status"], tuple(stored["headers"].items()), stored["body"].encode())


def test_answers_of_an_s3_that_is_not_ours_are_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(place: str) -> Content:
        address = f"https://s3.amazonaws.com/{place}"
        artifact = Artifact(id="a", role="corpus", kind="object", address=address, digest="etag-md5")
        return readers.read(artifact, client)

    with Moto() as server:
        monkeypatch.setenv("MARIN_REPRO_MIRRORS", f"https://s3.amazonaws.com={server.url}")
        whole = ask("corpus/final/results.csv")
        assert (whole.data, str(whole.digest)) == (b"a,b\n1,2\n", f"etag-md5:{hashlib.md5(whole.data).hexdigest()}")
        parts = ask("corpus/final/parts.bin")
        assert (parts.data, parts.digest) == (b"one part\n", None)
        assert parts.notes == ("uploaded in 1 parts: its ETag is no MD5 and compares with nothing",)
        listed = json.loads(ask("corpus/final/").data)["objects"]
        assert [(one["key"], one["bytes"]) for one in listed] == [("final/parts.bin", 9), ("final/results.csv", 8)]
        for place, code in (("corpus/final/none.csv", "NoSuchKey"), ("none/a.csv", "NoSuchBucket")):
            with pytest.raises(Gone, match=code):
                ask(place)


def test_the_stand_ins_have_no_field_that_the_services_have_not() -> None:
    real = json.loads(ISSUE)
    stand_in = issue("marin-community/marin", 9162, "body")
    assert set(stand_in) <= set(real)
    assert set(stand_in["user"]) <= set(real["user"])
    hub = Hub()
    hub.files, hub.lfs = {"a.parquet": b"x"}, {"a.parquet"}
    (entry,) = hub._entries()
    (first, *_) = json.loads(TREE)
    assert set(entry) == set(first)
    assert set(entry["lfs"]) == set(first["lfs"])
