"""When is a rung reproduced? A rerun's final loss against an interval, in both directions: too good is a finding too.

The interval is a predictive one: the mean of reference runs that differ in their seeds alone, wider by Student's t for
as many of them, by the spread of one more run, and by a stated tolerance for what else may differ (machine, compiler).
A reference speaks of one scale and one corpus; where the rerun's differ, no verdict is given, and it is said why. A
published loss is such a reference too: of another corpus, vocabulary and size than every small scale's.

Comes in: a run directory, a reference. Goes out: a `Verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from repro import runs
from repro.errors import RecordError
from repro.files import parse_json, read_bounded

CONFIDENCE = 0.95
# Departures that change what a loss is a loss of, or of what: beside these no published loss says anything.
MEANING = (
    "corpus",
    "tokenizer",
    "vocabulary",
    "sequence length",
    "tokens per active parameter",
    "layers",
    "hidden width",
)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Final losses of runs that differ in their seeds alone, nats a token, held-out and without drops."""

    scale: str
    store: str  # SHA-256 of the token store
    losses: Mapping[str, Sequence[float]]  # by rung
    tolerance: float  # nats a token, for other machines and compilers
    made: str  # with what, and when


class Verdict(NamedTuple):
    """A rerun of a rung against an interval."""

    rung: str
    against: str  # what it is held against
    measured: float | None  # final loss, nats a token
    low: float | None
    high: float | None
    verdict: Literal["reproduced", "worse", "better", "not comparable"]
    why: str


def judge(folder: Path, reference: Reference | None) -> Verdict:
    """A run against a reference of its scale. RecordError where it is no run."""
    identity = runs.read_manifest(folder).identity
    rung, scale = identity["rung"], identity["scale"]
    against = f"seeds at scale {scale}"
    measured = final_loss(folder)

    def unknown(why: str) -> Verdict:
        return Verdict(rung, against, measured, None, None, "not comparable", why)

    if measured is None:
        return unknown("the run has not reached its end.")
    if reference is None or reference.scale != scale:
        return unknown(f"no reference was measured at scale {scale}.")
    if identity["data"].get("store") != reference.store:
        return unknown("its corpus is another one than the reference's.")
    if len(reference.losses.get(rung, ())) < 2:
        return unknown(f"the reference has too few runs of {rung}.")
    low, high = predictive_interval(reference.losses[rung], reference.tolerance)
    verdict: Literal["reproduced", "worse", "better"] = (
        "reproduced" if low <= measured <= high else "worse" if measured > high else "better"
    )
    number = len(reference.losses[rung])
    return Verdict(
        rung, against, measured, low, high, verdict, f"{number} seeds; tolerance {reference.tolerance} nats/token."
    )


def judge_published(folder: Path, published: Mapping[str, float], metric: str) -> Verdict:
    """A run against the record's final losses by rung, of `metric`: only where no departure changes their meaning."""
    identity = runs.read_manifest(folder).identity
    rung = identity["rung"]
    against = f"published {metric}"
    changed = [one["what"] for one in identity["departures"] if one["what"] in MEANING]
    if rung not in published:
        why = "the record has no final loss of this rung."
    elif changed:
        why = f"other {', '.join(changed)} than published ({published[rung]:.4f})."
    else:
        why = f"held-out loss of its own corpus is not {metric} ({published[rung]:.4f}): evaluate that."
    return Verdict(rung, against, final_loss(folder), None, None, "not comparable", why)


def predictive_interval(losses: Sequence[float], tolerance: float) -> tuple[float, float]:
    """Where one more run falls with probability 95%: mean ± t · s · sqrt(1 + 1/n), wider by the tolerance.

    For losses that scatter normally; s is their standard deviation, t Student's quantile with n − 1 degrees. ValueError
    for fewer than two.
    """
    from scipy.special import stdtrit  # light beside scipy.stats

    n = len(losses)
    if n < 2:
        raise ValueError(f"{n} loss: a spread needs at least two.")
    mean = math.fsum(losses) / n
    spread = math.sqrt(math.fsum((loss - mean) ** 2 for loss in losses) / (n - 1))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * spread * math.sqrt(1 + 1 / n) + tolerance
    return mean - half, mean + half


def final_loss(folder: Path) -> float | None:
    """Held-out loss without drops after the run's last step; None where it is not there."""
    losses = [one for one in runs.read_evaluations(folder, runs.HELD_OUT) if one["fraction"] == 1]
    return float(losses[-1]["dropless"]["loss"]) if losses else None


def reference_of(scale: str) -> Reference | None:
    """The reference that was measured for a built-in scale, or None."""
    place = Path(str(resources.files("repro.ladder"))) / f"{Path(scale).stem}_reference.json"
    if not place.is_file():
        return None
    content: Any = parse_json(read_bounded(place), place.name)
    try:
        return Reference(**content)
    except TypeError as error:
        raise RecordError(f"{place}: {error}.") from error
