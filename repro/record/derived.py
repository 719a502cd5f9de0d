"""Tables and facts of a record out of the bytes that `fetch` brought, each with its place; and what they do not show.

    derive(folder)        write what can be derived into the record; the names of the files
    read_derived(folder)  the same as values, nothing written

Where facts stand is data (derive.toml, see `places`); how a table is read is in `ladder_tables` and `lineage`. Beside
the tables, `facts/derived.json` has every single fact, the origin of each table's rows, and what was not derived:

    {"version": 1, "facts": [{"name", "value", "artifact", "place"}],
     "not_derived": [{"what", "artifact", "place", "why"}],
     "tables": {"ladder_grid.csv": [{"rows", "artifact", "place"}]}}

A table that people wrote is never touched: one is ours where its [[file]] entry's `checked` begins with DERIVED.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from repro.errors import RecordError
from repro.files import canonical_json, path_inside, read_bounded, write_atomically
from repro.record.artifact_lock import read_artifacts, read_bytes
from repro.record.artifacts import DERIVED, NAME, Artifact, Contents, RecordFile, read_contents
from repro.record.entries import read_entry, read_rows
from repro.record.facts import CLAIMS, RUN_CONFIGURATION, TABLES
from repro.record.ladder_tables import (
    DOMAINS,
    GRID,
    MIXTURE,
    RUNGS,
    TIMES,
    domain_series,
    grid_tables,
    mixture_table,
    rung_table,
)
from repro.record.lineage import Segment, evaluation_table, lineage_table, read_segments, train_table
from repro.record.material import Material, NotDerived, Origin, Table
from repro.record.places import Places, read_places
from repro.record.profile import HEADER, LINEAGE, as_toml
from repro.record.stored import Absent, at_pointer
from repro.record.tables import RunConfiguration

FACTS = "facts/derived.json"
VERSION = 1
EVALUATIONS, TRAIN = "hero_evaluations.csv", "hero_train.csv"
BEGIN, END = "# marin-repro fetch: what follows is derived.", "# marin-repro fetch: end of what is derived."
WHAT = {
    GRID: "the rungs' evaluations: mean loss of the domains",
    TIMES: "when the rungs' evaluations were logged",
    DOMAINS: "the rungs' evaluations by domain",
    RUNGS: "shape, size and length of the rungs",
    LINEAGE: "the W&B runs of one history of weights, and the steps each contributed",
    EVALUATIONS: "evaluations along the lineage, each by the run that owns its step",
    TRAIN: "training metrics along the lineage",
    RUN_CONFIGURATION: "resolved W&B configuration of the first and the latest run, and the latest one's summary",
    MIXTURE: "cells of the mixture: sets of weights by phase, available tokens by store",
}


@dataclass(frozen=True)
class Fact:
    """One value, and where it stands."""

    name: str
    value: Any
    artifact: str
    place: str


@dataclass(frozen=True)
class Derived:
    """What the bytes of a record show. `tables`: file → bytes and where they come from."""

    tables: Mapping[str, tuple[bytes, RecordFile]]
    origins: Mapping[str, tuple[Origin, ...]]
    facts: tuple[Fact, ...]
    not_derived: tuple[NotDerived, ...]

    def as_json(self) -> dict[str, Any]:
        """The contents of facts/derived.json."""
        return {
            "version": VERSION,
            "facts": [asdict(fact) for fact in self.facts],
            "not_derived": [asdict(one) for one in self.not_derived],
            "tables": {name: [asdict(origin) for origin in origins] for name, origins in self.origins.items()},
        }


def derive(folder: Path) -> tuple[str, ...]:
    """Write the tables and facts that the record's bytes show, name them in record.toml, and take away derived ones
    that they no longer show. The names of the files written; none where nothing could be derived."""
    contents = read_contents(read_bounded(folder / NAME))
    derived = read_derived(folder)
    claims = tuple(file for file in contents.files if file.is_derived and file.name == CLAIMS)  # of derived_claims
    ours = {file.name for file in contents.files if file.is_derived} - {CLAIMS}
    theirs = {file.name for file in contents.files} - ours
    theirs |= {name for name in derived.tables if name not in ours and path_inside(folder, name).exists()}
    files = {name: table for name, table in derived.tables.items() if name not in theirs}
    kept = tuple(NotDerived(name, "", "", "the record has its own") for name in derived.tables if name in theirs)
    for name in sorted(ours - set(files)):
        path_inside(folder, name).unlink(missing_ok=True)
    if not files and not derived.facts and not ours:
        return ()
    for name, (data, _) in files.items():
        write_atomically(path_inside(folder, name), data)
    name_in_record(folder, contents, (*(file for _, file in files.values()), *claims))
    shown = replace(derived, not_derived=(*derived.not_derived, *kept))
    write_atomically(path_inside(folder, FACTS), canonical_json(shown.as_json()))
    return (*sorted(files), FACTS)


def read_derived(folder: Path) -> Derived:
    """What the record's bytes show. Raises RecordError where record.toml, derive.toml or the lock are malformed."""
    contents = read_contents(read_bounded(folder / NAME))
    places = read_places(folder, contents.run.name)
    return derived_from(_material(folder, contents, places.roots), places)


