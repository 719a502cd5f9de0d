from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants

from repro.record.artifacts import Artifact
from repro.record.services import hub
from repro.record.services.errors import Forbidden, Gone, Malformed, TooLarge, Unreachable
from repro.record.services.http import Client
from tests.servers.base import Answer, Request, Server
from tests.servers.hub import REVISION, Hub
from tests.servers.outcomes import OF_HASHED_FILE, OF_JSON

REPO = "marin-community/marin-tokenizer"
TOKEN = "hf_0123456789abcdefghijABCDEFGHIJ0123"
TREE = Artifact(id="tokenizer", role="config", kind="hub-tree", address=f"models/{REPO}", pin=REVISION, digest="sha256")
CONFIG = replace(TREE, kind="hub-file", address=f"models/{REPO}/tokenizer_config.json")
BIG = replace(TREE, kind="hub-file", address=f"models/{REPO}/data/tokenizer.json")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub() as server:
        server.files = {
            ".gitattributes": b"*.json filter=lfs\n",
            "tokenizer_config.json": b'{"bos_token": "<|begin_of_text|>"}\n' * 5,
            "data/tokenizer.json": b'{"vocab": 128256}\n' * 20,
        }
        server.lfs = {"data/tokenizer.json"}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json"), raising=False)
        yield server


@pytest.fixture
def cdn() -> Iterator[Server]:
    class Cdn(Server):
        def answer(self, request: Request) -> Answer:
            return Answer(body=b'{"vocab": 128256}\n' * 20)

    with Cdn() as cdn:
        yield cdn


def test_a_listing_has_the_hubs_own_hashes(server: Hub, client: Client) -> None:
    content = hub.read(TREE, client)
    listing = json.loads(content.data)
    assert [file["path"] for file in listing["files"]] == list(content.canonical) == sorted(server.files)
    by_path = {file["path"]: file for file in listing["files"]}
    # `git hash-object` of the file, and `sha256sum` of the one in LFS
    assert by_path[".gitattributes"]["blob_id"] == "4c9163be425c347220120f3faf6cdea37e935612"
    assert by_path["data/tokenizer.json"]["sha256"] == (
        "bca30e32b5088d612dd2211929aa38916c4bbed021142afa063e9973827ab115"
    )
    assert by_path[".gitattributes"]["sha256"] is None
    assert content.resolved == REVISION
    assert content.name == f"hub/models/{REPO}/{REVISION[:12]}/tree.json"
    assert content.notes == ()


def test_only_the_file_that_was_replaced_changes(server: Hub, client: Client) -> None:
    before = hub.read(TREE, client).canonical
    server.files["data/tokenizer.json"] += b" "
    after = hub.read(TREE, client).canonical
    assert [path for path in after if after[path] != before[path]] == ["data/tokenizer.json"]


def test_all_pages_of_a_listing_are_read(server: Hub, client: Client) -> None:
    server.files |= {f"part-{i:03}.parquet": bytes(i) for i in range(250)}
    server.page = 100
    assert len(hub.read(TREE, client).canonical) == 253
    assert len(server.asked("/tree/")) == 3


