"""What was planned or forecast, against what came: the end, milestones, the loss, the stages, what was done twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from fractions import Fraction

from audits.checks.observation import Observation, View, moment, numbers, rounded, several
from audits.claims import Claim
from audits.intervals import Interval
from repro.errors import MarinReproError
from repro.ladder.fit import compare, fit_record
from repro.record.facts import RUN_CONFIGURATION

DAY = 86_400
EARLY = 7  # days; an announced end is a day of a calendar, and a pace varies
REACHED = {"context.early_cooldown_start": "context.early_cooldown_done"}  # planned day: where its outcome would stand
OWN_ERROR = "ladder.extrapolation_error"  # the forecast's own estimate of its error
LARGE = Fraction(1, 100)  # of the loss; a residual that moves by less is noise, where no error is stated
SAME_LAYOUT = Fraction(21, 20)  # checkpoints of one layout differ by less


def announced_ends(view: View) -> Iterator[Observation]:
    """The announced end against the pace so far, from the slowest to the fastest way of reading it."""
    now, start, step, steps = _progress(view)
    claims = view.claims("run.planned_end")
    if now is None or start is None or not step or not steps:
        return
    summary = view.record.run_configuration.summary if view.record.run_configuration else {}
    paces = {"so far": Fraction(int((now - start).total_seconds()), step)}
    if isinstance(seconds := summary.get("throughput/iteration_time"), int | float) and seconds > 0:
        paces["at the last step"] = Fraction(seconds)
    ends = {
        words: now + timedelta(seconds=float((steps - step) * pace)) for words, pace in paces.items() if steps > step
    }
    for claim in claims:
        day = moment(str(claim.value))
        if day is None or not ends or any(abs((end - day).days) <= EARLY for end in ends.values()):
            continue
        if min(ends.values()) < day < max(ends.values()):
            continue
        days = sorted(f"{end:%Y-%m-%d}" for end in ends.values())
        yield Observation(
            kind="drift",
            quantity=claim.quantity,
            scope=claim.scope,
            expected=f"the end on {claim.value}",
            found=f"at this pace {' to '.join(dict.fromkeys(days))}",
            arithmetic=f"{rounded(steps - step, 9)} of {rounded(steps, 9)} steps are left on {now:%Y-%m-%d}: "
            + several(
                [f"{float(pace):.4g} s a step {words} → {ends[words]:%Y-%m-%d}" for words, pace in paces.items()]
            ),
            claims=(claim, *view.claims("run.planned_days"), *view.claims("throughput.calendar_rate")),
            tables=("hero_lineage.csv", RUN_CONFIGURATION),
            rule="end = now + steps left × seconds a step, if nothing about the steps changes",
            settles="The last step's date; longer contexts and cooldowns would slow the pace.",
        )


def milestones(view: View) -> Iterator[Observation]:
    """What was to happen by a day, or a share of the run, that has passed without a word of it."""
    now, start, step, steps = _progress(view)
    if now is None or start is None or not step or not steps:
        return
    elapsed = Fraction(int((now - start).total_seconds()), DAY)
    for planned, outcome in REACHED.items():
        for claim, due in numbers(view.claims(planned)):
            if due.high < elapsed and not view.claims(outcome):
                yield Observation(
                    kind="missing",
                    quantity=planned,
                    scope=claim.scope,
                    expected=f"done by day {rounded(due.high)}",
                    found=f"no word of it on day {rounded(elapsed, 3)}",
                    arithmetic=f"launched {start:%Y-%m-%d}; the record ends {now:%Y-%m-%d}",
                    claims=(
                        claim,
                        *(
                            one
                            for one in view.ledger.claims
                            if one.quote and one.quote == claim.quote and one is not claim
                        ),
                    ),
                    tables=("hero_lineage.csv",),
                    rule="what was planned by a day is reported after it",
                    settles="A run or a comment that reports it, or says that it was dropped.",
                )
    reached = Fraction(step) / Fraction(steps)
    lengths = [one for one, _ in numbers(view.claims("shape.sequence_length")) if "step" in dict(one.scope)]
    first = view.number("shape.sequence_length")
    for claim, due in numbers(view.claims("context.extension_fraction")):
        latest = max(lengths, key=lambda one: int(dict(one.scope)["step"]), default=None)
        if (
            due.high < reached
            and latest is not None
            and isinstance(latest.value, Interval)
            and latest.value.middle == first
        ):
            yield Observation(
                kind="drift",
                quantity=claim.quantity,
                scope=claim.scope,
                expected=f"a longer context from {claim.printed} on",
                found=f"still {latest.printed} at {float(reached):.1%}",
                arithmetic=f"step {step:,} of {rounded(steps, 9)}; {latest.printed} tokens" + _at(latest),
                claims=(claim, latest, *view.claims("context.planned_length")),
                rule="a planned change shows in the configuration after its step",
                settles="The configuration of the next segment.",
            )


def residuals(view: View) -> Iterator[Observation]:
    """Forecast against measured along the run: a residual that moves, and what changed meanwhile."""
    record = view.record
    if record.forecast is None or not record.ladder_grid or not record.hero_evaluations:
        return
    try:
        points = compare(fit_record(record), record.hero_evaluations)
    except MarinReproError:  # said by computed.not_computed
        return
    own = [value.high for _, value in numbers(view.claims(OWN_ERROR))]
    if len(points) < 2:
        return
    low, high = min(points, key=lambda one: one.residual), max(points, key=lambda one: one.residual)
    allowed = float(max(own)) if own else float(LARGE) * points[-1].measured
    if high.residual - low.residual <= 2 * allowed:
        return
    changes = [f"{one.start_step:,} ({one.why_started})" for one in record.hero_lineage[1:]]
    last = points[-1]
    steps = {str(one.step) for one in points}
    yield Observation(
        kind="comparability" if changes else "drift",
        quantity="forecast.residual",
        expected=f"within ±{allowed:.3g} of the forecast",
        found=f"{low.residual:+.4f} at {low.fraction:.1%}, {last.residual:+.4f} at {last.fraction:.1%}",
        arithmetic=f"measured − forecast: {low.measured:.5f} − {low.predicted:.5f} at step {low.step:,}, "
        f"{last.measured:.5f} − {last.predicted:.5f} at step {last.step:,}"
        + (f"; changed meanwhile at {several(changes)}" if changes else ""),
        claims=tuple(
            one
            for one in view.ledger.claims
            if (one.quantity.startswith("forecast.") and not one.scope)
            or (one.quantity == "evaluation.dropless_macro_loss" and dict(one.scope).get("step") in steps)
        ),
        tables=("hero_evaluations.csv", "ladder_grid.csv", "hero_lineage.csv"),
        rule="the forecast speaks of a run with the rungs' mixture, context and horizon",
        settles="Rungs repeated with what the run has changed to.",
    )


def published_shares(view: View) -> Iterator[Observation]:
    """Shares of phases as published, against the stages of the newest configuration."""
    shares: dict[str, list[tuple[str, str]]] = {}
    claims = view.claims("training.phase_fraction")
    for claim in claims:
        shares.setdefault(claim.source.id, []).append((dict(claim.scope).get("phase", ""), claim.printed))
    configuration = view.record.run_configuration
    if configuration is None or not shares:
        return
    try:
        starts = configuration.value("data.train_weights_stage_starts")
        steps = configuration.value("trainer.trainer.num_train_steps")
    except KeyError:
        return
    if not (isinstance(starts, list) and isinstance(steps, int) and all(type(one) is int for one in starts)):
        return
    split = max(shares.values(), key=len)
    if len(starts) <= len(split):
        return
    stages = [f"{(end - begin) / steps:.1%}" for begin, end in zip(starts, [*starts[1:], steps], strict=True)]
    yield Observation(
        kind="drift",
        quantity="training.phase_fraction",
        expected=" and ".join(text for _, text in sorted(split)),
        found=several(stages),
        arithmetic=f"{RUN_CONFIGURATION}: stages from steps {several([f'{one:,}' for one in starts])} of {steps:,}",
        claims=(*claims, *view.claims("mixture.switch_step"), *view.claims("training.phase_start")),
        tables=(RUN_CONFIGURATION,),
        rule="the shares of the phases are those of the newest configuration",
        settles="The newest configuration, wherever the split is told.",
    )


def trained_twice(view: View) -> Iterator[Observation]:
    """Steps that were computed and do not count: replayed after a failure, or beyond where the next run took over."""
    per_step = view.number("training.tokens_per_step")
    first = {one.scope: value.middle for one, value in numbers(view.claims("run.replay_first_step"))}
    lasts = list(numbers(view.claims("run.replay_last_step")))
    replayed = sum(value.middle - first[one.scope] + 1 for one, value in lasts if one.scope in first)
    beyond = sum(
        max(one.summary_step + 1 - one.end_step_exclusive, 0)
        for one in view.record.hero_lineage
        if one.end_step_exclusive is not None
    )
    if per_step is None or not replayed + beyond:
        return
    total = (replayed + beyond) * per_step
    yield Observation(
        kind="drift",
        quantity="progress.executed_tokens",
        expected="as many as are logged",
        found=f"{rounded(total)} more",
        arithmetic=f"{rounded(replayed, 9)} steps replayed and {rounded(beyond, 9)} discarded, "
        f"of {rounded(per_step, 9)} tokens each: {rounded(total, 6)} tokens",
        claims=(*view.claims("run.replay_first_step"), *(one for one, _ in lasts), *_lineage(view)),
        tables=("hero_lineage.csv",) if beyond else (),
        rule="tokens executed = tokens logged + replayed + discarded",
        settles="The log's own count of steps by attempt.",
    )


def checkpoint_sizes(view: View) -> Iterator[Observation]:
    """Bytes a parameter of the run's checkpoints, where they changed."""
    parameters = view.number("parameters.total")
    sizes = [
        (one, value.middle) for one, value in numbers(view.claims("checkpoint.bytes")) if "step" in dict(one.scope)
    ]
    if not parameters or len(sizes) < 2:
        return
    sizes.sort(key=lambda pair: int(dict(pair[0].scope)["step"]))
    values = [size for _, size in sizes]
    if min(values) > 0 and max(values) / min(values) > SAME_LAYOUT:
        yield Observation(
            kind="drift",
            quantity="checkpoint.bytes",
            expected=f"{rounded(values[0] / parameters, 3)} bytes a parameter",
            found=f"{rounded(values[-1] / parameters, 3)} bytes a parameter",
            arithmetic=several(
                [
                    f"{one.printed} ÷ {rounded(parameters, 6)} = {rounded(size / parameters, 3)}{_at(one)}"
                    for one, size in sizes
                ]
            ),
            claims=(*(one for one, _ in sizes), *view.claims("checkpoint.objects")),
            rule="checkpoints of one layout have one size",
            settles="The layout: which copies of weights and moments a checkpoint holds.",
        )


def _progress(view: View) -> tuple[datetime | None, datetime | None, int, Fraction | None]:
    """Now, the launch, the steps completed by now, and the planned steps, as far as the record knows them."""
    segments = view.record.hero_lineage
    if not segments:
        return None, None, 0, None
    return (
        moment(segments[-1].last_heartbeat),
        moment(segments[0].launched),
        segments[-1].summary_step + 1,
        view.number("training.steps"),
    )


def _lineage(view: View) -> list[Claim]:
    return [*view.claims("run.segment_start"), *view.claims("run.segment_end")]


def _at(claim: Claim) -> str:
    step = dict(claim.scope)["step"]
    return f" at step {int(step):,}" if step.isdecimal() else ""
