"""Mutation testing of the auditor: in a consistent record one claim is changed at a time; is it found, and named?

    python benchmarks/mutations.py [--record DIR] [--every N] [--missed]

The record is DIR, or the consistent part of the built-in one: its claims and tables without those that its findings are
about. Every numeric claim in turn is doubled, has two neighbouring digits swapped, and is moved by ten half-widths of
its printed digits (of an exact number, by five units of its last digit that is not zero). A mutation counts as found
where a finding is there that was not, of severity error, warning or explained, and that names the claim among its
suspects.

*Covered* is a claim that something was held against: another source or table states the same, or it is an argument of a
relation that had all its arguments. What is missed of these is listed with --missed: most often the only other
statement is so wide ("about", "over 390,000") that the changed number still fits into it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from audits.check import Audit, audit_record
from audits.claims import Claim, Ledger, read_ledger
from audits.intervals import NUMBER, Interval, read_number
from repro.record.facts import Record, load_record

KINDS = ("doubled", "digits swapped", "ten half-widths")
GRAVE = ("error", "warning", "explained")


@dataclass(frozen=True)
class Outcome:
    """What became of one mutation."""

    claim: str
    kind: str
    text: str  # the number as changed
    covered: bool
    found: bool  # a new finding that names the claim
    unnamed: bool  # a new finding, but none that names it


def consistent_tables(record: Record) -> Record:
    """The record without what alone shows a check something.

    That is what was read, the evaluations that the forecast was fitted on, and the later configuration.
    """
    configuration = record.run_configuration
    if configuration is not None:
        leaves: dict[str, Any] = configuration.resolved()
        leaves["model"] |= configuration.first.leaves["model"]
        leaves["optimizer"].pop("weight_decay", None)
        configuration = replace(configuration, first=replace(configuration.first, leaves=leaves), latest=None)
    return replace(
        record,
        run_configuration=configuration,
        training_data=tuple(one for one in record.training_data if _is_the_run(record, one.rung, one.status)),
        ladder_grid={},
        ladder_h100_mix25=(),
    )


def consistent_part(record: Record) -> tuple[Record, Ledger]:
    """The record without what its own findings are about: no error and no warning is left.

    Beside what `consistent_tables` leaves out, those claims go that stand on the odd side of a finding, or drifted, or
    that a check's finding rests on.
    """
    assert record.claims is not None
    ledger = read_ledger(record.claims)
    record = consistent_tables(record)
    while True:
        wrong: set[str] = set()
        for finding in audit_record(record, ledger).findings:
            if finding.observation is not None:
                wrong |= {claim.id for claim in finding.observation.claims} if finding.severity != "note" else set()
            elif finding.severity != "note" or finding.explanation is not None:
                odd = {claim.id for value in finding.odd for claim in value.published}
                wrong |= odd or {claim.id for value in finding.values for claim in value.published}
        own = {claim.id for claim in ledger.claims}
        if not wrong & own:
            return record, ledger
        kept = tuple(claim for claim in ledger.claims if claim.id not in wrong)
        rest = tuple(one for one in ledger.explanations if one.kind != "contradiction")  # of those there are none left
        ledger = replace(ledger, claims=kept, explanations=rest)


def _is_the_run(record: Record, rung: str, status: str) -> bool:
    """Whether what is read is what the run read, not what a rung did, or what was planned."""
    return record.forecast is not None and rung == record.forecast.target and status == "ran"


def mutations(claim: Claim) -> Iterator[tuple[str, Claim]]:
    """The claim changed in each way that changes it by more than its rounding."""
    if not isinstance(claim.value, Interval):
        return
    if " to " in claim.printed:
        low, high = (read_number(end, "exact").low for end in claim.printed.split(" to "))
        for kind, value in (
            ("doubled", Interval(2 * low, 2 * high)),
            ("ten half-widths", Interval(low + 5 * (high - low), high + 5 * (high - low))),
        ):
            yield kind, replace(claim, value=value, printed=f"{float(value.low):.6g} to {float(value.high):.6g}")
        return
    text = claim.printed.removeprefix("about ")
    about = claim.printed.removesuffix(text)
    for kind, changed in zip(KINDS, (_doubled(text), _swapped(text), _moved(text, claim)), strict=True):
        if changed is not None:
            value = read_number(changed, claim.digits)  # type: ignore[arg-type]
            if value.low > claim.value.high or value.high < claim.value.low:
                yield kind, replace(claim, value=value, printed=about + changed)


def mutate(record: Record, ledger: Ledger, every: int = 1) -> Iterator[Outcome]:
    """Change each `every`-th claim in every way, one at a time, and audit again."""
    before = audit_record(record, ledger)
    known = _grave(before)
    checked = set(before.coverage.compared) | set(before.coverage.related)
    for place in range(0, len(ledger.claims), every):
        claim = ledger.claims[place]
        for kind, changed in mutations(claim):
            claims = (*ledger.claims[:place], changed, *ledger.claims[place + 1 :])
            after = _grave(audit_record(record, replace(ledger, claims=claims)))
            fresh = after.keys() - known.keys()
            named = any(claim.id in after[key] for key in fresh)
            yield Outcome(claim.id, kind, changed.printed, claim.id in checked, named, bool(fresh) and not named)


def _grave(audit: Audit) -> dict[tuple[str, str, str], tuple[str, ...]]:
    return {(one.id, one.severity, one.title): one.suspects for one in audit.findings if one.severity in GRAVE}


def _parts(text: str) -> tuple[str, str, str]:
    """Sign and mantissa without separators, and what follows."""
    match = NUMBER.fullmatch(text)
    assert match is not None, text
    mantissa = match["whole"].replace(",", "").replace("_", "") + (f".{match['part']}" if match["part"] else "")
    return match["sign"], mantissa, text[match.end("part") if match["part"] else match.end("whole") :]


def _doubled(text: str) -> str | None:
    sign, mantissa, rest = _parts(text)
    return f"{sign}{2 * Decimal(mantissa):f}{rest}" if Decimal(mantissa) else None


def _swapped(text: str) -> str | None:
    """The first two neighbouring digits that differ, swapped; None where there are none."""
    sign, mantissa, rest = _parts(text)
    places = [place for place, letter in enumerate(mantissa) if letter != "."]
    for first, second in pairwise(places):
        if mantissa[first] != mantissa[second]:
            letters = list(mantissa)
            letters[first], letters[second] = letters[second], letters[first]
            return f"{sign}{''.join(letters)}{rest}"
    return None


def _moved(text: str, claim: Claim) -> str | None:
    """Up by ten half-widths of what the digits allow."""
    sign, mantissa, rest = _parts(text)
    last = Decimal(1).scaleb(Decimal(mantissa).as_tuple().exponent)  # type: ignore[arg-type]
    assert isinstance(claim.value, Interval)
    unit = read_number(f"{last:f}{rest}", "exact").low
    if claim.digits == "exact":  # 15,000,000 is counted in millions
        unit, last = _last_digit(mantissa, unit, last)
    width = claim.value.high - claim.value.low or unit
    return f"{sign}{Decimal(mantissa) + last * int(5 * width / unit):f}{rest}"


def _last_digit(mantissa: str, unit: Fraction, last: Decimal) -> tuple[Fraction, Decimal]:
    """The unit of the last digit that is not zero, in the number and in its mantissa."""
    while "." not in mantissa and mantissa.endswith("0") and len(mantissa) > 1:
        mantissa, unit, last = mantissa[:-1], 10 * unit, 10 * last
    return unit, last


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--missed", action="store_true")
    arguments = parser.parse_args()
    if arguments.record is None:
        record, ledger = consistent_part(load_record())
    else:
        record = load_record(arguments.record)
        ledger = read_ledger(record.claims or b"{}")
    start = time.monotonic()
    coverage = audit_record(record, ledger).coverage
    outcomes = list(mutate(record, ledger, arguments.every))
    covered = [one for one in outcomes if one.covered]
    print(f"{coverage.claims} claims, {coverage.numbers} of them numbers; {coverage.share:.1%} of all are covered")
    for kind in KINDS:
        rows = [one for one in covered if one.kind == kind]
        found = sum(one.found for one in rows)
        print(f"{kind:16} {len(rows):4} covered, {found:4} found and named ({found / max(len(rows), 1):.1%})")
    found = sum(one.found for one in covered)
    print(f"all kinds        {len(covered):4} covered, {found:4} found and named ({found / max(len(covered), 1):.1%})")
    print(f"found without the claim among the suspects: {sum(one.unnamed for one in covered)}")
    print(f"not covered: {Counter(one.kind for one in outcomes if not one.covered)}")
    print(f"{time.monotonic() - start:.0f} s")
    if arguments.missed:
        for one in covered:
            if not one.found:
                print(f"  missed: {one.claim} {one.kind} to {one.text}{' (found, not named)' if one.unnamed else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
