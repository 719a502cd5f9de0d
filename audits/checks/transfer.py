"""Figures that speak of something else than they are quoted for: other setups, other batches, other horizons."""

from __future__ import annotations

from collections.abc import Iterator

from audits.checks.observation import Observation, View, numbers, rounded, several
from audits.claims import Claim, Scope
from audits.intervals import Interval, overlap
from audits.quantities import REFINING

MEASURED = ("run", "rung", "study", "step", "segment")  # keys that say where a figure was measured
RUNS = ("run", "rung", "study")  # of these, the ones that name a whole measurement
TAKEN = ("routing.", "throughput.", "gradient.")  # quantities that are measured, not set, begin so
APART = 2  # two figures that differ by this factor are not two readings of one
NEAR = 0.1  # a study's horizon within a tenth of the run's is meant to be the run's


def unbound_figures(view: View) -> Iterator[Observation]:
    """A figure without the run it was measured on, which one run of a source has and another of the same has not."""
    for name in _measured(view):
        claims = list(numbers(view.claims(name)))
        bound = [(one, value) for one, value in claims if any(key in RUNS for key, _ in one.scope)]
        for claim, value in claims:
            if not claim.scope or any(key in MEASURED for key, _ in claim.scope):
                continue
            near, far = [], []
            for source in sorted({one.source.id for one, _ in bound} - {claim.source.id}):
                there = [pair for pair in bound if pair[0].source.id == source and _same_setting(claim, pair[0])]
                same = [one for one, other in there if overlap(value, other)]
                other = [one for one, other in there if not overlap(value, other) and _far(value, other)]
                if same and other:
                    near += same
                    far += other
            if far:
                figures = several([f"{one.printed}{_of(one.scope)}" for one in (*near, *far)])
                yield Observation(
                    kind="definition",
                    quantity=name,
                    scope=claim.scope,
                    expected=f"{claim.printed}, of one measured run",
                    found=figures,
                    arithmetic=f"{claim.id} names no run; {near[0].source.citation} has {figures}",
                    claims=(claim, *near, *far),
                    rule="a measured figure names the run, the steps and the shape it was measured on",
                    settles="The source's own table: which run, which steps, which shape.",
                )


def studies_that_do_not_transfer(view: View) -> Iterator[Observation]:
    """A source that gives a quantity of the run and of a study, where no setting of the study has the run's figure."""
    for name in _measured(view):
        claims = list(numbers(view.claims(name)))
        own = [(one, value) for one, value in claims if one.scope and all(key in REFINING for key, _ in one.scope)]
        for claim, value in own:
            there = [
                (one, other)
                for one, other in claims
                if one.source.id == claim.source.id and "study" in dict(one.scope) and other.middle > 0
            ]
            if len(there) < 2 or value.middle <= 0 or any(overlap(value, other) for _, other in there):
                continue
            nearest, near = min(there, key=lambda pair: abs(float(pair[1].middle / value.middle) - 1))
            yield Observation(
                kind="comparability",
                quantity=name,
                scope=claim.scope,
                expected=f"{nearest.printed}, as in the study",
                found=f"{claim.printed} in the run",
                arithmetic=f"{nearest.printed}{_of(nearest.scope)} ÷ {claim.printed} = "
                + rounded(near.middle / value.middle, 3),
                claims=(claim, *(one for one, _ in there)),
                rule="a figure of a small setup holds for the run",
                settles="The same steps measured in both setups.",
            )


def sides_that_differ_beforehand(view: View) -> Iterator[Observation]:
    """A paired comparison whose sides differ before the treatment begins."""
    for claim, value in numbers(view.claims("study.difference_before_treatment")):
        if value.low > 0 or value.high < 0:
            yield Observation(
                kind="comparability",
                quantity=claim.quantity,
                scope=claim.scope,
                expected="no difference",
                found=claim.printed,
                arithmetic=f"before the treatment the two sides are apart by {claim.printed}",
                claims=(claim, *_beside(claim, view)),
                rule="two sides of a comparison are alike until the treatment",
                settles="All fields in which the two configurations differ.",
            )


