"""The cache of what was fetched: a file an artifact, verified before it has its name, and hashed again when used.

    entries/<key>      a line of JSON (what the service said of the bytes, and their SHA-256), then the bytes
    answers/           answers of APIs, asked for again only if they changed (services/conditional.py)
    quarantine/        bytes that were not what they should be: for a look, never used
    .held              whoever uses the cache shares a lock on it; who is alone sweeps away what a killed process left

pooch writes an entry to a temporary file through our own downloader, which reads the artifact from its service and
compares it with its hashes, and moves it into place only then. Several processes may use one cache at once: each
renames whole files, and the last one wins.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.errors import OutputError, UsageError
from repro.files import write_atomically
from repro.record.artifacts import Artifact
from repro.record.digests import Digest, sha256
from repro.record.services.content import Content
from repro.record.services.errors import HashMismatch, without_secrets

VARIABLE = "MARIN_REPRO_CACHE"
KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Cache:
    """An opened cache."""

    folder: Path

    @property
    def answers(self) -> Path:
        """Where the client keeps answers of APIs."""
        return self.folder / "answers"

    @property
    def entries(self) -> Path:
        """Where the verified artifacts lie."""
        return self.folder / "entries"

    @property
    def quarantine(self) -> Path:
        """Where wrong bytes go."""
        return self.folder / "quarantine"


@contextmanager
def open_cache(folder: Path | None = None) -> Iterator[Cache]:
    """Use the cache in `folder`; by default that of MARIN_REPRO_CACHE, else the one of this system's user.

    Raises UsageError where the folder cannot be made or written.
    """
    place = folder or Path(os.environ.get(VARIABLE) or _of_user())
    cache = Cache(place)
    try:
        for part in (cache.answers, cache.entries):
            part.mkdir(parents=True, exist_ok=True)
        handle = os.open(place / ".held", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"the cache {place} cannot be used: {reason}. Set {VARIABLE} to another folder.") from error
    try:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sweep(cache)
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield cache
    finally:
        os.close(handle)  # gives the lock back


def key_of(artifact: Artifact, steps: tuple[int, int | None] | None) -> str:
    """The name of an artifact's entry: equal for equal kind, address, pin and steps, whatever record asks."""
    identity = json.dumps([artifact.kind, artifact.address, artifact.pin, steps])
    return hashlib.sha256(identity.encode()).hexdigest()


def load(cache: Cache, key: str) -> Content | None:
    """The entry, whose bytes are hashed again; None where there is none. A damaged one goes to quarantine."""
    path = cache.entries / key
    try:
        head, _, data = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    try:
        said = json.loads(head)
        if sha256(data).value != said.pop("sha256"):
            raise ValueError("other bytes than were written")
        digest = Digest.parse(said.pop("digest")) if said["digest"] else said.pop("digest")
        return Content(data=data, digest=digest, notes=tuple(said.pop("notes")), **said)
    except (ValueError, KeyError, TypeError, AttributeError):
        _set_aside(cache, path.read_bytes())
        path.unlink(missing_ok=True)
        return None


def download(cache: Cache, key: str, url: str, read: Callable[[], Content]) -> Content:
    """Ask the service through `read`, and keep what it gives. Raises a ServiceError; then the entry is as before.

    Bytes of a HashMismatch go to quarantine, and the error says where.
    """
    import pooch  # takes as long as ten requests, and verify needs none of it

    found: list[Content] = []

    def downloader(url: str, output_file: str, pooch: Any) -> None:
        try:
            content = read()
        except HashMismatch as error:
            place = _set_aside(cache, error.data)
            words = f"{error} (The bytes lie in {place}.)"
            raise HashMismatch(words, error.expected, error.found, error.data) from error
        Path(output_file).write_bytes(_head(content) + content.data)
        found.append(content)

    pooch.get_logger().setLevel("WARNING")
    try:
        staged = pooch.retrieve(
            url, known_hash=None, path=cache.entries, fname=f"{key}.{uuid.uuid4().hex}", downloader=downloader
        )
        os.replace(staged, cache.entries / key)
    except OSError as error:
        raise OutputError(
            f"cannot write to the cache {cache.folder}: {error.strerror or error}. Free space, or set {VARIABLE}."
        ) from error
    return found[0]


def _of_user() -> Path:
    """The folder that this system has for a user's caches."""
    import pooch

    return Path(pooch.os_cache("marin-repro"))


def _head(content: Content) -> bytes:
    """What the service said, as one line; no token is written down, also not one that a service sent back."""
    said = {
        "name": content.name,
        "sha256": sha256(content.data).value,
        "digest": str(content.digest) if content.digest else None,
        "canonical": dict(content.canonical),
        "resolved": content.resolved,
        "etag": content.etag,
        "notes": content.notes,
    }
    return without_secrets(json.dumps(said)).encode() + b"\n"


def _set_aside(cache: Cache, data: bytes) -> Path:
    """Put bytes into quarantine under their own SHA-256."""
    path = cache.quarantine / str(sha256(data).value)
    write_atomically(path, data)
    return path


def _sweep(cache: Cache) -> None:
    """Remove what is half written. Nobody else uses the cache meanwhile."""
    for path in (*cache.entries.iterdir(), *cache.answers.iterdir(), *cache.folder.glob("quarantine/.*")):
        if not KEY.fullmatch(path.name):
            path.unlink(missing_ok=True)
