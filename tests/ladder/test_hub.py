"""Tokenizers and revisions from the hub's stand-in, over HTTP, through `huggingface_hub` itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from repro.errors import UsageError
from repro.ladder.sources import HubDataset, pin
from repro.ladder.tokenizing import load_tokenizer
from tests.ladder.small_tokenizer import write_tokenizer
from tests.servers.hub import REVISION, Hub

NAME, OTHER = "owner/small", "b" * 40
SHOW = "import sys; from repro.ladder.tokenizing import load_tokenizer as load; print(load(sys.argv[1]).identity)"


@pytest.fixture
def file(tmp_path: Path) -> bytes:
    return write_tokenizer(tmp_path / "tokenizer.json").read_bytes()


@pytest.fixture
def hub(file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The stand-in, asked by this process, with an empty cache."""
    with Hub(repo=NAME, files={"tokenizer.json": file}, names={"v1": OTHER, OTHER: OTHER}) as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"  # as the library makes it of HF_ENDPOINT
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def identity_elsewhere(name: str, cache: Path, **settings: str) -> str:
    """The tokenizer's identity as another process has it, or the last line of its error."""
    environment = {**os.environ, "HF_HOME": str(cache), **settings}
    done = subprocess.run(
        [sys.executable, "-c", SHOW, name], capture_output=True, text=True, check=False, env=environment
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def test_a_tokenizer_of_the_hub_is_known_by_commit_and_digest(hub: Hub, file: bytes, tmp_path: Path) -> None:
    found = load_tokenizer(f"hub:{NAME}@main").identity
    assert found.name == f"hub:{NAME}@{REVISION}"
    assert found.sha256 == hashlib.sha256(file).hexdigest()
    assert found.same_as(load_tokenizer(tmp_path / "tokenizer.json").identity)
    assert load_tokenizer(f"hub:{NAME}@v1").identity.name == f"hub:{NAME}@{OTHER}"


def test_a_commit_that_is_in_the_cache_is_not_asked_for(hub: Hub) -> None:
    first = load_tokenizer(f"hub:{NAME}@{REVISION}").identity
    before = len(hub.requests)
    assert load_tokenizer(f"hub:{NAME}@{REVISION}").identity == first
    assert len(hub.requests) == before


def test_endpoint_and_offline_are_those_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "home"
    offline = {"HF_HUB_OFFLINE": "1"}
    online = identity_elsewhere(f"hub:{NAME}@main", cache, HF_ENDPOINT=hub.url)
    assert online.startswith(f"hub:{NAME}@{REVISION} (SHA-256 ")
    asked = len(hub.requests)
    assert identity_elsewhere(f"hub:{NAME}@{REVISION}", cache, HF_ENDPOINT=hub.url, **offline) == online
    message = identity_elsewhere(f"hub:{NAME}@main", cache, HF_ENDPOINT=hub.url, **offline)
    assert f"tokenizer {NAME} at main: OfflineModeIsEnabled" in message
    assert "a commit needs no asking" in message
    assert len(hub.requests) == asked


def test_a_dead_network_is_no_reason_to_take_an_older_file(hub: Hub) -> None:
    load_tokenizer(f"hub:{NAME}@main")
    hub.fault("status 503", where="/api/")
    with pytest.raises(UsageError, match=rf"tokenizer {NAME} at main: .*503.* a commit needs no asking"):
        load_tokenizer(f"hub:{NAME}@main")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hub:owner/other@main", r"tokenizer owner/other at main: RepositoryNotFoundError"),
        (f"hub:{NAME}@v2", rf"tokenizer {NAME} at v2: RevisionNotFoundError"),
        (f"hub:{NAME}", r"named hub:NAME@REVISION, best by its commit"),
        ("hub:@main", r"named hub:NAME@REVISION"),
        ("hub:a b@main", r"tokenizer a b at main: HFValidationError"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_named(hub: Hub, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_tokenizer(name)


def test_a_repository_without_the_file_says_so(hub: Hub) -> None:
    hub.files.clear()
    with pytest.raises(UsageError, match=r"EntryNotFoundError: .* it must have a tokenizer\.json"):
        load_tokenizer(f"hub:{NAME}@main")


def test_a_branch_of_a_data_set_is_pinned_to_its_commit(hub: Hub) -> None:
    hub.kind = "datasets"
    assert pin(NAME, "main", split="test") == HubDataset(name=NAME, commit=REVISION, split="test")
    assert pin(NAME, "v1").commit == OTHER
    before = len(hub.requests)
    assert pin(NAME, "c" * 40).commit == "c" * 40
    assert len(hub.requests) == before
    with pytest.raises(UsageError, match=rf"data set {NAME} at v9: RevisionNotFoundError"):
        pin(NAME, "v9")
