"""An audit with its inputs as one RO-Crate: the report in every form, the record's files, how one came of the other.

Source: the RO-Crate specification, https://w3id.org/ro/crate; the library `rocrate` writes the metadata. Equal audits
give equal crates: the only date is that of the record's snapshot.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from audits.report.document import Json
from repro import __version__
from repro.record.facts import Record
from repro.record.lock import ANNOTATIONS, LOCK, file_names

FORMATS = {
    ".html": "text/html",
    ".md": "text/markdown",
    ".json": "application/json",
    ".sarif": "application/sarif+json",
    ".xml": "application/xml",
    ".csv": "text/csv",
    ".toml": "application/toml",
}
SOFTWARE = "#marin-repro"


def write_crate(folder: Path, document: Json, texts: Mapping[str, str], record: Record) -> Path:
    """Write the crate into `folder`, in place of one that was there, and return the path of its metadata.

    The folder is made beside and moved into place, so that a crate is whole or not there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".crate-") as place:
        made, reports = Path(place) / "crate", Path(place) / "reports"
        reports.mkdir()
        crate = _crate(document, record)
        unlocked = [name for name in (LOCK, ANNOTATIONS) if (record.folder / name).is_file()]
        inputs = [
            crate.add_file(record.folder / name, f"record/{name}", properties=_properties(name, record))
            for name in (*file_names(record.folder), *unlocked)
        ]
        results = []
        for name, text in texts.items():
            (reports / name).write_text(text, encoding="utf-8")
            results.append(
                crate.add_file(reports / name, name, properties={"encodingFormat": FORMATS[Path(name).suffix]})
            )
        crate.add(
            ContextEntity(
                crate,
                "#audit",
                properties={
                    "@type": "CreateAction",
                    "name": f"Audit of {document['run']}",
                    "description": f"marin-repro audit --record record --out audit, version {__version__}",
                    "instrument": {"@id": SOFTWARE},
                    "object": [{"@id": one.id} for one in inputs],
                    "result": [{"@id": one.id} for one in results],
                },
            )
        )
        crate.root_dataset["mentions"] = {"@id": "#audit"}
        crate.write(made)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    return folder / "ro-crate-metadata.json"


def _crate(document: Json, record: Record) -> ROCrate:
    crate = ROCrate(gen_preview=False)
    crate.name = f"Audit of {document['run']}"
    counts = ", ".join(f"{number} {severity}" for severity, number in document["summary"].items())
    crate.description = f"What the public record of {document['run']} says, and where it contradicts itself: {counts}."
    crate.datePublished = record.run.snapshot
    crate.license = "https://spdx.org/licenses/Apache-2.0"
    crate.add(
        ContextEntity(
            crate,
            SOFTWARE,
            properties={"@type": "SoftwareApplication", "name": "marin-repro", "softwareVersion": __version__},
        )
    )
    if document["generated_from"]["issue"]:
        crate.root_dataset["isBasedOn"] = document["generated_from"]["issue"]
    return crate


def _properties(name: str, record: Record) -> dict[str, object]:
    """What record.toml says of a file: what it is, and where it comes from."""
    known = {file.name: file for file in record.files}.get(name)
    properties: dict[str, object] = {"encodingFormat": FORMATS.get(Path(name).suffix, "application/octet-stream")}
    if known is not None:
        properties |= {"description": known.what, "isBasedOn": list(known.urls)}
    locked = (record.lock or {}).get(name)
    if locked is not None:
        properties |= {"sha256": locked.sha256, "contentSize": str(locked.bytes)}
    return properties