def derived_from(material: Material, places: Places) -> Derived:
    """What some artifacts' bytes show of the places."""
    tables = _tables(material, places)
    facts = tuple(_facts(material, places))
    written = {}
    for name, table in tables.items():
        with material.looking_for(name, ""):
            written[name] = (_checked(name, _csv(name, table.rows)), _file(name, table, material.artifacts))
    if places.lineage is not None and places.configuration is not None:
        with material.looking_for(RUN_CONFIGURATION, ""):
            table, data = _configuration(material, places)
            tables[RUN_CONFIGURATION] = table
            written[RUN_CONFIGURATION] = (data, _file(RUN_CONFIGURATION, table, material.artifacts))
    origins = {name: tuple(tables[name].origins) for name in written}
    return Derived(written, origins, facts, tuple(material.missing))


def _material(folder: Path, contents: Contents, roots: tuple[str, ...]) -> Material:
    locked, known = read_artifacts(folder), {}
    artifacts = {artifact.id: artifact for artifact in contents.artifacts}

    def load(id: str) -> bytes:
        if id not in artifacts:
            raise Absent("the record has no such artifact")
        if id not in locked or not locked[id].is_of(artifacts[id]):
            raise Absent("it was not fetched")
        if id not in known:
            try:
                known[id] = read_bytes(folder, locked[id])
            except RecordError as error:
                raise Absent(str(error)) from error
        return known[id]

    return Material(artifacts, load, roots)


def _tables(material: Material, places: Places) -> dict[str, Table]:
    """Every table that has rows."""
    tables: dict[str, Table] = {}
    if places.evaluation is not None:
        tables |= grid_tables(material, places, places.evaluation)
    if places.rung_columns:
        tables[RUNGS] = rung_table(material, places)
    if places.weights or places.tokens:
        tables[MIXTURE] = mixture_table(material, places)
    segments = _segments(material, places)
    if places.lineage is not None and segments:
        loss = places.evaluation.loss if places.evaluation else ""
        tables[LINEAGE] = lineage_table(material, places.lineage, segments, loss, places.rung_columns)
        if evaluation := places.evaluation:
            tables[EVALUATIONS] = evaluation_table(
                material, places.lineage, segments, evaluation, lambda run: domain_series(run, evaluation)
            )
        if places.train is not None:
            tables[TRAIN] = train_table(material, places.lineage, segments, places.train)
    return {name: table for name, table in tables.items() if table.rows}


def _segments(material: Material, places: Places) -> list[Segment]:
    """The lineage's segments; none, and a word why, where they cannot be told."""
    if places.lineage is None:
        return []
    with material.looking_for(f"{LINEAGE} and what depends on it", ", ".join(places.lineage.artifacts)):
        return read_segments(material, places.lineage)
    return []


def _facts(material: Material, places: Places) -> Iterator[Fact]:
    """The single facts that derive.toml names."""
    for one in places.fact:
        with material.looking_for(one.name, one.artifact):
            if one.expression:
                found = material.expression(one.artifact, one.expression)
                yield Fact(one.name, _as_json(found.value), one.artifact, found.place)
            else:
                content = material.json(one.artifact)
                yield Fact(one.name, at_pointer(content, one.pointer), one.artifact, one.pointer)