def unequal_evaluation_batches(view: View) -> Iterator[Observation]:
    """Means taken over batches, of runs that were evaluated with different batches."""
    averages = [one for one in view.claims("evaluation.bpb_average") if str(one.value).startswith("over batches")]
    batches = list(numbers(view.claims("evaluation.batch_size")))
    sizes = sorted({value.middle for _, value in batches})
    if averages and len(sizes) > 1:
        yield Observation(
            kind="comparability",
            quantity="evaluation.batch_size",
            expected="one batch for what is compared",
            found=several([rounded(size, 9) for size in sizes], most=8),
            arithmetic=several([f"{one.printed}{_of(one.scope)}" for one, _ in batches], most=8)
            + "; bits a byte are averaged over batches, so that they depend on the batch",
            claims=(*averages, *(one for one, _ in batches)),
            rule="a mean over batches is compared at one batch size",
            settles="Sum of losses over sum of bytes, which no batch size changes.",
        )


def horizons_beside_the_run(view: View) -> Iterator[Observation]:
    """A study whose horizon is near the run's and is not it."""
    run = view.best("training.tokens")
    if run is None or not isinstance(run.value, Interval) or run.value.middle <= 0:
        return
    for claim, value in numbers(view.claims("training.tokens")):
        ratio = float(value.middle / run.value.middle) - 1
        if "study" not in dict(claim.scope) or overlap(value, run.value) or abs(ratio) > NEAR:
            continue
        same = [
            one
            for name, quantity in view.ledger.quantities.items()
            if quantity.unit == "tokens" and name != claim.quantity
            for one, other in numbers(view.claims(name))
            if not one.scope and (overlap(other, value) or abs(float(value.middle / other.middle) - 1) < 1e-3)
        ]
        yield Observation(
            kind="comparability" if not same else "definition",
            quantity="study.horizon",
            scope=claim.scope,
            expected=f"the run's {run.printed} tokens",
            found=f"{claim.printed} tokens",
            arithmetic=f"{claim.printed} is {ratio:+.2%} from the run's"
            + (f"; it is nearly the {view.label(same[0].quantity)}, {same[0].printed}" if same else ""),
            claims=(claim, *same, *_beside(claim, view)),
            rule="a study of the run has the run's schedule",
            settles="Whether the study's schedule was meant to be the run's.",
        )


def directions_that_disagree(view: View) -> Iterator[Observation]:
    """Better or worse in words, where a number says the other."""
    gains = [
        (one, value) for one, value in numbers(view.claims("mixture.compute_gain")) if value.low > 1 or value.high < 1
    ]
    for claim in view.claims("mixture.new_in_simulation"):
        against = [one for one, value in gains if (value.low > 1) == (claim.value == "worse")]
        if claim.value in ("better", "worse") and against:
            later = bool(claim.date.last) and all(claim.date.last < one.date.first for one in against)
            yield Observation(
                kind="drift" if later else "comparability",
                quantity=claim.quantity,
                scope=claim.scope,
                expected=f"{claim.value} than before",
                found=f"worth {against[0].printed} times the compute{_of(against[0].scope)}",
                arithmetic=f"{claim.id} says {claim.value}, {against[0].id} says ×{against[0].printed}; "
                "neither names its mixture",
                claims=(claim, *against),
                rule="a comparison names what it compares",
                settles="The hash of the mixture on each side.",
            )


def _measured(view: View) -> list[str]:
    return sorted(name for name in view.ledger.quantities if name.startswith(TAKEN))


def _far(first: Interval, second: Interval) -> bool:
    low, high = sorted((first.middle, second.middle))
    return low > 0 and high / low > APART


def _same_setting(first: Claim, second: Claim) -> bool:
    """Whether no key that both have says two things."""
    one, other = dict(first.scope), dict(second.scope)
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def _beside(claim: Claim, view: View) -> list[Claim]:
    """What the same source says of the same thing."""
    return [
        one
        for one in view.ledger.claims
        if one is not claim and one.source.id == claim.source.id and one.scope == claim.scope
    ]


def _of(scope: Scope) -> str:
    return f" ({', '.join(value for _, value in scope)})" if scope else ""
