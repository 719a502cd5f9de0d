"""Make a record's folder from nothing, or complete it: the artifacts of its profile, verified, and their lock.

    profile → decide for each artifact → keep | copy from the cache | ask its service → check names → place → lock

What lies in the folder as it was locked is kept without asking. What is missing or damaged is brought again, and must
be what was locked. Only `update` asks for what may have changed since, and only then may the lock change.

Bytes are staged in `.fetch/` of the record and get their names when all are there: a name that leads out of the folder,
or that two artifacts would share (also on a disk that does not tell A from a), refuses the whole. The lock is written
last. A fetch that is killed leaves the record as it was; the next one goes on from the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from repro.errors import OutputError, RecordError, UsageError
from repro.files import output_errors, path_inside, read_bounded, write_atomically
from repro.record.artifact_lock import FORMS, LockedArtifact, is_there, read_artifacts, read_resolved, write_artifacts
from repro.record.artifacts import NAME, Artifact, ArtifactKind, Contents
from repro.record.cache import Cache, download, key_of, load
from repro.record.derived import derive
from repro.record.derived_claims import Extract, derive_claims
from repro.record.digests import Digest, sha256
from repro.record.lock import ARTIFACTS, check_lock, make_lock, read_lock
from repro.record.profile import (
    HEADER,
    Steps,
    as_toml,
    own_steps,
    read_profile,
    resolve,
    with_commit,
    with_issue,
    with_linked,
    with_small_files,
)
from repro.record.services import objects, readers
from repro.record.services.content import Content
from repro.record.services.errors import HashMismatch, ServiceError, Unreachable, without_secrets
from repro.record.services.github import linked_issues
from repro.record.services.http import Client
from repro.record.verify import WORKERS, ArtifactStatus, Known, compare, decide

Action = Literal["kept", "from the cache", "fetched", "not there", "skipped"]
STAGE = ".fetch"
PINNED: tuple[ArtifactKind, ...] = ("github-file", "github-tree", "hub-file", "hub-tree")  # fixed by their pin


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a fetch is to do."""

    commit: str = ""  # a commit, short or whole, a branch or a tag; empty: the profile's
    issue: str = ""  # "owner/name#number"; empty: the profile's
    only: str = ""  # artifacts of this kind alone
    update: bool = False  # ask for what may have changed, and take it into the lock
    linked: bool = False  # the issues and pull requests, too, that the run's own thread links
    small_files: bool = False  # the small files, too, that its hub repositories list


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What became of one artifact. `locked` is its entry of the lock; None where it has none."""

    action: Action
    status: ArtifactStatus
    locked: LockedArtifact | None = None

    def as_json(self) -> dict[str, Any]:
        """One row of the result."""
        return {"action": self.action, "path": self.locked.path if self.locked else None, **self.status.as_json()}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A fetched record: its folder, what --commit stood for, a row an artifact, and the tables derived from them."""

    folder: Path
    resolved: Mapping[str, str]
    fetched: tuple[Fetched, ...]
    derived: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The result as one object."""
        actions = [item.action for item in self.fetched]
        return {
            "record": str(self.folder),
            "resolved": dict(self.resolved) or None,
            "artifacts": [item.as_json() for item in self.fetched],
            "summary": {action: actions.count(action) for action in dict.fromkeys(actions)},
            "missing": [item.status.artifact.id for item in self.missing],
            "derived": list(self.derived),
        }

    @property
    def missing(self) -> tuple[Fetched, ...]:
        """What is not there and should be: not what is known to be closed, nor what was not asked for."""
        return tuple(item for item in self.fetched if item.action == "not there" and _is_loss(item.status))


def fetch(
    folder: Path,
    wish: Wish,
    cache: Cache,
    client: Client | None,
    *,
    extract: Extract | None = None,
    seen: Callable[[Fetched], None] = lambda fetched: None,
    planned: Callable[[int], None] = lambda artifacts: None,
) -> Result:
    """Bring the record in `folder` to what its profile asks for. Without a client only the cache is used.

    `extract` reads claims out of the record's texts. `planned` hears how many artifacts there are, `seen` each that is
    done. Raises RecordError where the record, its lock or two names clash, UsageError, OutputError, and NoAnswerError
    where the commit could not be resolved.
    """
    with _held(folder):
        locked, resolved = read_artifacts(folder), read_resolved(folder)
        unfinished = _clear_stage(folder)
        _refuse_other_folder(folder)
        if not unfinished and not wish.update:
            _refuse_changed_files(folder)
        contents = read_profile(folder)
        if wish.issue:
            contents = with_issue(contents, wish.issue)
        if wish.commit:
            found = resolve(contents, wish.commit, client)
            resolved = _resolution(found.name, found.commit, found.how, resolved)
            contents = with_commit(contents, found.commit)
        _refuse_other_lock(folder, contents, locked, wish)
        planned(len(contents.artifacts))
        worker = _Worker(folder, wish, cache, client, locked, own_steps(contents, folder), seen)
        fetched = worker.all(contents.artifacts)
        if wish.linked or wish.small_files:
            grown = with_linked(contents, _links(folder, contents, fetched)) if wish.linked else contents
            grown = with_small_files(grown, _listings(folder, fetched)) if wish.small_files else grown
            more = grown.artifacts[len(contents.artifacts) :]
            planned(len(contents.artifacts) + len(more))
            there = [one for one in worker.all(more) if not _leads_nowhere(one)]
            contents = replace(contents, artifacts=(*contents.artifacts, *(one.status.artifact for one in there)))
            fetched = [*fetched, *there]
        after = {one.status.artifact.id: one.locked for one in fetched if one.locked is not None}
        try:
            targets = check_names(folder, {id: entry.path for id, entry in after.items()})
        except RecordError:
            if not unfinished:
                shutil.rmtree(folder / STAGE, ignore_errors=True)
            raise
        staged = [one.status.artifact for one in fetched if one.action in ("from the cache", "fetched")]
        text = _record_toml(folder, contents, changed=after != locked)
        derived: tuple[str, ...] = ()
        if staged or unfinished or text is not None or after != locked or resolved != read_resolved(folder):
            _place({targets[artifact.id]: folder / STAGE / _stage_name(artifact) for artifact in staged})
            derived = _write_down(folder, text, locked, after, resolved, extract)
        shutil.rmtree(folder / STAGE, ignore_errors=True)
        return Result(folder=folder, resolved=resolved, fetched=tuple(fetched), derived=derived)


@dataclass(frozen=True)
class _Worker:
    """All that is needed to bring one artifact."""

    folder: Path
    wish: Wish
    cache: Cache
    client: Client | None
    locked: Mapping[str, LockedArtifact]
    steps: Mapping[str, Steps]
    seen: Callable[[Fetched], None]

    def all(self, artifacts: Sequence[Artifact]) -> list[Fetched]:
        """Several at once, in the order of the record."""
        with ThreadPoolExecutor(max_workers=WORKERS) as pool:
            return list(pool.map(self.one, artifacts))

    def one(self, artifact: Artifact) -> Fetched:
        """Bring one artifact into the stage, or say why it is not there."""
        start = time.perf_counter()
        fetched = self._bring(artifact)
        fetched = replace(fetched, status=replace(fetched.status, seconds=time.perf_counter() - start))
        self.seen(fetched)
        return fetched

    def _bring(self, artifact: Artifact) -> Fetched:
        before = self.locked.get(artifact.id)
        before = before if before and before.is_of(artifact) else None
        if self.wish.only and artifact.kind != self.wish.only:
            status = ArtifactStatus(artifact=artifact, status="skipped", why="of another kind than --only")
            return Fetched(action="skipped", status=status, locked=before)
        fixed, asks = _is_fixed(artifact), self.client is not None and self.wish.update
        if before and is_there(self.folder, before) and (fixed or not asks or self._says_unchanged(artifact, before)):
            return Fetched(action="kept", status=_status(artifact, before), locked=before)
        key, steps = key_of(artifact, self.steps.get(artifact.id)), self.steps.get(artifact.id)
        known = Known.of(before) if before and (fixed or not self.wish.update) else None
        content = load(self.cache, key)
        if content is not None and self._may_use(content, fixed, before) and not compare(artifact, known, content)[1]:
            return self._staged("from the cache", artifact, content, before, steps)
        try:
            content = self._ask(artifact, key, known, steps)
        except ServiceError as error:
            return Fetched(action="not there", status=decide(artifact, known, error, 0.0), locked=before)
        return self._staged("fetched", artifact, content, before, steps)

    def _may_use(self, content: Content, fixed: bool, before: LockedArtifact | None) -> bool:
        """Whether a cached version will do: what a pin fixes, what was locked, and offline whatever there is."""
        if self.client is None or fixed:
            return True
        return before is not None and not self.wish.update and sha256(content.data).value == before.sha256

    def _ask(self, artifact: Artifact, key: str, known: Known | None, steps: Steps | None) -> Content:
        """Read the artifact from its service into the cache. Raises a ServiceError; HashMismatch for other content."""
        client = self.client
        if client is None:
            raise Unreachable(f"{artifact.url}: not in the cache {self.cache.folder}. Fetch once without --offline.")

        def read() -> Content:
            content = readers.read(artifact, client, steps)
            _, difference = compare(artifact, known, content)
            if difference:
                mend = "If that is meant, correct digest in record.toml." if known is None else "To take it: --update."
                found = sha256(content.data)
                expected = Digest.parse(known.digest if known and known.digest else artifact.digest)
                raise HashMismatch(f"{artifact.url}: {difference}. {mend}", expected, found, content.data)
            return content

        return download(self.cache, key, artifact.url, read)

    def _says_unchanged(self, artifact: Artifact, before: LockedArtifact) -> bool:
        """Whether the store of an object or page gives the ETag that it gave when the artifact was locked."""
        if artifact.kind not in ("object", "page") or not before.etag or self.client is None:
            return False
        try:
            answer = self.client.exchange("HEAD", objects.mirrored(artifact.address), headers=objects.ACCEPT)
        except ServiceError:
            return False
        return answer.status == 200 and answer.headers.get("etag") == before.etag

    def _staged(
        self, action: Action, artifact: Artifact, content: Content, before: LockedArtifact | None, steps: Steps | None
    ) -> Fetched:
        """Put the bytes into the stage, and say what the lock is to hold: what it held, where nothing else came."""
        locked = _entry(artifact, content, steps)
        if before is not None and replace(before, locked_at="", etag="", notes=()) == replace(
            locked, locked_at="", etag="", notes=()
        ):
            locked = before
        write_atomically(self.folder / STAGE / _stage_name(artifact), content.data)
        return Fetched(action=action, status=_status(artifact, locked), locked=locked)


def _is_fixed(artifact: Artifact) -> bool:
    """Whether its pin says what it is for ever."""
    return bool(artifact.pin) and artifact.kind in PINNED


def _is_loss(status: ArtifactStatus) -> bool:
    foreseen = status.artifact.expectation != "available"
    return not status.as_expected or (status.status == "unreachable" and not foreseen)


def _status(artifact: Artifact, locked: LockedArtifact) -> ArtifactStatus:
    opened = artifact.expectation != "available"
    why = f"news: it was {artifact.expectation} and is now open" if opened else "; ".join(locked.notes)
    found = locked.publisher or f"sha256:{locked.sha256}"
    return ArtifactStatus(artifact=artifact, status="ok", found=found, bytes=locked.bytes, why=why)


def _entry(artifact: Artifact, content: Content, steps: Steps | None) -> LockedArtifact:
    return LockedArtifact(
        kind=artifact.kind,
        address=artifact.address,
        pin=artifact.pin,
        steps=steps,
        path=f"{ARTIFACTS}/{content.name}",
        bytes=len(content.data),
        sha256=str(sha256(content.data).value),
        publisher=str(content.digest) if content.digest else "",
        revision=content.resolved,
        etag=without_secrets(content.etag),
        canonical=dict(content.canonical),
        canonical_form=FORMS[artifact.kind] if content.canonical else "",
        notes=tuple(map(without_secrets, content.notes)),
        locked_at=_now(),
    )


def _links(folder: Path, contents: Contents, fetched: Sequence[Fetched]) -> dict[str, str]:
    """Addresses that the run's own thread links, and the id of the artifact that the thread is."""
    result: dict[str, str] = {}
    for one in fetched:
        artifact, locked = one.status.artifact, one.locked
        if artifact.kind == "github-issue" and artifact.url == contents.run.issue and locked is not None:
            data = _bytes_of(folder, artifact, locked)
            thread = Content(data=data, name="", digest=None, canonical={}, resolved="", etag="")
            result |= {address: artifact.id for address in linked_issues(thread)}
    return result


