"""Can it still be downloaded, and is it still the same: one status for each artifact of a record.

    ok            there, and equal to its pin, its digest or its lock
    changed       there, but not the bytes that were pinned or locked
    gone          no longer there
    forbidden     not open to us; expected for some artifacts, a finding for others
    unreachable   no answer, or asked to come back later: nothing is known
    unverifiable  there, but nothing is known to compare it with, or the answer is not what the address should give
    skipped       not asked for this time

Asking and deciding are apart: `decide` is a pure function of what was expected and what came. Nothing is kept between
two verifications.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from repro.record.artifact_lock import LockedArtifact
from repro.record.artifacts import Artifact
from repro.record.digests import Digest, matches, sha256
from repro.record.services.content import Content, canonical_sha256
from repro.record.services.errors import (
    Forbidden,
    Gone,
    HashMismatch,
    RateLimited,
    ServiceError,
    Unreachable,
)
from repro.record.services.http import Client

Status = Literal["ok", "changed", "gone", "forbidden", "unreachable", "unverifiable", "skipped"]
WORKERS = 48  # at once; most wait for their turn at a host (http.py), and so do not keep other hosts waiting
STATUSES: tuple[Status, ...] = get_args(Status)
Read = Callable[[Artifact, Client], Content]
Explain = Callable[[Artifact, Content], str]

# What an outsider can do, and which roles it takes. One artifact of a role that is lost takes the capability with it.
RECIPE = ("config", "launcher code", "data order", "data manifest", "mixture", "licence")
CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    "exact replay": (*RECIPE, "corpus", "checkpoint"),
    "statistical rerun": (*RECIPE, "eval set"),  # it is judged by the published evaluations
    "refit": ("metrics",),
    "inspection": ("config", "launcher code", "discussion", "metrics"),
}
LOST: Mapping[str, tuple[Status, ...]] = {  # what has changed can still be read, but no longer be run again
    **dict.fromkeys(CAPABILITIES, ("changed", "gone", "forbidden")),
    "inspection": ("gone", "forbidden"),
}


@dataclass(frozen=True, kw_only=True)
class Known:
    """What an artifact was when it was locked."""

    digest: str = ""  # "kind:value" of the publisher, or of our own
    canonical: Mapping[str, str] = field(default_factory=dict)  # part: SHA-256 of its canonical form

    @classmethod
    def of(cls, locked: LockedArtifact) -> Known:
        """What the lock says: the publisher's hash, else canonical parts, else our own hash of the bytes."""
        own = "" if locked.canonical else f"sha256:{locked.sha256}"
        return cls(digest=locked.publisher or own, canonical=locked.canonical)


@dataclass(frozen=True, kw_only=True)
class ArtifactStatus:
    """What became of one artifact. `expected` says whether the record foresaw it."""

    artifact: Artifact
    status: Status
    as_expected: bool = True
    expected: str = ""
    found: str = ""
    bytes: int | None = None
    seconds: float = 0.0
    why: str = ""
    only_grew: bool = False  # changed by additions alone: what was locked is still there
    text: str = ""  # how what changed reads beside what was locked, where that was asked for

    def as_json(self) -> dict[str, Any]:
        """The contract's object, with the reason and whether it was foreseen."""
        return {
            "id": self.artifact.id,
            "kind": self.artifact.kind,
            "role": self.artifact.role,
            "url": self.artifact.url,
            "status": self.status,
            "as_expected": self.as_expected,
            "expected": self.expected,
            "found": self.found,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "why": self.why,
            **({"text": self.text} if self.text else {}),
        }


def verify_artifacts(
    artifacts: Sequence[Artifact],
    client: Client,
    read: Read,
    known: Mapping[str, Known],
    *,
    chosen: Callable[[Artifact], bool] = lambda artifact: True,
    workers: int = WORKERS,
    explain: Explain | None = None,
    seen: Callable[[ArtifactStatus], None] = lambda status: None,
) -> list[ArtifactStatus]:
    """Ask for every chosen artifact, several at once, and decide; in the order of the record. `explain` says how what
    changed reads beside what was locked, `seen` hears each."""

    def one(artifact: Artifact) -> ArtifactStatus:
        if chosen(artifact):
            status = ask(artifact, client, read, known.get(artifact.id), explain)
        else:
            status = _skipped(artifact)
        seen(status)
        return status

    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(one, artifacts))


def ask(
    artifact: Artifact, client: Client, read: Read, known: Known | None, explain: Explain | None = None
) -> ArtifactStatus:
    """Read one artifact and decide what that means. Only results of the service are caught; a bug of ours is not."""
    start = time.perf_counter()
    outcome: Content | ServiceError
    try:
        outcome = read(artifact, client)
    except ServiceError as error:
        outcome = error
    status = decide(artifact, known, outcome, time.perf_counter() - start)
    if explain is not None and status.status == "changed" and isinstance(outcome, Content):
        return replace(status, text=explain(artifact, outcome))
    return status


