"""Two records side by side: artifacts added, gone and changed; comments added, edited and deleted; facts old → new.

A pure reading of two folders: nothing is asked for. Whether an artifact's content changed is known where both records
were fetched; texts are compared where both have the bytes.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from repro.errors import RecordError
from repro.files import parse_json
from repro.record.artifact_lock import LockedArtifact, read_artifacts, read_bytes
from repro.record.artifacts import Artifact
from repro.record.facts import CLAIMS, RUN_CONFIGURATION, TABLES, Record
from repro.record.services.errors import ServiceError
from repro.record.services.pages import page_text
from repro.record.verify import parts_that_differ

What = Literal["added", "gone", "changed"]
MAX_LINES = 400  # of one text difference
MAX_TEXT = 4 * 2**20  # characters that are compared line by line


@dataclass(frozen=True, kw_only=True)
class ArtifactChange:
    """An artifact that one record has and the other has not, or has otherwise. `text`: a unified difference."""

    id: str
    what: What
    how: str
    url: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class CommentChange:
    """A comment of a thread, or the thread's own first text ("issue")."""

    artifact: str
    comment: str  # "5335872267", or "issue"
    what: What
    url: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """A value of a table. `old` or `new` is None where its record has no such value."""

    table: str
    key: str  # "d768, 99": what tells the row from others
    field: str
    old: Any
    new: Any
    old_source: str
    new_source: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """All differences of two records, and what could not be compared."""

    artifacts: tuple[ArtifactChange, ...]
    comments: tuple[CommentChange, ...]
    facts: tuple[FactChange, ...]
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.artifacts or self.comments or self.facts)

    def as_json(self) -> dict[str, Any]:
        """One object; lists in the order of the records."""
        return {name: [asdict(item) for item in getattr(self, name)] for name in ("artifacts", "comments", "facts")} | {
            "notes": list(self.notes)
        }


def diff(before: Record, after: Record, *, text: bool = False) -> Difference:
    """Compare two records; with `text` also the texts of what changed. Raises RecordError for damaged bytes."""
    locked = read_artifacts(before.folder), read_artifacts(after.folder)
    artifacts: list[ArtifactChange] = []
    comments: list[CommentChange] = []
    notes: list[str] = []
    for record, lock in zip((before, after), locked, strict=True):
        if not lock:
            notes.append(f"{record.folder} was never fetched: what its artifacts contain is not compared.")
    old, new = ({item.id: item for item in record.artifacts} for record in (before, after))
    for id in dict.fromkeys([*old, *new]):
        pair = old.get(id), new.get(id)
        was, now = locked[0].get(id), locked[1].get(id)
        change = _presence(id, pair, (was, now), fetched=all(locked))
        texts: dict[str, str] = {}
        if was and now and _content_of(was) != _content_of(now):
            if text:
                texts, missing = _texts((before.folder, was), (after.folder, now))
                notes += missing
            if was.kind == now.kind == "github-issue" and was.address == now.address:
                comments += _comments(id, new[id], was, now, texts)
            else:
                how = _parts(was, now)
                how = f"{change.how}; {how}" if change else how
                joined = "\n".join(texts.values())
                change = ArtifactChange(id=id, what="changed", how=how, url=new[id].url, text=joined)
        if change is not None:
            artifacts.append(change)
    facts = tuple(_facts(before, after))
    return Difference(artifacts=tuple(artifacts), comments=tuple(comments), facts=facts, notes=tuple(notes))


def _presence(
    id: str,
    pair: tuple[Artifact | None, Artifact | None],
    locked: tuple[LockedArtifact | None, LockedArtifact | None],
    *,
    fetched: bool,
) -> ArtifactChange | None:
    """How an artifact's entry changed, or whether its bytes came or went; None where neither."""
    old, new = pair
    if old is None or new is None:
        (only,) = filter(None, pair)
        what: What = "added" if old is None else "gone"
        return ArtifactChange(id=id, what=what, how=f"{only.kind} {only.address}", url=only.url)
    if old != new:
        names = [part.name for part in fields(old) if getattr(old, part.name) != getattr(new, part.name)]
        how = "; ".join(f"{name} {getattr(old, name) or 'none'} → {getattr(new, name) or 'none'}" for name in names)
        return ArtifactChange(id=id, what="changed", how=how, url=new.url)
    if fetched and (locked[0] is None) != (locked[1] is None):
        what, how = ("added", "fetched now") if locked[0] is None else ("gone", "no longer fetched")
        return ArtifactChange(id=id, what=what, how=how, url=new.url)
    return None


def _content_of(locked: LockedArtifact) -> Any:
    """What tells whether content changed: canonical parts where there are some, else the bytes."""
    return dict(locked.canonical) or locked.sha256


def _parts(was: LockedArtifact, now: LockedArtifact) -> str:
    if not was.canonical or not now.canonical:
        return f"{was.bytes:,} → {now.bytes:,} bytes"
    return parts_that_differ(was.canonical, now.canonical)


def _comments(
    id: str, artifact: Artifact, was: LockedArtifact, now: LockedArtifact, texts: Mapping[str, str]
) -> Iterator[CommentChange]:
    for part in dict.fromkeys([*was.canonical, *now.canonical]):
        old, new = was.canonical.get(part), now.canonical.get(part)
        if old == new:
            continue
        what: What = "added" if old is None else "gone" if new is None else "changed"
        number = part.removeprefix("comment ")
        url = artifact.url if part == "issue" else f"{artifact.url}#issuecomment-{number}"
        yield CommentChange(artifact=id, comment=number, what=what, url=url, text=texts.get(part, ""))