def _listings(folder: Path, fetched: Sequence[Fetched]) -> dict[str, dict[str, Any]]:
    """What was stored of each hub-tree, by the id of the artifact."""
    return {
        one.status.artifact.id: json.loads(_bytes_of(folder, one.status.artifact, one.locked))
        for one in fetched
        if one.status.artifact.kind == "hub-tree" and one.locked is not None
    }


def _bytes_of(folder: Path, artifact: Artifact, locked: LockedArtifact) -> bytes:
    """The bytes of an artifact that is there: in the stage, or at its place."""
    staged = folder / STAGE / _stage_name(artifact)
    return read_bounded(staged if staged.exists() else path_inside(folder, locked.path))


def _leads_nowhere(one: Fetched) -> bool:
    """A link to what is not there is no artifact of the record: people write #1 for many things."""
    return one.action == "not there" and one.status.status == "gone"


def _place(staged: Mapping[Path, Path]) -> None:
    """Give the staged bytes their names."""
    for target, stage in staged.items():
        with output_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(stage, target)


def _write_down(
    folder: Path,
    text: str | None,
    before: Mapping[str, LockedArtifact],
    after: Mapping[str, LockedArtifact],
    resolved: Mapping[str, str],
    extract: Extract | None,
) -> tuple[str, ...]:
    """Write record.toml where it changed, the lock, and what follows from the bytes (tables, then claims, which are
    read with the tables' names at hand), each with its lock; take away what is no artifact any more. The names of what
    was derived."""
    if text is not None:
        write_atomically(folder / NAME, text)
    write_artifacts(folder, after, resolved)
    derived = derive(folder)
    if derived:
        write_artifacts(folder, after, resolved)
    if extract is not None and (claims := derive_claims(folder, extract)):
        write_artifacts(folder, after, resolved)
        derived = (*derived, *claims)
    for path in {entry.path for entry in before.values()} - {entry.path for entry in after.values()}:
        path_inside(folder, path).unlink(missing_ok=True)
    return derived


