"""Precision and recall of the extraction on a thread, against claims that people read out of it.

    python benchmarks/extraction.py THREAD.md CLAIMS.json [--aliases QUANTITIES.toml] [--record DIR] [--all]

THREAD is an archive of one thread: each post under a line "# heading" followed by "URL: address". CLAIMS is a
claims.json; those of its numeric claims count whose source has one of the thread's addresses, and whose quantity the
registry, with the quantities.toml of the record, knows (with --all: every one).

Recall: claims of the file that were extracted, of all that count. Precision: extracted claims that the file has, at any
of its sources, or that the tables of the record have, of all extracted. The others are listed, to be judged by a
person: a list that people wrote is not complete. Two claims are the same where quantity and printed value agree and
both speak of the same rung, step and phase, and both of the run itself or both of something else. A printed number that
the file states twice, in two scopes, counts once.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from audits.claims import Claim, Date, read_ledger
from audits.extract.documents import Document
from audits.extract.extraction import Extraction, coverage, extract, ledger
from audits.extract.registry import NAME, read_registry
from audits.extract.scopes import subject_of
from audits.intervals import Interval, overlap
from audits.tables import table_claims
from repro.record.facts import load_record

POST = re.compile(r"^# (?P<title>[^\n]{1,200})\nURL: (?P<url>\S{1,500})\n", re.MULTILINE)
NARROW = ("rung", "step", "phase")  # keys of a scope that must be equal
BESIDE = ("moment", "segment")  # keys that do not say which thing is meant


def documents(thread: str) -> list[Document]:
    """The posts of an archived thread."""
    heads = list(POST.finditer(thread))
    ends = [*(one.start() for one in heads[1:]), len(thread)]
    found = []
    for number, (head, end) in enumerate(zip(heads, ends, strict=True)):
        date = next(iter(re.findall(r"[0-9]{4}-[0-9T:-]{6,15}Z?", head["title"])), "")
        kind = "issue-comment" if "issuecomment" in head["url"] else "issue-body"
        when = Date(text=date or "not known", first=date, last=date)
        title = f"# {head['title']}\n\n" if kind == "issue-body" else ""
        text = title + thread[head.end() : end]
        found.append(
            Document(
                id=f"post-{number}",
                kind=kind,
                address=head["url"],
                citation=head["title"],
                date=when,
                form="markdown",
                text=text,
            )
        )
    return found


def same(first: Claim, second: Claim) -> bool:
    """Whether two claims state the same; see the head of this file."""
    if first.quantity != second.quantity or _about(first) != _about(second):
        return False
    if isinstance(first.value, Interval) and isinstance(second.value, Interval):
        pair = (first.value, second.value)
        beside = any(one.low <= other.middle <= one.high for one, other in (pair, pair[::-1]))
        return overlap(*pair) and (beside or bool({*_ends(pair[0])} & {*_ends(pair[1])}))
    return first.value == second.value


def _ends(value: Interval) -> tuple[Any, Any, Any]:
    return value.low, value.middle, value.high


def _about(claim: Claim) -> tuple[Any, ...]:
    scope = dict(claim.scope)
    rest = set(scope) - {*NARROW, *BESIDE}
    return (*(scope.get(key) for key in NARROW), bool(rest))


def once(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Claims that say one printed number of one source, together."""
    groups: dict[tuple[str, str, str, str], list[Claim]] = {}
    for one in claims:
        name = "" if "chain" in dict(one.scope) or not one.scope else json.dumps(one.scope)
        groups.setdefault((one.source.id, one.quantity, one.printed, name), []).append(one)
    return list(groups.values())


def measure(
    extraction: Extraction, found: Sequence[Claim], wanted: Sequence[list[Claim]], right: Sequence[Claim]
) -> dict[str, Any]:
    """The figures, and the lists of what was missed and of what stands nowhere else."""
    by_source = {one.id: one.address for one in extraction.documents}
    missed, hit = [], 0
    for group in wanted:
        at_source = [one for one in found if by_source.get(one.source.id) == group[0].source.address]
        if any(same(one, claim) for one in at_source for claim in group):
            hit += 1
        else:
            missed.append(group[0])
    odd = [one for one in found if not any(same(one, claim) for claim in right)]
    said = coverage(extraction)
    return {
        "numbers": said["numbers"],
        "read": said["read"],
        "claims": len(found),
        "ambiguous": len(said["ambiguous"]),
        "wanted": len(wanted),
        "recall": hit / len(wanted) if wanted else None,
        "precision": (len(found) - len(odd)) / len(found) if found else None,
        "missed": [_shown(one) for one in missed],
        "not_in_the_file": [_shown(one) for one in odd],
    }


def _shown(one: Claim) -> str:
    return f"{one.source.id} {one.id}: {one.quantity} {one.printed} {dict(one.scope) or ''} “{one.quote}”"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("thread", type=Path)
    parser.add_argument("claims", type=Path)
    parser.add_argument("--aliases", type=Path, action="append", default=[])
    parser.add_argument("--record", type=Path, help="record whose names and tables are used; default: the built-in one")
    parser.add_argument("--all", action="store_true", help="count quantities that the registry does not know, too")
    chosen = parser.parse_args(arguments)
    record = load_record(chosen.record)
    own = [path for path in (record.folder / NAME, *chosen.aliases) if path.is_file()]
    registry = read_registry(*(path.read_bytes() for path in own))
    start = time.perf_counter()
    extraction = extract(documents(chosen.thread.read_text()), registry, subject_of(record))
    seconds = time.perf_counter() - start
    found = read_ledger(json.dumps(ledger(extraction, registry)).encode()).claims
    published = read_ledger(chosen.claims.read_bytes())
    addresses = {one.address for one in extraction.documents}
    here = [
        one
        for one in published.claims
        if one.source.address in addresses
        and (chosen.all or one.quantity in registry.entries)
        and isinstance(one.value, Interval)
    ]
    numeric = [one for one in found if isinstance(one.value, Interval)]
    result = measure(extraction, numeric, once(here), [*published.claims, *table_claims(record)])
    for key in ("missed", "not_in_the_file"):
        for line in result[key]:
            print(f"{key}: {line}")
    for key, value in result.items():
        if not isinstance(value, list):
            print(f"{key}: {value:.4f}" if isinstance(value, float) else f"{key}: {value}")
    print(f"seconds: {seconds:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
