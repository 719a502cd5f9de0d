"""claims.json of a fetched record: what rules read out of its texts, where people have not written one.

Reading texts is not done here: the command line gives a function that does. What it finds stands in record.toml as
derived, with the addresses of its sources, and so is made anew whenever the bytes change; a claims.json that people
wrote is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repro.files import parse_json, read_bounded, write_atomically
from repro.record.artifacts import DERIVED, NAME, RecordFile, read_contents
from repro.record.derived import name_in_record
from repro.record.facts import CLAIMS

Extract = Callable[[Path], str]  # a record's folder, locked → the text of a claims.json


def derive_claims(folder: Path, extract: Extract) -> tuple[str, ...]:
    """Write the claims that the record's texts hold, and name the file in record.toml. The name, where it was written;
    none where the texts hold no claim, or people wrote the file. Raises RecordError for a damaged record."""
    contents = read_contents(read_bounded(folder / NAME))
    derived = tuple(file for file in contents.files if file.is_derived)
    if (folder / CLAIMS).exists() and CLAIMS not in [file.name for file in derived]:
        return ()
    text = extract(folder)
    found = parse_json(text.encode(), CLAIMS)
    if not found["claims"]:
        return ()
    addresses = dict.fromkeys(source["address"].partition("#")[0] for source in found["sources"])
    entry = RecordFile(
        name=CLAIMS,
        what="claims out of the record's texts: issues, pages, configurations, code",
        sources=tuple(addresses),
        date="as locked in record.lock.json",
        left_out="numbers that no rule reads, or that may be one of several quantities",
        checked=f"{DERIVED}; read by rules, looked at by nobody",
    )
    write_atomically(folder / CLAIMS, text)
    name_in_record(folder, contents, (*(file for file in derived if file.name != CLAIMS), entry))
    return (CLAIMS,)