def check_names(folder: Path, paths: Mapping[str, str]) -> dict[str, Path]:
    """Where each artifact's bytes go. Raises RecordError for a path that leads out of the folder, and for two artifacts
    whose paths are equal on some disk: in another case or Unicode form, or one a folder of the other."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for id, path in paths.items():
        form = unicodedata.normalize("NFC", path).casefold()
        above = ["/".join(form.split("/")[:depth]) for depth in range(1, form.count("/") + 1)]
        other = seen.get(form) or folders.get(form) or next((seen[part] for part in above if part in seen), None)
        if other is not None:
            raise RecordError(
                f"{NAME}: artifacts {other!r} and {id!r} would lie in one place, {paths[other]} and {path}. "
                "Remove one of them; nothing was written."
            )
        seen[form] = id
        folders |= dict.fromkeys(above, id)
    return {id: path_inside(folder, path) for id, path in paths.items()}


def _record_toml(folder: Path, contents: Contents, *, changed: bool) -> str | None:
    """What record.toml is to hold; None where it may stay. A record of today ends today."""
    path = folder / NAME
    ours = not path.is_file() or path.read_bytes().startswith(HEADER.encode())
    if ours and changed:
        contents = replace(contents, run=replace(contents.run, snapshot=datetime.now(UTC).date()))
    return None if path.is_file() and read_profile(folder) == contents else as_toml(contents)


def _refuse_other_folder(folder: Path) -> None:
    """A folder that holds something else does not become a record: the lock would be of all that lies there."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in (".held", STAGE))
    if others and not (folder / NAME).is_file():
        raise UsageError(
            f"{folder} is no record, since it has no {NAME}, and is not empty: it holds {others[0]!r}. "
            "Choose a new folder with --record."
        )