def decide(artifact: Artifact, known: Known | None, outcome: Content | ServiceError, seconds: float) -> ArtifactStatus:
    """The status of an artifact from what was expected and what came."""
    expected = _expected(artifact, known)

    def status(
        name: Status,
        why: str,
        *,
        as_expected: bool = True,
        found: str = "",
        size: int | None = None,
        only_grew: bool = False,
    ) -> ArtifactStatus:
        return ArtifactStatus(
            artifact=artifact,
            status=name,
            as_expected=as_expected,
            expected=expected,
            found=found,
            bytes=size,
            seconds=seconds,
            why=why,
            only_grew=only_grew,
        )

    foreseen = artifact.expectation != "available"
    match outcome:
        case Forbidden():
            return status("forbidden", str(outcome), as_expected=foreseen)
        case Gone():
            return status("gone", str(outcome), as_expected=False)
        case Unreachable() | RateLimited():
            return status("unreachable", str(outcome))
        case HashMismatch():
            size = len(outcome.data)
            return status("changed", str(outcome), as_expected=False, found=str(outcome.found), size=size)
        case ServiceError():
            return status("unverifiable", str(outcome), as_expected=False)
    found, difference = compare(artifact, known, outcome)
    size = len(outcome.data)
    if difference:
        grew = known is not None and bool(known.canonical) and known.canonical.items() <= outcome.canonical.items()
        return status("changed", difference, as_expected=False, found=found, size=size, only_grew=grew)
    if foreseen:
        return status(
            "ok", f"news: it was {artifact.expectation} and is now open", as_expected=False, found=found, size=size
        )
    if not expected and not (outcome.digest and artifact.pin):
        return status("unverifiable", "there; nothing was locked to compare it with", found=found, size=size)
    return status("ok", "", found=found, size=size)


def compare(artifact: Artifact, known: Known | None, content: Content) -> tuple[str, str]:
    """What was found, and how it differs from the record's digest and the lock; an empty difference where it does not.

    A publisher that gives another kind of hash than before is no difference: then the bytes themselves are hashed.
    """
    parts = Digest("canonical", canonical_sha256(dict(content.canonical)))  # of all parts together
    found = str(content.digest or (parts if content.canonical else sha256(content.data)))
    for text in filter(None, (artifact.digest, known.digest if known else "")):
        wanted = Digest.parse(text)
        if wanted.value is None or content.digest == wanted:
            continue
        if content.digest and content.digest.kind == wanted.kind:
            return found, f"hash-mismatch: expected {wanted}, found {found}"
        if wanted.kind == "canonical":
            if parts != wanted:
                return str(parts), f"expected {wanted}, found {parts}"
        elif not matches(content.data, wanted):
            return found, f"hash-mismatch: expected {wanted}, found other bytes ({found})"
    if known and known.canonical:
        return found, parts_that_differ(known.canonical, content.canonical)
    return found, ""


def fails(one: ArtifactStatus, fail_on: Collection[str]) -> bool:
    """Whether the status is one of those to fail on; what was known to be closed may be."""
    return one.status in fail_on and not (one.status == "forbidden" and one.as_expected)


def could_not_tell(one: ArtifactStatus) -> bool:
    """Whether nothing is known of it: no answer, or one that is not what the address should give (a login page)."""
    return one.status == "unreachable" or (one.status == "unverifiable" and not one.as_expected)


def sample(artifacts: Sequence[Artifact], number: int, seed: int) -> frozenset[str]:
    """Ids of `number` artifacts, the same for the same ids and seed, whatever their order."""
    ids = sorted(artifact.id for artifact in artifacts)
    return frozenset(ids if number >= len(ids) else random.Random(seed).sample(ids, number))


def capabilities(statuses: Iterable[ArtifactStatus]) -> dict[str, dict[str, Any]]:
    """What an outsider can still do: possible, not possible or unknown, and because of which artifacts; possible only
    `with_login` to those whose terms must be accepted, as the record knows. A thread that only grew is no loss."""
    by_role: dict[str, list[ArtifactStatus]] = {}
    for one in statuses:
        by_role.setdefault(one.artifact.role, []).append(one)
    result = {}
    for capability, roles in CAPABILITIES.items():
        needed = [one for role in roles for one in by_role.get(role, ())]
        gated = [one for one in needed if one.status == "forbidden" and one.artifact.expectation == "gated"]
        missing = [one for one in needed if one.status in LOST[capability] and not one.only_grew]
        lost = [one.artifact.id for one in missing if one not in gated]
        unknown = [one.artifact.id for one in needed if one.status in ("unreachable", "skipped")]
        verdict = "not possible" if lost else "unknown" if unknown or not needed else "possible"
        with_login = [one.artifact.id for one in gated]
        result[capability] = {"verdict": verdict, "because_of": lost or unknown, "with_login": with_login}
    return result


def report(statuses: Sequence[ArtifactStatus]) -> dict[str, Any]:
    """The contract's verify object."""
    return {
        "artifacts": [one.as_json() for one in statuses],
        "summary": {name: sum(one.status == name for one in statuses) for name in STATUSES},
        "capabilities": capabilities(statuses),
    }


def _expected(artifact: Artifact, known: Known | None) -> str:
    """What the artifact must be: the record's digest, else the lock's."""
    if Digest.parse(artifact.digest).value:
        return artifact.digest
    if known is None:
        return ""
    return known.digest or f"canonical:{canonical_sha256(dict(known.canonical))}"


def parts_that_differ(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which parts changed, went and came, in words; empty where none did."""
    changed = [part for part in before if part in now and before[part] != now[part]]
    lost = [part for part in before if part not in now]
    added = [part for part in now if part not in before]
    words = [
        f"{', '.join(parts[:5])}{f' and {len(parts) - 5} more' if len(parts) > 5 else ''} {what}"
        for parts, what in ((changed, "changed"), (lost, "deleted"), (added, "added"))
        if parts
    ]
    return "; ".join(words)


def _skipped(artifact: Artifact) -> ArtifactStatus:
    return ArtifactStatus(artifact=artifact, status="skipped", why="not asked for this time")
