"""Every fault of every service, through fetch and verify: a right status, a clear message, nothing wrong in the cache,
and a later good run that heals it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from repro.record.artifact_lock import read_artifacts
from repro.record.artifacts import Artifact, read_contents
from repro.record.fetch import Result
from repro.record.services import content, http, readers
from repro.record.services.errors import (
    Forbidden,
    Gone,
    HashMismatch,
    Malformed,
    RateLimited,
    ServiceError,
    TooLarge,
    Unreachable,
)
from repro.record.services.http import Client
from repro.record.verify import ArtifactStatus, Known, ask, verify_artifacts
from tests.record.world import TOML, World, write_record
from tests.servers.base import Answer, Request
from tests.servers.github import comment
from tests.servers.outcomes import OF_HASHED_FILE, OF_JSON, Outcome

Bring = Callable[..., Result]
ARTIFACTS = {item.id: item for item in read_contents(TOML.encode()).artifacts}
HEAD = TOML.partition("[[artifact]]")[0]
ENTRIES = {re.search(r'id = "(\w+)"', part)[1]: f"[[artifact]]{part}" for part in TOML.split("[[artifact]]")[1:]}  # type: ignore[index]
STATUS: Mapping[type[ServiceError], str] = {
    **{RateLimited: "unreachable", Unreachable: "unreachable", Forbidden: "forbidden", Gone: "gone"},
    **{TooLarge: "unverifiable", Malformed: "unverifiable", HashMismatch: "changed"},
}
OF_POST = {  # a question that is asked with POST does not follow a redirect
    **OF_JSON,
    **{fault: (Malformed, "a POST was redirected") for fault in OF_JSON if "redirect" in fault},
}
CASES: Mapping[str, tuple[str, Mapping[str, Outcome]]] = {  # artifact: which requests have the fault, and what comes
    "code": ("/raw/", OF_HASHED_FILE),
    "folder": ("/git/", OF_JSON),
    "thread": ("/issues/", OF_JSON),
    "run": ("/graphql", OF_POST),
    "report": ("/graphql", OF_POST),
    "tokenizer": ("/api/models", OF_JSON),
    "vocabulary": ("/resolve/", OF_HASHED_FILE),
    "results": ("/final/", OF_HASHED_FILE),
    "page": ("/note/", OF_HASHED_FILE),
}


def look(artifact: Artifact, client: Client, known: Known | None = None) -> ArtifactStatus:
    return ask(artifact, client, readers.read, known)


@pytest.mark.parametrize(("id", "fault"), [(id, fault) for id, (_, table) in CASES.items() for fault in table])
def test_a_fault_is_told_and_leaves_nothing_wrong(
    id: str,
    fault: str,
    public: World,
    bring: Bring,
    made_client: Callable[..., Client],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, table = CASES[id]
    kinds, words = table[fault]
    expected = {STATUS[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,))}
    artifact = ARTIFACTS[id]
    write_record(tmp_path / "record", HEAD + ENTRIES[id])
    monkeypatch.setattr(http, "MAX_ANSWER", 2**20)
    public.serving(artifact.kind).fault(fault, where=where)

    (failed,) = bring(timeout=0.08, max_bytes=2**20).fetched
    assert failed.action == "not there"
    assert failed.status.status in expected, failed.status.why
    assert re.search(words, failed.status.why), failed.status.why
    assert "\n" not in failed.status.why
    assert list((tmp_path / "cache" / "entries").iterdir()) == []
    aside = list((tmp_path / "cache" / "quarantine").glob("*"))
    assert bool(aside) == (failed.status.status == "changed")
    assert not (tmp_path / "record" / "artifacts").exists()
    assert read_artifacts(tmp_path / "record") == {}

    with made_client(timeout=0.08, max_bytes=2**20) as client:
        assert look(artifact, client).status == failed.status.status

    public.heal()
    public.forget()
    (healed,) = bring().fetched
    assert (healed.action, healed.status.status) == ("fetched", "ok")
    locked = read_artifacts(tmp_path / "record")[id]
    with made_client() as client:
        assert look(artifact, client, Known.of(locked)).status == "ok"


# Faults of one service alone


def verified(public: World, tmp_path: Path, made_client: Callable[..., Client]) -> dict[str, ArtifactStatus]:
    locked = read_artifacts(tmp_path / "record")
    known = {id: Known.of(entry) for id, entry in locked.items()}
    with made_client() as client:
        found = verify_artifacts(tuple(ARTIFACTS.values()), client, readers.read, known)
    return {one.artifact.id: one for one in found}


def test_a_deleted_repository_is_gone(public: World, bring: Bring, tmp_path: Path, made_client: Callable) -> None:
    bring()
    public.github.repo = "someone/else"
    found = verified(public, tmp_path, made_client)
    assert [found[id].status for id in ("code", "folder", "thread", "results")] == ["gone", "gone", "gone", "ok"]


def test_a_moved_repository_is_followed(public: World, bring: Bring, tmp_path: Path, made_client: Callable) -> None:
    bring()
    public.github.moved_to = "marin-community/new"
    assert verified(public, tmp_path, made_client)["thread"].status == "ok"


def test_a_revision_that_was_rewritten_is_gone(
    public: World, bring: Bring, tmp_path: Path, made_client: Callable
) -> None:
    bring()
    public.hub.revision = "b" * 40
    found = verified(public, tmp_path, made_client)
    assert found["tokenizer"].status == found["vocabulary"].status == "gone"
    assert "moved, or its history was rewritten" in found["tokenizer"].why


def test_a_repository_that_closes_is_forbidden_and_not_expected(
    public: World, bring: Bring, tmp_path: Path, made_client: Callable
) -> None:
    bring()
    public.hub.gated = "manual"
    found = verified(public, tmp_path, made_client)["vocabulary"]
    assert (found.status, found.as_expected) == ("forbidden", False)


def test_a_clock_that_goes_wrong_changes_nothing(public: World, bring: Bring) -> None:
    for server in public.servers:
        server.skew = -400 * 86400.0
    assert not bring().missing


def test_a_page_that_comes_twice_is_not_stored(public: World, bring: Bring, tmp_path: Path) -> None:
    repo = public.github.repo
    public.github.comments[8435] = [comment(repo, 8435, number, "text") for number in range(1, 151)]
    public.github.duplicate_pages = True
    (missing,) = bring().missing
    assert (missing.status.artifact.id, missing.status.status) == ("thread", "unverifiable")
    public.github.duplicate_pages = False
    assert not bring().missing
    assert len(read_artifacts(tmp_path / "record")["thread"].canonical) == 151


def test_one_service_that_is_down_does_not_keep_the_others_from_coming(public: World, bring: Bring) -> None:
    public.wandb.fault("no answer")
    result = bring()
    assert [one.status.artifact.id for one in result.missing] == ["run", "report"]
    assert {one.status.status for one in result.missing} == {"unreachable"}
    public.heal()
    public.forget()
    assert not bring().missing
    assert {request.split()[0] for request in public.asked()} == {"POST", "GET"}
    assert len(public.asked()) == 4  # of W&B three, and the store that is closed


def test_a_budget_that_is_spent_says_when_to_come_back(public: World, bring: Bring) -> None:
    public.github.remaining = 0
    missing = {one.status.artifact.id: one.status.why for one in bring().missing}
    assert set(missing) == {"code", "folder", "thread"}
    assert re.search(r"Come back at (\d{4}-\d\d-\d\d )?\d\d:\d\d UTC, or set GITHUB_TOKEN", missing["thread"])


def test_right_size_and_wrong_bytes_against_the_records_own_digest(bring: Bring, tmp_path: Path) -> None:
    declared = ENTRIES["page"].replace('"crc32c"', f'"sha256:{"0" * 64}"')
    write_record(tmp_path / "record", HEAD + declared)
    (missing,) = bring().missing
    assert missing.status.status == "changed"
    assert re.search(
        r"hash-mismatch: expected sha256:0+, found other bytes .* correct digest in record.toml", missing.status.why
    )
    (aside,) = (tmp_path / "cache" / "quarantine").iterdir()
    assert str(aside) in missing.status.why
    assert aside.read_bytes() == b"<html><p>Note</p>\n</html>"


def test_a_sha256_of_forty_digits_is_refused_before_anything_is_asked(
    public: World, bring: Bring, tmp_path: Path
) -> None:
    from repro.errors import RecordError

    write_record(tmp_path / "record", HEAD + ENTRIES["page"].replace('"crc32c"', f'"sha256:{"a" * 40}"'))
    public.forget()
    with pytest.raises(RecordError, match=r"page, digest.*is not a sha256: its form is that of git-sha1"):
        bring()
    assert public.asked() == []


def test_a_damaged_entry_of_the_cache_is_not_used(public: World, bring: Bring, tmp_path: Path) -> None:
    bring()
    for entry in (tmp_path / "cache" / "entries").iterdir():
        data = bytearray(entry.read_bytes())
        data[-1] ^= 1
        entry.write_bytes(data)
    assert {one.action for one in bring("second").fetched} == {"fetched", "not there"}
    assert len(list((tmp_path / "cache" / "quarantine").iterdir())) == 9
    assert not bring("third", offline=True).missing


def test_a_too_large_artifact_names_the_option(public: World, bring: Bring) -> None:
    missing = {one.status.artifact.id: one.status.why for one in bring(max_bytes=5).missing}
    assert set(missing) >= {"code", "vocabulary", "results", "page"}
    assert "--max-bytes" in missing["code"]


def test_the_option_raises_the_bound_too(public: World, bring: Bring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "LIMITS", dict.fromkeys(content.LIMITS, 5))
    assert "Raise --max-bytes" in {one.status.artifact.id: one.status.why for one in bring().missing}["results"]
    assert not bring(max_bytes=2**20).missing


def test_known_digests_of_every_kind_are_compared(bring: Bring, tmp_path: Path, public: World) -> None:
    """A store that gives another kind of hash than was locked: the bytes are hashed themselves."""
    bring()
    known = Known.of(read_artifacts(tmp_path / "record")["results"])
    assert known.digest.startswith("crc32c:")
    artifact = replace(ARTIFACTS["results"], digest="md5")
    with Client(sleep=lambda seconds: None) as client:
        assert look(artifact, client, known).status == "ok"
        public.store.objects["final/results.csv"] = b"a,b\n1,3\n"
        assert look(artifact, client, known).status == "changed"


def test_a_tree_that_lies_is_not_kept_to_be_believed_later(public: World, bring: Bring) -> None:
    """A tree never changes, so its kept answer would come back with every 304."""

    def lie(request: Request, answer: Answer) -> Answer:
        return replace(answer, body=answer.body.replace(b"100644", b"100755"))

    public.github.change(lie, where="/git/trees/")
    missing = {one.status.artifact.id: one.status for one in bring().missing}
    assert {one.status for one in missing.values()} == {"unverifiable"}
    assert set(missing) == {"code", "folder"}
    public.heal()
    assert not bring().missing
