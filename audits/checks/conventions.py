"""One word for two things: a quantity counted in two ways, a metric without its mean, a gain without its floor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from audits.checks.observation import Observation, View, several
from audits.claims import Claim, Scope
from audits.computed import compute_by_rung
from audits.derive import Statement
from audits.intervals import Interval, overlap, relative_difference
from repro.record.facts import RUN_CONFIGURATION

SLIGHT = 1e-3  # relative; two ways of counting that differ by less mislead nobody
SAME_FLOAT = 1e-6  # relative; two float32 sums of one set differ by less


def two_ways_of_counting(view: View) -> Iterator[Observation]:
    """A quantity that is published in two conventions which rounding does not reconcile: one observation a quantity."""
    for name, quantity in sorted(view.ledger.quantities.items()):
        if len(quantity.conventions) < 2:
            continue
        lines: list[str] = []
        involved: list[Claim] = []
        for scope in sorted({one.scope for one in view.claims(name)}):
            said = [one for one in view.claims(name) if one.scope == scope]
            usual = view.best(name, scope)
            for other in said:
                if other.convention in ("", quantity.conventions[0]) or usual is None:
                    continue
                if _apart(usual, other):
                    lines.append(f"{usual.printed} against {other.printed}{_of(scope)}{_ratio(usual, other)}")
                    involved += [other, *(one for one in said if one.convention in ("", quantity.conventions[0]))]
        if lines:
            ways = sorted({one.convention for one in involved} - {"", quantity.conventions[0]})
            yield Observation(
                kind="definition",
                quantity=name,
                expected="one way of counting",
                found=f"{quantity.conventions[0]}, and {several(ways)}",
                arithmetic=several(lines),
                claims=tuple(dict.fromkeys(involved)),
                rule="a quantity is counted in one way, or says in which",
                settles="Say the convention wherever the number stands.",
            )


def bare_means(view: View) -> Iterator[Observation]:
    """A logged metric without macro or micro in its name, beside one with: which of the two it is."""
    configuration = view.record.run_configuration
    lines = sorted(_bare(configuration.summary)) if configuration else []
    if lines:
        yield Observation(
            kind="definition",
            quantity="evaluation.bare_mean",
            expected="the macro mean",
            found="another mean",
            arithmetic=f"{RUN_CONFIGURATION}, summary: {several(lines)}",
            claims=(*view.claims("evaluation.bare_mean"), *view.claims("forecast.bpb")),
            tables=(RUN_CONFIGURATION,),
            rule="a metric says over what it averages",
            settles="The pinned evaluator: its numerator and denominator.",
        )


def gains_without_floor(view: View) -> Iterator[Observation]:
    """A gain in loss that is told as a gain in compute: how far it hangs on the floor that was assumed."""
    claims = view.claims("mixture.compute_gain")
    points = _gain_points(view)
    if not claims or len(points) < 3:
        return
    floors = {"a floor of 0": 0.0}
    through = _floor([(flops, before) for flops, before, _ in points])
    if through is not None:
        floors[f"the floor {through:.4g} that the points give"] = through
    gains = {words: _gain(points, floor) for words, floor in floors.items()}
    lowest, highest = min(gains.values()), max(gains.values())
    _, before, after = points[-1]
    if all(isinstance(one.value, Interval) and one.value.low <= lowest and highest <= one.value.high for one in claims):
        return
    yield Observation(
        kind="definition",
        quantity="mixture.compute_gain",
        scope=claims[0].scope,
        expected=f"a loss lower by {1 - after / before:.2%}",
        found=f"{claims[0].printed} times the compute",
        arithmetic=f"{before:.6g} to {after:.6g} bits a byte: "
        + several([f"×{gain:.4f} with {words}" for words, gain in gains.items()]),
        claims=tuple(claims),
        tables=("ladder_h100_mix25.csv", "ladder_rungs.csv"),
        rule="compute gain = (loss before ÷ loss after)^(1 ÷ exponent of the law), above a floor",
        settles="Say the floor and the exponent with the gain, or the difference of the losses.",
    )


def _apart(first: Statement, second: Statement) -> bool:
    numbers = isinstance(first.value, Interval) and isinstance(second.value, Interval)
    if not numbers or overlap(first.value, second.value):  # type: ignore[arg-type]
        return False
    difference = relative_difference(second.value, first.value)  # type: ignore[arg-type]
    return difference is None or abs(difference) > SLIGHT


def _ratio(first: Statement, second: Statement) -> str:
    assert isinstance(first.value, Interval)
    assert isinstance(second.value, Interval)
    return f", ×{float(first.value.middle / second.value.middle):.4g}" if second.value.middle else ""


def _of(scope: Scope) -> str:
    return f" ({', '.join(value for _, value in scope)})" if scope else ""


def _bare(place: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in place.items():
        if isinstance(value, Mapping):
            yield from _bare(value, f"{prefix}{key}/")
        twin = place.get(f"macro_{key}")
        if (
            isinstance(value, int | float)
            and isinstance(twin, int | float)
            and not math.isclose(value, twin, rel_tol=SAME_FLOAT)
        ):
            yield f"{prefix}{key} is {value:.6g}, {prefix}macro_{key} {twin:.6g}"


def _gain_points(view: View) -> list[tuple[float, float, float]]:
    """Compute without the LM head, mean bits a byte before and after, for each rung of the study, small to large."""
    sums: dict[str, list[tuple[float, float]]] = {}
    for row in view.record.ladder_h100_mix25:
        sums.setdefault(row.rung, []).append((row.ladder_bpb, row.mix25_bpb))
    spent = compute_by_rung(view.record)
    return sorted(
        (spent[rung], math.fsum(one for one, _ in rows) / len(rows), math.fsum(one for _, one in rows) / len(rows))
        for rung, rows in sums.items()
        if rung in spent
    )


def _gain(points: list[tuple[float, float, float]], floor: float) -> float:
    """(before ÷ after)^(1 ÷ exponent) at the largest rung, all above the floor."""
    slope = _slope([(flops, before - floor) for flops, before, _ in points])
    _, before, after = points[-1]
    return float(((before - floor) / (after - floor)) ** (-1 / slope))


def _slope(points: list[tuple[float, float]]) -> float:
    """Of log value over log compute, least squares."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    middle, mean = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    return math.fsum((x - middle) * (y - mean) for x, y in zip(xs, ys, strict=True)) / math.fsum(
        (x - middle) ** 2 for x in xs
    )


def _floor(points: list[tuple[float, float]]) -> float | None:
    """The floor above which the first, middle and last point lie on one power law; None where there is none from 0 up.

    Bisection: the bend of three points in log-log falls as the floor rises.
    """
    first, middle, last = points[0], points[len(points) // 2], points[-1]

    def bend(floor: float) -> float:
        (a, fa), (b, fb), (c, fc) = ((math.log(x), math.log(y - floor)) for x, y in (first, middle, last))
        return (fb - fa) / (b - a) - (fc - fb) / (c - b)

    low, high = 0.0, last[1] * (1 - 1e-9)
    if bend(low) > 0 or bend(high) < 0:
        return None
    for _ in range(100):
        mid = (low + high) / 2
        low, high = (mid, high) if bend(mid) < 0 else (low, mid)
    return low