def _clear_stage(folder: Path) -> bool:
    """Empty the stage, and say whether there was one: then a fetch was killed, and the lock may be behind the files.
    The stage itself stays until a fetch has come to its end."""
    stage = folder / STAGE
    if not stage.is_dir():
        return False
    with output_errors(stage):
        for path in stage.iterdir():
            path.unlink()
    return True


def _refuse_changed_files(folder: Path) -> None:
    """A file that was changed since it was locked is an error, not to be locked anew unasked; record.toml may have
    grown."""
    lock = read_lock(folder)
    if lock is not None:
        check_lock(folder, {**lock, **{name: entry for name, entry in make_lock(folder).items() if name == NAME}})


def _refuse_other_lock(folder: Path, contents: Contents, locked: Mapping[str, LockedArtifact], wish: Wish) -> None:
    """Without --update the lock stays: an artifact that was locked at another pin or address is an error."""
    if wish.update:
        return
    artifacts = {artifact.id: artifact for artifact in contents.artifacts}
    for id, entry in locked.items():
        artifact = artifacts.get(id)
        if artifact is None or not entry.is_of(artifact):
            now = f"{artifact.address} at {artifact.pin[:12] or 'no pin'}" if artifact else "not in the record"
            raise RecordError(
                f"{folder}: {id!r} is locked as {entry.address} at {entry.pin[:12] or 'no pin'}, and would be {now}. "
                "To take that into the lock: fetch --update; or choose another folder with --record."
            )


def _resolution(name: str, commit: str, how: str, before: Mapping[str, str]) -> dict[str, str]:
    """What the lock says of --commit; as before, where nothing else came of it."""
    now = {"name": name, "commit": commit, "how": how}
    same = {key: before.get(key) for key in now} == now
    return dict(before) if same else {**now, "at": _now()}


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Be the only process that writes this record. Raises OutputError where another one is."""
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".held", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(
                f"{folder} is being written by another fetch. Wait for it, or choose another folder with --record."
            ) from error
        yield
    finally:
        os.close(handle)  # gives the lock back


def _stage_name(artifact: Artifact) -> str:
    return hashlib.sha256(artifact.id.encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
