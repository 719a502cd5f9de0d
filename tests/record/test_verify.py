"""Deciding what became of an artifact, and what an outsider can still do."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import get_args

import pytest

from repro.record.artifacts import Artifact, Role
from repro.record.digests import Digest
from repro.record.services.content import Content
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
from repro.record.verify import STATUSES, Known, capabilities, decide, report, verify_artifacts

SHA = "sha256:" + hashlib.sha256(b"bytes").hexdigest()
OTHER = "sha256:" + "0" * 64


def artifact(id: str = "a", role: str = "metrics", digest: str = "none", **more: str) -> Artifact:
    return Artifact(id=id, role=role, kind="object", address="https://a.test/a", digest=digest, **more)  # type: ignore[arg-type]


def content(digest: str | None = None, canonical: dict[str, str] | None = None) -> Content:
    known = Digest.parse(digest) if digest else None
    return Content(b"bytes", "a", known, canonical or {}, resolved="", etag="")


MISMATCH = HashMismatch("wrong", Digest.parse(OTHER), Digest.parse(SHA), b"bytes")


@pytest.mark.parametrize(
    ("outcome", "status", "as_expected"),
    [
        (Forbidden("no", 403), "forbidden", False),
        (Gone("no", 404), "gone", False),
        (Unreachable("no"), "unreachable", True),
        (RateLimited("no"), "unreachable", True),
        (TooLarge("no"), "unverifiable", False),
        (Malformed("no"), "unverifiable", False),
        (MISMATCH, "changed", False),
    ],
)
def test_each_error_of_a_service_is_a_status(outcome: ServiceError, status: str, as_expected: bool) -> None:
    decided = decide(artifact(), None, outcome, 0.5)
    assert (decided.status, decided.as_expected) == (status, as_expected)
    assert decided.why


def test_what_was_expected_to_be_forbidden_is_no_surprise_and_its_opening_is_news() -> None:
    closed = artifact(expectation="forbidden")
    assert decide(closed, None, Forbidden("no", 403), 0).as_expected
    opened = decide(closed, None, content(), 0)
    assert (opened.status, opened.as_expected) == ("ok", False)
    assert "now open" in opened.why


@pytest.mark.parametrize(
    ("pinned", "known", "found", "status"),
    [
        (SHA, None, None, "ok"),
        (OTHER, None, None, "changed"),
        ("none", Known(digest=SHA), None, "ok"),
        ("none", Known(digest=OTHER), None, "changed"),
        ("crc32c", Known(digest="crc32c:00000000"), "crc32c:00000000", "ok"),
        ("crc32c", Known(digest="crc32c:00000000"), "crc32c:00000001", "changed"),
        ("none", None, None, "unverifiable"),
    ],
)
def test_bytes_are_held_against_the_pin_and_the_lock(
    pinned: str, known: Known | None, found: str | None, status: str
) -> None:
    assert decide(artifact(digest=pinned), known, content(found), 0).status == status


def test_a_publishers_hash_at_a_pin_needs_no_lock() -> None:
    at_a_pin = artifact(digest="git-sha1", pin="1" * 40)
    assert decide(at_a_pin, None, content("git-sha1:" + "2" * 40), 0).status == "ok"


def test_an_edited_comment_is_named() -> None:
    known = Known(canonical={"comment 1": "x", "comment 2": "y", "comment 3": "z"})
    decided = decide(artifact(), known, content(canonical={"comment 1": "x", "comment 2": "Y", "comment 4": "w"}), 0)
    assert decided.status == "changed"
    assert decided.why == "comment 2 changed; comment 3 deleted; comment 4 added"
    assert decide(artifact(), known, content(canonical=dict(known.canonical)), 0).status == "ok"


def test_the_order_is_the_records_and_what_is_not_chosen_is_skipped() -> None:
    artifacts = [artifact(str(number)) for number in range(20)]
    heard = []
    statuses = verify_artifacts(
        artifacts,
        Client(),
        lambda one, client: content(SHA),
        {},
        chosen=lambda one: int(one.id) % 2 == 0,
        seen=lambda one: heard.append(one.artifact.id),
    )
    assert [one.artifact.id for one in statuses] == [one.id for one in artifacts]
    assert sorted(heard, key=int) == [one.id for one in artifacts]
    assert [one.status for one in statuses[:2]] == ["unverifiable", "skipped"]


def test_a_bug_of_ours_is_not_a_status() -> None:
    def read(one: Artifact, client: Client) -> Content:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        verify_artifacts([artifact()], Client(), read, {})


def test_a_loss_is_said_as_a_lost_capability() -> None:
    statuses = [
        decide(artifact("configuration", "config"), Known(digest=SHA), content(), 0),
        decide(artifact("code", "launcher code"), Known(digest=SHA), content(), 0),
        decide(artifact("weights", "data manifest"), Known(digest=SHA), content(), 0),
        decide(artifact("store", "corpus", expectation="forbidden"), None, Forbidden("no", 403), 0),
        decide(artifact("losses", "metrics"), None, Unreachable("no"), 0),
        decide(artifact("paloma", "eval set", expectation="gated"), None, Forbidden("no", 403), 0),
    ]
    found = capabilities(statuses)
    assert found == {
        "exact replay": {"verdict": "not possible", "because_of": ["store"], "with_login": []},
        "statistical rerun": {"verdict": "possible", "because_of": [], "with_login": ["paloma"]},
        "refit": {"verdict": "unknown", "because_of": ["losses"], "with_login": []},
        "inspection": {"verdict": "unknown", "because_of": ["losses"], "with_login": []},
    }


@pytest.mark.parametrize("role", get_args(Role))
def test_every_role_that_is_lost_costs_a_capability(role: str) -> None:
    found = capabilities([decide(artifact("a", role), None, Gone("no", 404), 0)])
    assert [name for name, one in found.items() if one["verdict"] == "not possible"]


def test_a_thread_whose_comment_was_edited_can_still_be_read() -> None:
    edited = replace(content(), canonical={"comment 1": "b" * 64})
    one = decide(artifact("thread", "discussion"), Known(canonical={"comment 1": "a" * 64}), edited, 0)
    assert (one.status, one.why) == ("changed", "comment 1 changed")
    assert [one.expected[:10], one.found[:10]] == ["canonical:"] * 2
    assert one.expected != one.found
    assert capabilities([one])["inspection"]["verdict"] == "possible"


def test_the_report_has_the_contracts_keys() -> None:
    told = report([decide(artifact(digest=SHA), None, content(), 0.25)])
    assert {"id", "kind", "url", "status", "expected", "found", "bytes", "seconds"} <= told["artifacts"][0].keys()
    assert list(told["summary"]) == list(STATUSES)
    assert told["summary"]["ok"] == 1