def test_a_listing_that_goes_in_a_circle_or_on_for_ever_is_told(
    server: Hub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.page, server.stuck = 2, True
    with pytest.raises(Malformed, match="the listing goes in a circle"):
        hub.read(TREE, client)
    server.stuck = False
    server.files |= {f"{i}": b"" for i in range(100)}
    monkeypatch.setattr("repro.record.services.hub_session.MAX_REQUESTS", 10)
    with pytest.raises(TooLarge, match="more than 10 parts"):
        hub.read(TREE, client)


def test_a_listing_does_not_lead_to_another_host(
    server: Hub, cdn: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.page, server.next_host = 2, cdn.url
    with pytest.raises(Malformed, match=r"goes on at http://127\.0\.0\.1:.*not followed"):
        hub.read(TREE, client)
    assert cdn.requests == []
    assert all(request.headers["authorization"] == f"Bearer {TOKEN}" for request in server.requests)


@pytest.mark.parametrize(("artifact", "kind"), [(CONFIG, "git-sha1"), (BIG, "sha256")], ids=["git", "LFS"])
def test_a_file_is_compared_with_the_hubs_hash(server: Hub, client: Client, artifact: Artifact, kind: str) -> None:
    content = hub.read(artifact, client)
    assert content.digest is not None
    assert content.digest.kind == kind
    assert content.data == server.files[artifact.address.split("tokenizer/", 1)[1]]
    assert content.resolved == REVISION


def test_a_token_does_not_follow_a_file_to_where_it_lies(
    server: Hub, cdn: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.cdn = cdn.url
    assert hub.read(BIG, client).digest is not None
    assert server.asked("/resolve/")[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert "authorization" not in cdn.requests[0].headers
    cdn.fault("status 403")
    with pytest.raises(Forbidden) as caught:
        hub.read(BIG, client)
    assert "Signature" not in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_nothing_is_sent_with_a_token_where_none_is_set(server: Hub, client: Client) -> None:
    hub.read(TREE, client)
    hub.read(BIG, client)
    assert not any("authorization" in request.headers for request in server.requests)


def test_a_branch_is_resolved_and_keeps_its_name(server: Hub, client: Client) -> None:
    server.names["08.18.2026"] = server.revision = "b" * 40
    branch = replace(TREE, address=f"models/{REPO}:08.18.2026", pin="")
    content = hub.read(branch, client)
    assert content.resolved == "b" * 40
    assert content.name == f"hub/models/{REPO}/08.18.2026/tree.json"
    assert hub.read(replace(branch, address=f"models/{REPO}"), client).name == f"hub/models/{REPO}/main/tree.json"


def test_a_revision_that_moved_is_gone_or_noted(server: Hub, client: Client) -> None:
    server.names["v1"] = "c" * 40
    content = hub.read(replace(TREE, address=f"models/{REPO}:v1"), client)
    assert content.resolved == REVISION
    assert content.notes == ("v1 has moved: it is cccccccccccc now",)
    server.revision = "d" * 40
    for artifact in (TREE, CONFIG):
        with pytest.raises(Gone, match="no such revision: it moved, or its history was rewritten"):
            hub.read(artifact, client)


def test_another_revision_than_the_one_asked_for_is_refused(server: Hub, client: Client) -> None:
    server.names[REVISION] = "e" * 40
    with pytest.raises(Malformed, match=rf"asked for {REVISION}, was given e{{40}}"):
        hub.read(TREE, client)


def test_a_deleted_repository_is_gone(server: Hub, client: Client) -> None:
    for artifact in (TREE, CONFIG, replace(TREE, pin="")):
        with pytest.raises(Gone, match="no such repository, or no longer public"):
            hub.read(replace(artifact, address=artifact.address.replace("models", "datasets")), client)


def test_a_file_that_is_not_there_is_gone_and_a_folder_is_no_file(server: Hub, client: Client) -> None:
    with pytest.raises(Gone, match=rf"no such file at revision {REVISION[:12]}"):
        hub.read(replace(CONFIG, address=f"models/{REPO}/other.json"), client)
    with pytest.raises(Malformed, match="is a folder"):
        hub.read(replace(CONFIG, address=f"models/{REPO}/data"), client)


def test_a_file_too_large_is_not_asked_for(server: Hub, make_client: Callable[..., Client]) -> None:
    server.files["data/tokenizer.json"] = bytes(10_000)
    with pytest.raises(TooLarge, match="10,000 bytes; at most 9,000"):
        hub.read(BIG, make_client(max_bytes=9_000))
    assert not server.asked("/resolve/")


def test_a_gated_repository_is_forbidden_until_its_terms_are_accepted(
    server: Hub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.gated, server.accepted = "auto", TOKEN
    for artifact, status in ((TREE, 401), (CONFIG, 401)):
        with pytest.raises(Forbidden, match=f"gated \\(status {status}\\). Accept the terms") as caught:
            hub.read(artifact, client)
        assert caught.value.status == status
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub.read(TREE, client).notes == ("gated (auto); open to this login",)
    assert hub.read(CONFIG, client).data
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_who_did_not_accept_them")
    with pytest.raises(Forbidden, match="status 403"):
        hub.read(TREE, client)


def test_offline_nothing_is_asked(server: Hub, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE is set"):
        hub.read(TREE, client)
    assert server.requests == []


def test_the_library_asks_by_itself_as_before(server: Hub, client: Client) -> None:
    hub.read(TREE, client)
    api = HfApi(endpoint=server.url)
    server.requests.clear()
    assert api.repo_info(REPO, token=False).sha == REVISION
    assert "x-request-id" in server.requests[0].headers or "x-amzn-trace-id" in server.requests[0].headers
    server.fault("redirect to /api/models/elsewhere", where="/api/models/marin", times=1)
    server.repo = "elsewhere"
    assert api.repo_info(REPO, token=False).sha == REVISION


def test_several_ask_at_once_each_with_its_client(server: Hub, make_client: Callable[..., Client]) -> None:
    server.delay = 0.01
    small, large = make_client(max_bytes=50, timeout=5.0), make_client(timeout=5.0)

    def ask(number: int) -> str:
        try:
            return hub.read(TREE, small if number % 2 else large).resolved
        except TooLarge:
            return "too large"

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(16))) == [REVISION, "too large"] * 8


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"sha": "', b'"shb": "'),
        (b'"sha": "a', b'"sha": "z'),
        (b'"path":', b'"paht":'),
        (b'"type": "file"', b'"tipe": "file"'),
        (b'"oid": "', b'"oid": "not-hex'),
        (b'"lfs": {"oid"', b'"lfs": {"id"'),
        (b'"lfs": {', b'"lfs": 3, "x": {'),
        (b'[{"type"', b'{"a": [{"type"'),
        (b'"id": ', b'"i": '),
    ],
)
def test_answers_of_another_form_are_told(server: Hub, client: Client, old: bytes, new: bytes) -> None:
    server.change(lambda request, answer: replace(answer, body=answer.body.replace(old, new)))
    with pytest.raises(Malformed, match=r"not the form known of the hub|is not JSON|was given"):
        hub.read(TREE, client)


@pytest.mark.parametrize("fault", OF_JSON)
@pytest.mark.parametrize("where", ["/revision/", "/tree/", "/paths-info/"])
def test_a_fault_of_the_api_is_told_and_a_later_good_run_succeeds(
    server: Hub, make_client: Callable[..., Client], fault: str, where: str
) -> None:
    kind, words = OF_JSON[fault]
    if "redirect" in fault and where == "/paths-info/":
        words = "a POST was redirected to .*, which is refused"
    artifact = CONFIG if where == "/paths-info/" else TREE
    server.fault(fault, where=where)
    with pytest.raises(kind, match=words):
        hub.read(artifact, make_client(max_bytes=10_000, timeout=0.1))
    server.faults.clear()
    assert hub.read(artifact, make_client()).data


@pytest.mark.parametrize("fault", OF_HASHED_FILE)
@pytest.mark.parametrize("artifact", [CONFIG, BIG], ids=["git", "LFS"])
def test_a_fault_of_a_download_is_told_and_a_later_good_run_succeeds(
    server: Hub, make_client: Callable[..., Client], fault: str, artifact: Artifact
) -> None:
    kind, words = OF_HASHED_FILE[fault]
    server.fault(fault, where="/resolve/")
    with pytest.raises(kind, match=words):
        hub.read(artifact, make_client(max_bytes=10_000, timeout=0.1))
    server.faults.clear()
    assert hub.read(artifact, make_client()).data
