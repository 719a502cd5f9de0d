"""`python -m audits.extract`: claims.json, and what was not read, from a fetched record or from files.

    python -m audits.extract RECORD --out claims.json            what `marin-repro fetch` brought into a record
    python -m audits.extract a.md b.json --out claims.json       files

Quantities that a record names in its own words stand in a quantities.toml beside it. `claims.json` of the record is
never written over unless it is named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from audits.extract.documents import FORMS, Document, documents_of
from audits.extract.extraction import coverage, extract, ledger
from audits.extract.registry import NAME, read_registry
from audits.extract.scopes import Subject, subject_of
from repro.errors import MarinReproError, RecordError
from repro.files import canonical_json, read_bounded, write_atomically
from repro.record import artifacts
from repro.record.artifact_lock import read_artifacts, read_bytes
from repro.record.facts import load_record

LISTINGS = ("github-tree", "hub-tree", "wandb-report")  # say what there is, not what it says


def record_documents(folder: Path, unreadable: Callable[[str], None] | None = None) -> Iterator[Document]:
    """The documents of all that was fetched into a record; `unreadable` hears of each that is not of its form, else
    that is a RecordError. Raises RecordError where bytes are not those of the lock."""
    about = artifacts.read_contents(read_bounded(folder / artifacts.NAME))
    published = {one.id: one for one in about.artifacts}
    for id, locked in read_artifacts(folder).items():
        name = locked.path if Path(locked.path).suffix in {*FORMS, ".json"} else f"{locked.path}.html"
        if locked.kind in LISTINGS or (name != locked.path and locked.kind != "page"):
            continue
        address = published[id].url if id in published else ""
        data = read_bytes(folder, locked)
        try:
            yield from documents_of(name, data, address=address, date=locked.locked_at[:10])
        except RecordError as error:
            if unreadable is None:
                raise
            unreadable(str(error))


def main(arguments: list[str]) -> int:
    """Read what is named, and write. 2 with one message where that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m audits.extract", description=__doc__, add_help=True)
    parser.add_argument("inputs", nargs="+", type=Path, metavar="RECORD|FILE")
    parser.add_argument("--out", type=Path, required=True, help="claims.json to write")
    parser.add_argument("--coverage", type=Path, help="JSON that says how many numbers were read, and lists the others")
    parser.add_argument("--aliases", type=Path, action="append", default=[], help="a quantities.toml of your own")
    parser.add_argument("--record", type=Path, help="record whose run the files speak of")
    chosen = parser.parse_args(arguments)
    try:
        folders = [path for path in chosen.inputs if path.is_dir()]
        about = chosen.record or (folders[0] if folders else None)
        own = [*chosen.aliases, *(folder / NAME for folder in folders if (folder / NAME).is_file())]
        registry = read_registry(*(read_bounded(path) for path in own))
        documents: list[Document] = []
        for path in chosen.inputs:
            documents += record_documents(path) if path.is_dir() else documents_of(path.name, read_bounded(path))
        ids = [one.id for one in documents]
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise RecordError(f"{twice}: stands twice among the documents. Give each file once.")
        extraction = extract(documents, registry, subject_of(load_record(about)) if about else Subject())
        said = coverage(extraction)
        write_atomically(chosen.out, canonical_json(ledger(extraction, registry)))
        if chosen.coverage:
            write_atomically(chosen.coverage, canonical_json(said))
    except MarinReproError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stderr.write(
        f"wrote {chosen.out}: {said['claims']} claims; {said['read']} of {said['numbers']} numbers read, "
        f"{len(said['ambiguous'])} ambiguous, {len(said['oddities'])} oddities\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
