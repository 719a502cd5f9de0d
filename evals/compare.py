"""A run's evaluations beside the record's, at matched fractions of the run; differing definitions instead of numbers.

Comes in: a run directory and a record. Goes out: plain JSON values for a report. A difference is given only where both
values have one definition (`evals.identity`); else it is said what differs, or what is not known of the published one.

What is known of the published values: Paloma at its pinned revision, windows and batches of the rung as launched, the
router bias as saved until marin-community/marin#9352 was corrected (2026-09-22). What is not: the digest of the
tokenizer, and which bias later evaluations had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evals.identity import (
    BPB,
    DENOMINATORS,
    DROPLESS,
    LOSS,
    Average,
    Comparison,
    Metric,
    MetricIdentity,
    as_trained_dispatch,
    compare,
    in_words,
    metric_from_json,
    sets_in_words,
)
from evals.sources import PALOMA, PUBLISHED_TEXTS, SETS, UNCHEATABLE
from repro import runs
from repro.ladder.recipe import Recipe, resolve_recipe
from repro.ladder.rungs import RUNGS
from repro.record.facts import Record
from repro.record.tables import HeroEvaluation

Json = dict[str, Any]
NEAR = 0.005  # of a run: further apart are two fractions not matched
BIAS_CORRECTED = "2026-09-22"  # marin-community/marin#9352
RAGGED_FROM = 81_716  # step of the hero from which its transport is another; marin-community/marin#8435
ALL_SETS = sets_in_words([PALOMA], len(SETS[PALOMA]))
RAGGED = "ragged, 64 shards, 2 chunks, receiver 1.15"  # marin-community/marin#8549


class Published(NamedTuple):
    """One evaluation of the record: zero-based step, fraction of the run done, metrics by the name of their log."""

    step: int
    fraction: float
    metrics: Mapping[str, Metric]


def compare_with_record(folder: Path, record: Record) -> Json:
    """Every Paloma value of a run that the record has too: `rows`, and `unmatched`, evaluations that it lacks.

    Raises RecordError where the folder is no run, or a result file is damaged.
    """
    identity = runs.read_manifest(folder).identity
    published = published_evaluations(record, identity["rung"])
    rows: list[Json] = []
    unmatched: list[Json] = []
    for suite in (PALOMA, f"{PALOMA}+{UNCHEATABLE}"):
        for result in runs.read_evaluations(folder, suite):
            near = min(published, key=lambda one: abs(one.fraction - result["fraction"]), default=None)
            where = {"rung": identity["rung"], "scale": identity["scale"], "fraction": result["fraction"]}
            where |= {"data": result["data"]["kind"], "router_bias": result["router_bias"]}
            if near is None or abs(near.fraction - result["fraction"]) > NEAR:
                unmatched.append({**where, "why": "the record has no evaluation of this rung at this fraction"})
            else:
                rows += [{**where, **row} for row in _rows(result, near)]
    return {"rows": rows, "unmatched": unmatched}


def published_evaluations(record: Record, rung: str) -> list[Published]:
    """The record's evaluations of a rung, in order. Empty for a rung that it does not know."""
    if rung not in RUNGS:
        return []
    recipe = resolve_recipe(rung)
    of_ladder = [
        Published(
            row.step,
            row.fraction,
            dict(_dropless_losses(recipe, "saved", row.macro_loss, row.losses)),
        )
        for row in record.ladder_domains
        if row.rung == rung
    ]
    of_hero = [
        Published(row.step, (row.step + 1) / recipe.steps, dict(_hero_metrics(recipe, row)))
        for row in record.hero_evaluations
        if record.forecast is not None and record.forecast.target == rung
    ]
    return sorted(of_ladder + of_hero, key=lambda one: one.step)


def _rows(result: Mapping[str, Any], near: Published) -> Iterator[Json]:
    for name, theirs in near.metrics.items():
        if name not in result["metrics"]:
            continue
        ours = metric_from_json(result["metrics"][name])
        found = compare(theirs, ours)
        yield {
            "metric": name,
            "ours": ours.value,
            "published": theirs.value,
            "published_step": near.step,
            "published_fraction": near.fraction,
            "verdict": found.verdict,
            "difference": found.difference,  # ours less published
            "why": _why(found),
            "differing": [one._asdict() for one in found.differing],  # first: published, second: ours
            "unknown": [one._asdict() for one in found.unknown],
        }


def _why(found: Comparison) -> str:
    """What differs, published first, and what is not known."""
    return "; ".join(in_words(one) for one in (*found.differing, *found.unknown))


def _hero_metrics(recipe: Recipe, row: HeroEvaluation) -> Iterator[tuple[str, Metric]]:
    bias = "saved" if row.evaluated_at and row.evaluated_at < BIAS_CORRECTED else None
    yield from _dropless_losses(recipe, bias, row.dropless_macro_loss, row.domain_losses)
    sent = as_trained_dispatch(recipe) if row.step < RAGGED_FROM else RAGGED
    of_paloma: tuple[tuple[str, float | None, str, Average, str], ...] = (
        ("eval_dropless/paloma/micro_loss", row.dropless_micro_loss, LOSS, "micro", DROPLESS),
        ("eval_dropless/paloma/macro_bpb", row.dropless_macro_bpb, BPB, "macro", DROPLESS),
        ("eval_dropless/paloma/bpb", row.dropless_micro_bpb, BPB, "micro", DROPLESS),
        ("eval/paloma/macro_loss", row.as_trained_macro_loss, LOSS, "macro", sent),
        ("eval/paloma/micro_loss", row.as_trained_micro_loss, LOSS, "micro", sent),
        ("eval/paloma/macro_bpb", row.as_trained_macro_bpb, BPB, "macro", sent),
    )
    for path, value, name, average, dispatch in of_paloma:
        if value is not None:
            yield path, Metric(value, _identity(recipe, name, average, ALL_SETS, dispatch, bias))


def _dropless_losses(
    recipe: Recipe, bias: str | None, macro: float, losses: Mapping[str, float]
) -> Iterator[tuple[str, Metric]]:
    yield "eval_dropless/paloma/macro_loss", Metric(macro, _identity(recipe, LOSS, "macro", ALL_SETS, DROPLESS, bias))
    for name, loss in losses.items():
        which = f"{PALOMA}/{name}"
        yield f"eval_dropless/{which}/loss", Metric(loss, _identity(recipe, LOSS, "set", which, DROPLESS, bias))


def _identity(
    recipe: Recipe, name: str, average: Average, sets: str, dispatch: str, bias: str | None
) -> MetricIdentity:
    return MetricIdentity(
        name=name,
        average=average,
        sets=sets,
        dispatch=dispatch,
        router_bias=bias,
        context=recipe.seq_len,
        batch=(recipe.gpus, recipe.seq_len),
        tokenizer=None,
        byte_denominator=DENOMINATORS[name],
        level="published",
        data=PUBLISHED_TEXTS,
    )
