"""`record.lock.json`: the SHA-256 and size of every file of a record, so that a changed byte is an error, not a result.

    {"version": 1, "files": {"claims.json": {"bytes": 12, "sha256": "…"}, …}, "resolved": …, "artifacts": …}

`resolved` and `artifacts` are there where `fetch` made the record; artifact_lock.py owns them, here they are carried
along. Keys are sorted, so that two equal folders have equal locks wherever they lie. Names beginning with a
dot, what lies below `artifacts/`, and annotations.toml, which people write about an audit, are not files of a record in
this sense.
`python -m repro.record.lock DIR` writes the lock of a record of one's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.errors import MarinReproError, RecordError
from repro.files import canonical_json, parse_json, path_inside, read_bounded, write_atomically
from repro.record.digests import Digest, sha256

LOCK = "record.lock.json"
VERSION = 1
ARTIFACTS = "artifacts"  # the folder of fetched bytes, and their part of the lock
RESOLVED = "resolved"
ANNOTATIONS = "annotations.toml"


@dataclass(frozen=True)
class Locked:
    """What one file must be: its size in bytes and its SHA-256."""

    bytes: int
    sha256: str


def file_names(folder: Path) -> tuple[str, ...]:
    """Names of a record's files relative to its folder, sorted, `/` between parts; no lock, dot files, artifacts."""
    found = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        other = (
            name.as_posix() in (LOCK, ANNOTATIONS)
            or name.parts[0] == ARTIFACTS
            or any(part[0] == "." for part in name.parts)
        )
        if path.is_file() and not other:
            found.append(name.as_posix())
    return tuple(sorted(found))


def make_lock(folder: Path) -> dict[str, Locked]:
    """The lock that the folder has as it lies there now. Raises RecordError for a file that cannot be read."""
    contents = {name: read_bounded(path_inside(folder, name)) for name in file_names(folder)}
    return {name: _locked(data) for name, data in contents.items()}


def write_lock(folder: Path, parts: Mapping[str, Any] | None = None) -> Path:
    """Write the folder's lock and return its path. Equal folders give equal bytes.

    `parts`: what it says of resolved names and artifacts; None: what it said before.
    """
    if not (folder / "record.toml").is_file():
        raise RecordError(f"{folder} has no record.toml, so it is not a record; nothing was locked.")
    if parts is None:
        before = read_content(folder) or {}
        parts = {name: before[name] for name in (RESOLVED, ARTIFACTS) if name in before}
    files = {name: {"bytes": item.bytes, "sha256": item.sha256} for name, item in make_lock(folder).items()}
    path = folder / LOCK
    write_atomically(path, canonical_json({"version": VERSION, "files": files, **parts}))
    return path


def read_lock(folder: Path) -> dict[str, Locked] | None:
    """The files as locked, or None where the folder has no lock. Raises RecordError where it is malformed."""
    content = read_content(folder)
    if content is None:
        return None
    return {name: _read_entry(folder, name, entry) for name, entry in content["files"].items()}


def read_content(folder: Path) -> dict[str, Any] | None:
    """The lock as written, its entries unchecked, or None where the folder has none. Raises RecordError."""
    if not (folder / LOCK).exists():
        return None
    content = parse_json(read_bounded(folder / LOCK), LOCK)
    if (
        not isinstance(content, dict)
        or not {"version", "files"} <= set(content) <= {"version", "files", RESOLVED, ARTIFACTS}
        or not all(isinstance(content.get(part, {}), dict) for part in ("files", RESOLVED, ARTIFACTS))
    ):
        raise RecordError(f"{LOCK}: must hold version and files, at most resolved and artifacts. {_mend(folder)}")
    if content["version"] != VERSION:
        raise RecordError(f"{LOCK}: version {content['version']!r} is not {VERSION}, the one this program reads.")
    return content


def check_lock(folder: Path, lock: Mapping[str, Locked]) -> dict[str, bytes]:
    """Read every file of the record and hold it against the lock; return the contents that were checked, by name.

    Raises RecordError that names the first file that is missing, not listed or changed, what was expected and found,
    how many more there are, and the mend.
    """
    contents: dict[str, bytes] = {}
    problems = []
    present = file_names(folder)
    for name in sorted({*present, *lock}):
        if name not in lock:
            problems.append(f"{name} is not in {LOCK}")
        elif name not in present:
            problems.append(f"{name} is missing ({LOCK} expects {lock[name].bytes:,} bytes)")
        else:
            contents[name] = data = read_bounded(path_inside(folder, name))
            if _locked(data) != lock[name]:
                problems.append(_difference(name, data, lock[name]))
    if problems:
        more = f" ({len(problems) - 1} more of its files differ.)" if len(problems) > 1 else ""
        raise RecordError(f"{folder} differs from its lock: {problems[0]}.{more} {_mend(folder)}")
    return contents


def _locked(data: bytes) -> Locked:
    return Locked(len(data), str(sha256(data).value))


def _read_entry(folder: Path, name: str, entry: object) -> Locked:
    path_inside(folder, name)
    if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
        raise RecordError(f"{LOCK}, {name}: must hold bytes and sha256, and nothing else. {_mend(folder)}")
    size, value = entry["bytes"], entry["sha256"]
    if type(size) is not int or size < 0:
        raise RecordError(f"{LOCK}, {name}, bytes: {size!r} is not a size. {_mend(folder)}")
    try:
        Digest("sha256", str(value))
    except ValueError as error:
        raise RecordError(f"{LOCK}, {name}, sha256: {error}. {_mend(folder)}") from error
    return Locked(size, value)


def _difference(name: str, data: bytes, expected: Locked) -> str:
    """In words, how a file's bytes differ; the two common accidents are recognised."""
    found = _locked(data)
    text = (
        f"{name} has changed: expected {expected.bytes:,} bytes, sha256 {expected.sha256[:16]}…, "
        f"found {found.bytes:,} bytes, sha256 {found.sha256[:16]}…"
    )
    if expected in (_locked(data.replace(b"\r\n", b"\n")), _locked(re.sub(rb"(?<!\r)\n", b"\r\n", data))):
        return text + " (only the line ends differ: a checkout or an editor rewrote them)"
    if data.startswith(b"version https://git-lfs.github.com/spec/v1"):
        return text + " (it is a Git LFS pointer, not the file: run git lfs pull)"
    return text


def _mend(folder: Path) -> str:
    return (
        f"Restore the file; or, if this record is yours and the change is meant: python -m repro.record.lock {folder}"
    )


def main(arguments: list[str]) -> int:
    """Write the lock of the folder that is named; 2 with one message where that cannot be done."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m repro.record.lock DIR    (writes DIR/record.lock.json)\n")
        return 2
    try:
        path = write_lock(Path(arguments[0]))
    except MarinReproError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stderr.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
