"""The claims of a fetched record, read out of its texts: `audits.extract` for `fetch`, which may not know of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def extracted_claims(folder: Path, unreadable: Callable[[str], None]) -> str:
    """The text of claims.json for a record. Its own quantities.toml adds words; the built-in run has the built-in one.
    `unreadable` hears of texts that are not of their form. Raises RecordError for a damaged record."""
    from audits.extract.__main__ import record_documents
    from audits.extract.extraction import extract, ledger
    from audits.extract.registry import NAME, read_registry
    from audits.extract.scopes import subject_of
    from repro.files import canonical_json, read_bounded
    from repro.record.facts import load_record
    from repro.record.profile import built_in_folder, built_in_run

    record = load_record(folder)
    own = folder / NAME
    if not own.is_file() and record.run.name == built_in_run():
        own = built_in_folder() / NAME
    registry = read_registry(*([read_bounded(own)] if own.is_file() else []))
    extraction = extract(list(record_documents(folder, unreadable)), registry, subject_of(record))
    return canonical_json(ledger(extraction, registry))
