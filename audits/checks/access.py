"""What an outsider can have, and where it is said to be: closed doors, lost inputs, empty fields, dead references."""

from __future__ import annotations

import re
from collections.abc import Iterator

from audits.checks.observation import Observation, View, several
from audits.claims import Claim

OPEN = {"yes", "open", "public", "published", "offered", "available"}
ACCESS = "access."  # quantities that say whether an outsider can have something begin so
KEPT = ("checkpoint.durable_copy", "run.commit_pushed")  # and these two, of what was promised to stay
LICENCES = ("licence.code", "licence.weights", "licence.data")
EMPTY = {"null", "none", "empty"}


def closed_doors(view: View) -> Iterator[Observation]:
    """Something that the record rests on, which an outsider cannot have: one observation a quantity."""
    names = sorted(name for name in view.ledger.quantities if name.startswith(ACCESS) or name in KEPT)
    for name in names:
        closed = [one for one in view.claims(name) if isinstance(one.value, str) and one.value not in OPEN]
        if closed:
            places = sorted({", ".join(value for _, value in one.scope) for one in closed} - {""})
            words = several(sorted({str(one.value) for one in closed}))
            yield Observation(
                kind="access",
                quantity=name,
                expected="open to anyone",
                found=words + (f" ({several(places)})" if places else ""),
                arithmetic=f"{view.label(name)}: "
                + "; ".join(sorted({f"{one.id} says {one.value}" for one in closed})),
                claims=tuple(closed),
                rule="what a record rests on can be had by an outsider",
                settles="A public copy with its hash, or the publisher's word that there will be none.",
            )


def closed_artifacts(view: View) -> Iterator[Observation]:
    """Artifacts that record.toml lists as forbidden or gated."""
    closed = [one for one in view.record.artifacts if one.expectation != "available"]
    if closed:
        yield Observation(
            kind="access",
            quantity="access.artifacts",
            expected="open to anyone",
            found=several([f"{one.id} ({one.role}) {one.expectation}" for one in closed]),
            arithmetic=f"{len(closed)} of {len(view.record.artifacts)} artifacts cannot be fetched without an account",
            tables=tuple(f"artifact:{one.id}" for one in closed),
            rule="what a record rests on can be had by an outsider",
            settles="marin-repro verify shows whether it is still so.",
        )


def lost_inputs(view: View) -> Iterator[Observation]:
    """A store that some run read, and that is said to be deleted."""
    for claim in view.claims("data.store_to_be_deleted"):
        store = dict(claim.scope).get("store")
        if claim.value != "yes" or not store:
            continue
        readers = [one for one in view.pool.by_quantity.get("data.store", ()) if one.value == store]
        rungs = sorted({", ".join(value for _, value in one.scope) or "the run itself" for one in readers})
        if readers:
            yield Observation(
                kind="provenance",
                quantity=claim.quantity,
                scope=claim.scope,
                expected="inputs are kept",
                found=f"to be deleted; read by {several(rungs)}",
                arithmetic=f"{claim.id} says that the store goes; {several(rungs)} read it",
                claims=(claim, *(one for one in readers if isinstance(one, Claim) and one.id in view.ids)),
                rule="the inputs of a published figure are kept",
                settles="A listing of the store at a later day, or the publisher's word.",
            )


def empty_fields(view: View) -> Iterator[Observation]:
    """A field that is there to say something and is empty."""
    for claim in view.ledger.claims:
        if isinstance(claim.value, str) and claim.value.lower() in EMPTY:
            yield Observation(
                kind="missing",
                quantity=claim.quantity,
                scope=claim.scope,
                expected="filled in",
                found=claim.printed,
                arithmetic=f"{claim.source.citation}: the field is {claim.value}",
                claims=(claim,),
                rule="a field that is published says something",
                settles="The value from another place that was written at the same time.",
            )


def missing_licences(view: View) -> Iterator[Observation]:
    """Of code, weights and data, what has no licence in a record that names that of another."""
    stated = [claim for name in LICENCES for claim in view.claims(name)]
    for name in LICENCES:
        if stated and not view.claims(name):
            yield Observation(
                kind="missing",
                quantity=name,
                expected="stated",
                found="nothing in the record",
                arithmetic=f"licences are stated for {several(sorted({view.label(one.quantity) for one in stated}))}",
                claims=tuple(stated),
                rule="code, weights and data each have a licence",
                settles="A licence file or a model card that names it.",
            )


def dead_references(view: View) -> Iterator[Observation]:
    """A cited comment whose number no comment of that thread can have: numbers grow with time."""
    known: dict[str, list[int]] = {}
    for source in view.ledger.sources.values():
        if match := re.search(r"/(?:issues|pull)/(\d+)#issuecomment-(\d+)", source.address):
            known.setdefault(match[1], []).append(int(match[2]))
    for claim in view.claims("citation.comment"):
        match = re.fullmatch(r"issue (\d+), comment (\d+)", str(claim.value))
        numbers = sorted(known.get(match[1], ())) if match else []
        if match and len(numbers) > 1 and not numbers[0] <= int(match[2]) <= numbers[-1]:
            yield Observation(
                kind="provenance",
                quantity=claim.quantity,
                scope=claim.scope,
                expected=f"a comment of issue {match[1]}",
                found=f"the number {match[2]}, outside that thread",
                arithmetic=f"the {len(numbers)} known comments of issue {match[1]} are {numbers[0]} to {numbers[-1]}",
                claims=(claim,),
                rule="a cited comment is one of its thread",
                settles=f"The list of all comments of issue {match[1]}.",
            )