def _configuration(material: Material, places: Places) -> tuple[Table, bytes]:
    """run_configuration.json: the first run's settings, the latest one's that differ, and its summary."""
    assert places.lineage is not None
    assert places.configuration is not None
    first, last = places.lineage.artifacts[0], places.lineage.artifacts[-1]
    left_out = places.configuration.left_out
    kept = {id: _without(material.run(id).content.get("config", {}), left_out) for id in (first, last)}
    content: dict[str, Any] = {"first": _snapshot(material, first, kept[first])}
    if last != first:
        content["latest"] = _snapshot(material, last, _difference(kept[first], kept[last]))
    content["summary"] = material.run(last).content.get("summary", {})
    try:
        read_entry(RunConfiguration, content, RUN_CONFIGURATION)
    except RecordError as error:
        raise Absent(str(error)) from error
    words = [f"branches {', '.join(left_out)}"] if left_out else []
    words += ["of the latest run, leaves equal to the first's; null where only the first has a leaf"]
    origins = [Origin(part, id, "/config") for part, id in (("first", first), ("latest", last))]
    return Table(origins=[*origins, Origin("summary", last, "/summary")], left_out=words), canonical_json(
        content
    ).encode()


def _snapshot(material: Material, artifact: str, leaves: dict[str, Any]) -> dict[str, Any]:
    run = material.run(artifact)
    return {"run": run.id, "as_of": str(run.content.get("heartbeat_at") or "not stated"), "leaves": leaves}


def _without(leaves: Mapping[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """The settings without some branches."""
    result = dict(leaves)
    for path in paths:
        head, _, rest = path.partition(".")
        if not rest:
            result.pop(head, None)
        elif isinstance(result.get(head), Mapping):
            result[head] = _without(result[head], (rest,))
    return result


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of `after` that `before` has not, or has otherwise; null for those that only `before` has."""
    result: dict[str, Any] = {}
    for key in (*after, *(key for key in before if key not in after)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if below := _difference(old, new):
                result[key] = below
        elif key not in before or old != new:
            result[key] = new
    return result


def _csv(name: str, rows: list[dict[str, Any]]) -> bytes:
    """The rows as CSV; a column that some rows lack is empty there."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (row.get(column) for column in columns)
        writer.writerow("" if value is None else repr(value) if isinstance(value, float) else value for value in values)
    return text.getvalue().encode()


def _checked(name: str, data: bytes) -> bytes:
    """The table, where the record's own reader takes it."""
    try:
        read_rows(TABLES[name][0], data, name)
    except RecordError as error:
        raise Absent(str(error)) from error
    return data


def _file(name: str, table: Table, artifacts: Mapping[str, Artifact]) -> RecordFile:
    """The [[file]] entry of a derived table."""
    sources = dict.fromkeys(_source(artifacts[origin.artifact]) for origin in table.origins)
    return RecordFile(
        name=name,
        what=WHAT[name],
        sources=tuple(sources),
        date="as locked in record.lock.json",
        left_out="; ".join(dict.fromkeys(table.left_out)) or f"what {FACTS} lists as not derived",
        checked="; ".join((DERIVED, *dict.fromkeys(table.checked))),
    )


def _source(artifact: Artifact) -> str:
    """The artifact as a [[file]] entry names sources."""
    if artifact.kind == "github-file":
        return f"{artifact.address}@{artifact.pin}"
    return f"wandb:{artifact.address}" if artifact.kind == "wandb-run" else artifact.url


def name_in_record(folder: Path, contents: Contents, files: tuple[RecordFile, ...]) -> None:
    """Put the derived files' entries into record.toml: anywhere where fetch wrote it, else into a block of ours."""
    text = (folder / NAME).read_text()
    others = tuple(file for file in contents.files if not file.is_derived)
    if text.startswith(HEADER):
        write_atomically(folder / NAME, as_toml(replace(contents, files=(*others, *files))))
        return
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    entries = as_toml(replace(contents, artifacts=(), training_data=(), forecast=None, files=files))
    block = "".join(entries.partition("[[file]]")[1:]).strip()
    text = f"{head.rstrip()}\n\n{BEGIN}\n\n{block}\n\n{END}\n{tail.lstrip()}"
    if read_contents(text.encode()).files != (*others, *files):
        raise RecordError(f"{folder / NAME}: a derived table's entry was moved out of its block; move it back.")
    write_atomically(folder / NAME, text)


def _as_json(value: Any) -> Any:
    """A value of Python source as JSON has it: a tuple or set as a list, a key as text."""
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_as_json(item) for item in value), key=repr)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value
