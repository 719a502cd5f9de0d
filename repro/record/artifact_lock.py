"""What `fetch` brought, as record.lock.json holds it: an entry an artifact, and its bytes below `artifacts/`.

    "resolved":  {"repository": "owner/name", "name": "main", "commit": "<40 hex>", "how": "branch or tag", "at": "…"}
    "artifacts": {"<id of record.toml>": {"kind", "address", "pin", "path", "bytes", "sha256", "publisher", …}, …}

`path` is relative to the record's folder, `bytes` and `sha256` are of what lies there. `publisher` is the publisher's
own hash, "kind:value"; where there is none, `canonical` has a SHA-256 for each part, and `canonical_form` says of what.
An entry is written on first sight, and never again but by `fetch --update`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from repro.errors import RecordError
from repro.files import path_inside, read_bounded
from repro.record.artifacts import Artifact, ArtifactKind, Commit
from repro.record.digests import sha256
from repro.record.entries import ENTRY, read_entry
from repro.record.lock import ARTIFACTS, LOCK, RESOLVED, read_content, write_lock

FORMS: Mapping[ArtifactKind, str] = {  # of what `canonical` has the hashes; the readers of services make them
    "github-tree": "tree: every entry's path, mode, id and size",
    "github-issue": "issue: title, id, author's id, time, text; comment <id>: id, author's id, time, text",
    "wandb-run": "config; of an ended run also state, summary, and each metric's rows [step, time, value] if all came",
    "wandb-report": "title; spec",
    "hub-tree": "each file: path, size, blob id, LFS SHA-256",
    "object": "each key of the listing: key, size, ETag",
    "page": "text: what a reader sees, one line a block",
}


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class LockedArtifact:
    """What one artifact was when it was locked."""

    kind: ArtifactKind
    address: str
    pin: Commit = ""
    steps: tuple[int, int | None] | None = None  # of a W&B run: first and end (exclusive) of its own segment
    path: str  # below the record's folder, `/` between its parts
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    publisher: str = ""  # "kind:value"
    revision: str = ""  # the commit or revision that was read
    etag: str = ""
    canonical: Mapping[str, str] = Field(default_factory=dict)  # part: SHA-256 of its canonical form
    canonical_form: str = ""
    notes: tuple[str, ...] = ()
    locked_at: str  # date and time, UTC

    def is_of(self, artifact: Artifact) -> bool:
        """Whether the artifact is still the one that was locked."""
        return (self.kind, self.address, self.pin) == (artifact.kind, artifact.address, artifact.pin)

    def as_json(self) -> dict[str, Any]:
        """As it stands in the lock; what is empty is left out."""
        return {name: value for name, value in asdict(self).items() if value not in ("", None, (), {})}


def read_artifacts(folder: Path) -> dict[str, LockedArtifact]:
    """The locked artifacts by id; none where the record was never fetched. Raises RecordError for a malformed lock."""
    entries = (read_content(folder) or {}).get(ARTIFACTS, {})
    result = {}
    for id, entry in entries.items():
        where = f"{folder / LOCK}, {ARTIFACTS}, {id}"
        if not isinstance(entry, dict):
            raise RecordError(f"{where}: must be an object. Take the lock back from version control, or fetch anew.")
        result[id] = locked = read_entry(LockedArtifact, entry, where)
        if not locked.path.startswith(f"{ARTIFACTS}/"):
            raise RecordError(f"{where}, path: {locked.path!r} does not lie below {ARTIFACTS}/. Fetch anew.")
        path_inside(folder, locked.path)
    return result


def read_resolved(folder: Path) -> dict[str, str]:
    """Which commit the name stood for that `fetch --commit` was given; empty where none was."""
    return dict((read_content(folder) or {}).get(RESOLVED, {}))


def read_bytes(folder: Path, locked: LockedArtifact) -> bytes:
    """The artifact's bytes, hashed again. Raises RecordError where they are missing or not those that were locked."""
    data = read_bounded(path_inside(folder, locked.path))
    if len(data) != locked.bytes or sha256(data).value != locked.sha256:
        raise RecordError(
            f"{folder / locked.path} has changed since it was locked: expected {locked.bytes:,} bytes, sha256 "
            f"{locked.sha256[:16]}…, found {len(data):,} bytes. Run: marin-repro fetch --record {folder}"
        )
    return data


def is_there(folder: Path, locked: LockedArtifact) -> bool:
    """Whether the bytes that were locked lie in the folder."""
    try:
        read_bytes(folder, locked)
    except RecordError:
        return False
    return True


def check_artifacts(folder: Path, artifacts: Mapping[str, LockedArtifact]) -> None:
    """Raise RecordError where bytes that lie in the folder are not those that were locked. Missing ones may be: a lock
    is of use without them."""
    for locked in artifacts.values():
        if (folder / locked.path).exists():  # the lock's reader has seen that it does not lead out
            read_bytes(folder, locked)


def write_artifacts(folder: Path, artifacts: Mapping[str, LockedArtifact], resolved: Mapping[str, str]) -> None:
    """Write the lock with these artifacts, and the files as they lie there now."""
    parts: dict[str, Any] = {RESOLVED: dict(resolved)} if resolved else {}
    parts[ARTIFACTS] = {id: locked.as_json() for id, locked in sorted(artifacts.items())}
    write_lock(folder, parts)