def _texts(before: tuple[Path, LockedArtifact], after: tuple[Path, LockedArtifact]) -> tuple[dict[str, str], list[str]]:
    """Unified differences by part, and what could not be compared."""
    try:
        old, new = (_readable(locked, read_bytes(folder, locked)) for folder, locked in (before, after))
    except (RecordError, ServiceError) as error:
        return {}, [f"{after[1].address}: its texts are not compared. {error}"]
    parts = dict.fromkeys([*old, *new])
    return {
        part: _unified(old.get(part, ""), new.get(part, "")) for part in parts if old.get(part) != new.get(part)
    }, []


def text_since(folder: Path, was: LockedArtifact, now: bytes) -> str:
    """How the text of what a service gives now differs from what was locked, part by part; else why it is not told."""
    try:
        old, new = _readable(was, read_bytes(folder, was)), _readable(was, now)
    except (RecordError, ServiceError) as error:
        return f"the texts are not compared: {error}"
    changed = [part for part in dict.fromkeys([*old, *new]) if old.get(part) != new.get(part)]
    return "\n".join(f"{part}\n{_unified(old.get(part, ''), new.get(part, ''))}".strip() for part in changed)


def _readable(locked: LockedArtifact, data: bytes) -> dict[str, str]:
    """An artifact's texts by part, as a person reads them."""
    if locked.kind == "page":
        return {"text": page_text(data)}
    if locked.kind == "github-issue":
        thread = json.loads(data)
        texts = {f"comment {comment['id']}": comment["body"] for comment in thread["comments"]}
        return {"issue": f"{thread['title']}\n\n{thread['body']}", **texts}
    try:
        return {"": data.decode()}
    except UnicodeDecodeError:
        return {"": f"{len(data):,} bytes that are no text"}


def _unified(old: str, new: str) -> str:
    if max(len(old), len(new)) > MAX_TEXT:
        return "too long to be compared line by line"
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))[2:]
    more = [f"… and {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    return "\n".join([*lines[:MAX_LINES], *more])


def _facts(before: Record, after: Record) -> Iterator[FactChange]:
    """Every value of the tables that differs."""
    sides = before, after
    old_run, new_run = (_flat(record.run) for record in sides)
    for field in dict.fromkeys([*old_run, *new_run]):
        if old_run.get(field) != new_run.get(field):
            yield _fact("record.toml", "[run]", field, old_run.get(field), new_run.get(field), sides, None, None)
    for table in (*TABLES, RUN_CONFIGURATION, CLAIMS):
        old, new = (_rows(record, table) for record in sides)
        for key in dict.fromkeys([*old, *new]):
            was, now = old.get(key, {}), new.get(key, {})
            for field in dict.fromkeys([*was, *now]):
                if was.get(field) != now.get(field):
                    yield _fact(table, key, field, was.get(field), now.get(field), sides, was, now)


def _fact(
    table: str,
    key: str,
    field: str,
    old: Any,
    new: Any,
    sides: tuple[Record, Record],
    was: Mapping[str, Any] | None,
    now: Mapping[str, Any] | None,
) -> FactChange:
    sources = [_source(record, table, row) for record, row in zip(sides, (was, now), strict=True)]
    return FactChange(table=table, key=key, field=field, old=old, new=new, old_source=sources[0], new_source=sources[1])


def _source(record: Record, table: str, row: Mapping[str, Any] | None) -> str:
    """Where a row says it is from, else where its file does, else the record itself; nothing for a row that is not
    there."""
    if row == {}:
        return ""
    if row and isinstance(row.get("source"), str):
        return str(row["source"])
    listed = {file.name: "; ".join(file.sources) for file in record.files}
    return listed.get(table, str(record.folder / table))


def _rows(record: Record, table: str) -> dict[str, dict[str, Any]]:
    """A table's rows, flat, by what tells them apart."""
    if table == "ladder_grid.csv":
        grid = ((rung, point) for rung, points in record.ladder_grid.items() for point in points)
        return _numbered((f"{rung}, {point.step}", {"loss": point.loss}) for rung, point in grid)
    if table == RUN_CONFIGURATION:
        return {"": _flat(record.run_configuration)} if record.run_configuration else {}
    if table == CLAIMS:
        content = parse_json(record.claims, CLAIMS) if record.claims else {}
        claims = content.get("claims", []) if isinstance(content, dict) else []
        return _numbered((str(claim.get("id")), _flat(claim)) for claim in claims if isinstance(claim, dict))
    keys = TABLES[table][1]
    rows = (
        (", ".join(str(getattr(row, key)) for key in keys), _flat(row)) for row in getattr(record, Path(table).stem)
    )
    return _numbered(rows)


def _numbered(rows: Any) -> dict[str, dict[str, Any]]:
    """Rows by key; one whose key stands again gets a number."""
    result: dict[str, dict[str, Any]] = {}
    for key, row in rows:
        number = 2
        name = key
        while name in result:
            name, number = f"{key} ({number})", number + 1
        result[name] = row
    return result


def _flat(value: Any, place: str = "") -> dict[str, Any]:
    """Leaves of a nested value by their places, "weights.ladder.phase0"."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif is_dataclass(value) and not isinstance(value, type):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {place: value if isinstance(value, str | int | float | bool | None) else str(value)}
    flat: dict[str, Any] = {}
    for key, inner in items:
        flat |= _flat(inner, f"{place}.{key}".lstrip("."))
    return flat
