"""A frozen forecast against what was measured: one's own points, or the record's evaluations.

A frozen law is one of finished runs, fitted to their ends. So of the record only the end of the run is comparable: a
point on the way has a learning rate that has yet to come down. And what was known before the forecast was frozen is no
test of it. Neither can be told of one's own points, which are taken as they are.

Comes in: a `FrozenForecast`, and `Points` or a record. Goes out: `Held`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any, NamedTuple

from repro.errors import UsageError
from repro.ladder.forecast import FrozenForecast
from repro.ladder.points import Points
from repro.ladder.track import Track
from repro.record.facts import Record

SAME = 1e-9  # relative: two places are one


class HeldPoint(NamedTuple):
    """A measured loss beside the frozen law's; in the loss's own unit."""

    place: Mapping[str, float]
    measured: float
    predicted: float
    residual: float  # measured - predicted
    interval_95: tuple[float, float] | None  # where this very place was forecast
    comparable: bool
    why_not: str | None
    source: str


@dataclass(frozen=True, kw_only=True)
class Held:
    """All points in the order given."""

    forecast: FrozenForecast
    points: tuple[HeldPoint, ...]

    def as_json(self) -> dict[str, Any]:
        """The part `frozen` of the command line's `track` object."""
        forecast = self.forecast
        return {
            "file": forecast.path.name,
            "sha256": forecast.sha256,
            "frozen": forecast.frozen.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "program": forecast.program,
            "form": forecast.form.name,
            "formula": forecast.form.formula,
            "coefficients": dict(forecast.coefficients),
            "points": [
                one._asdict()
                | {"place": dict(one.place), "interval_95": list(one.interval_95) if one.interval_95 else None}
                for one in self.points
            ],
        }


def hold_points(forecast: FrozenForecast, measured: Points) -> Held:
    """The frozen law against one's own measurements."""
    pairs = zip(measured.places(), measured.losses, strict=True)
    return Held(
        forecast=forecast,
        points=tuple(
            _hold(forecast, place, loss, (), measured.where(index)) for index, (place, loss) in enumerate(pairs)
        ),
    )


def hold_record(forecast: FrozenForecast, record: Record, track: Track) -> Held:
    """The frozen law against the record's evaluations. UsageError where it asks for more than their compute."""
    if forecast.form.columns != ("flops",):
        raise UsageError(
            f"--frozen {forecast.path}: form {forecast.form.name} needs {' and '.join(forecast.form.columns)}, and the "
            "record's evaluations say only what compute they took. Give measurements with --points FILE.csv."
        )
    recipe, published = track.recipe, track.study.fit.forecast
    with_head = published.compute == "with_lm_head"
    flops = recipe.flops_per_step_with_lm_head if with_head else recipe.flops_per_step_without_lm_head
    dates = {one.step: one.evaluated_at for one in record.hero_evaluations}
    return Held(
        forecast=forecast,
        points=tuple(
            _hold(
                forecast,
                {"flops": float((point.step + 1) * flops)},
                point.measured,
                tuple(_doubts(forecast, record, point.step + 1, published.target_steps, dates[point.step])),
                f"hero_evaluations.csv, step {point.step}; FLOPs {published.compute.replace('_', ' ')}",
            )
            for point in track.points
        ),
    )


def _doubts(
    forecast: FrozenForecast, record: Record, completed: int, planned: int, evaluated_at: str | None
) -> Iterator[str]:
    if completed < planned:
        yield f"{completed / planned:.1%} of the run: a law of finished runs does not speak of it"
    known_by = _known_by(record, evaluated_at)
    if known_by < forecast.frozen:
        yield f"known by {known_by:%Y-%m-%d}, before the forecast was frozen"


def _known_by(record: Record, evaluated_at: str | None) -> datetime:
    """When the evaluation was there; where the record has no time of it that can be read, the end of the record."""
    try:
        moment = datetime.fromisoformat(evaluated_at or "")
    except ValueError:
        return datetime.combine(record.run.snapshot, time.max, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _hold(
    forecast: FrozenForecast, place: Mapping[str, float], measured: float, doubts: Sequence[str], source: str
) -> HeldPoint:
    predicted = forecast.loss_at(place)
    return HeldPoint(
        place=place,
        measured=measured,
        predicted=predicted,
        residual=measured - predicted,
        interval_95=_interval(forecast, place),
        comparable=not doubts,
        why_not="; ".join(doubts) or None,
        source=source,
    )


def _interval(forecast: FrozenForecast, place: Mapping[str, float]) -> tuple[float, float] | None:
    """The interval that was frozen with the forecast of this place; None where it was not asked for, or had none."""
    for row in forecast.fit["predictions"]:
        if row["interval_95"] and all(math.isclose(row[name], value, rel_tol=SAME) for name, value in place.items()):
            low, high = row["interval_95"]
            return low, high
    return None
