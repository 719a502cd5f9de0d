"""What follows from the record's tables by the house's own arithmetic: counts from a shape, mixtures, the forecast.

These are relations whose input is a whole table: `marin_model.flops` counts a shape, `repro.ladder.mixture` a mixture,
`repro.ladder.fit` repeats the published fit. Each result says what it was computed from; a record that lacks the table
gets none, and the audit lists what could not be checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from audits.claims import Claim, Date, Scope, Source, freeze_scope
from audits.intervals import Interval, exact, shown
from audits.relations import ARITHMETIC, MARIN, WITH_HEAD, WITHOUT_HEAD, Derived
from audits.tables import scope_of
from marin_model import flops
from marin_model.config import ModelConfig
from repro.errors import MarinReproError, RecordError
from repro.ladder import mixture
from repro.ladder.fit import fit_record
from repro.record.artifacts import TrainingData
from repro.record.facts import RUN_CONFIGURATION, Record

LAST_DIGITS = Fraction(1, 10**12)  # relative; two orders of summation may differ by less
WEIGHTS = "mixture_weights.csv"
MIXTURE_LEAVES = (
    "trainer.trainer.num_train_steps",
    "trainer.trainer.train_batch_size",
    "model.max_seq_len",
    "data.mixture_block_size",
)
THIRD_PARTY = 4  # rank of what is computed from tables that outsiders collected
CONFIGURED = 0  # rank of what is computed from resolved configurations


def computed(record: Record) -> list[Derived]:
    """Everything that the record's tables allow to be computed."""
    of_the_recipe = (_counts, _compute_share, _mixtures) if record.run.recipe == MARIN else ()
    return [one for compute in (*of_the_recipe, _comparability, _forecast) for one in compute(record)]


def not_computed(record: Record) -> list[tuple[str, str, str]]:
    """What could not be computed, as (part of the record, quantity, reason)."""
    rows = []
    if record.mixture_weights:
        for data in record.training_data:
            if why := _no_cells(record, data):
                rows.append((f"training_data:{data.id}", "mixture.max_exposure", why))
    if record.forecast is not None and record.ladder_grid:
        try:
            fit_record(record)
        except MarinReproError as error:
            rows.append(("forecast", "forecast.loss", f"the published fit cannot be repeated: {error}"))
    return rows


def presupposed(record: Record) -> list[Claim]:
    """What a law fitted on rungs and read at another run takes for granted: one mixture and one store for all."""
    if record.forecast is None:
        return []
    source = Source(id="forecast", kind="analysis-code", address=record.forecast.source, citation="the published fit")
    return [
        Claim(
            id=f"forecast:{quantity}",
            quantity=quantity,
            value="yes",
            printed="yes, as the fit takes for granted",
            digits="named",
            scope=(),
            convention="",
            source=source,
            place="",
            date=Date(text="not stated"),
            quote="",
            note="",
        )
        for quantity in ("forecast.one_mixture", "forecast.one_store")
    ]


# Counts from a shape


def _counts(record: Record) -> Iterator[Derived]:
    for scope, config, inputs in _shapes(record):
        total, matrices = flops.total_parameters(config), flops.matrix_parameters(config)
        shape = f"{config.num_layers} layers of width {config.hidden_dim:,}, {config.num_experts} experts"
        rows: tuple[tuple[str, str, int, str], ...] = (
            ("parameters.total", "all stored arrays", total, "every array of the checkpoint"),
            ("parameters.total", "matrices only", matrices, "matrices, embedding and LM head, without gates and gains"),
            ("parameters.active", "", flops.active_parameters(config), "matrices that one token multiplies with"),
            *(
                (
                    "shape.flops_per_token",
                    convention,
                    flops.training_flops_per_token(config, lm_head=convention == WITH_HEAD),
                    f"forward and backward, {convention}",
                )
                for convention in (WITH_HEAD, WITHOUT_HEAD)
            ),
        )
        for quantity, convention, count, what in rows:
            yield _derived(
                quantity, scope, exact(count), f"counted from the shape: {what}", shape, inputs, convention=convention
            )


def _shapes(record: Record) -> Iterator[tuple[Scope, ModelConfig, tuple[str, ...]]]:
    """The run's shape from its resolved configuration; the rungs' from their rows, with the run's proportions."""
    if record.run_configuration is None or "model" not in record.run_configuration.first.leaves:
        return
    leaves: Any = record.run_configuration.value("model", at="first")
    if not isinstance(leaves, dict):
        raise RecordError(f"{RUN_CONFIGURATION}, first.leaves.model: must be an object with the model's fields.")
    known = {field.name for field in fields(ModelConfig)}
    try:
        run = ModelConfig.from_dict({name: value for name, value in leaves.items() if name in known})
    except (ValueError, TypeError) as error:
        raise RecordError(f"{RUN_CONFIGURATION}, first.leaves.model: {error}") from error
    yield (), run, (f"{RUN_CONFIGURATION}:model",)
    for row in record.ladder_rungs:
        scope = scope_of(row.rung, record)
        if scope:
            scaled = {
                name: getattr(run, name) * row.hidden_dim // run.hidden_dim
                for name in ("intermediate_dim", "shared_expert_intermediate_dim", "latent_dim")
            }
            heads = {
                name: getattr(row, name) for name in ("num_heads", "num_kv_heads", "local_kv_heads", "global_kv_heads")
            }
            try:
                rung = replace(run, hidden_dim=row.hidden_dim, num_layers=row.num_layers, **scaled, **heads)
            except ValueError as error:
                raise RecordError(f"ladder_rungs.csv, {row.rung}: {error}") from error
            yield scope, rung, (f"ladder_rungs.csv:{row.rung}", f"{RUN_CONFIGURATION}:model")


def compute_by_rung(record: Record, lm_head: bool = False) -> dict[str, int]:
    """Training FLOPs of each rung whose shape is known, at its planned length."""
    shapes = {scope: config for scope, config, _ in _shapes(record)}
    return {
        row.rung: row.steps * row.batch_size * row.seq_len * flops.training_flops_per_token(shape, lm_head=lm_head)
        for row in record.ladder_rungs
        if (shape := shapes.get(scope_of(row.rung, record))) is not None
    }


def _compute_share(record: Record) -> Iterator[Derived]:
    """FLOPs of the fitted rungs over the target's, all at their planned length."""
    forecast = record.forecast
    if forecast is None:
        return
    if not {*forecast.fitted_on, forecast.target} <= compute_by_rung(record).keys():
        return
    for convention in (WITH_HEAD, WITHOUT_HEAD):
        spent = compute_by_rung(record, lm_head=convention == WITH_HEAD)
        ladder, target = sum(spent[rung] for rung in forecast.fitted_on), spent[forecast.target]
        value = exact(Fraction(ladder, target))
        yield _derived(
            "ladder.compute_share",
            (),
            value,
            f"FLOPs of the fitted rungs ÷ FLOPs of the run, {convention}",
            f"{ladder:.5g} ÷ {target:.5g} = {ladder / target:.3%}, every rung at its planned length",
            ("ladder_rungs.csv", f"{RUN_CONFIGURATION}:model"),
            convention=convention,
            printed=f"{ladder / target:.3%}",
        )


# Mixtures


def _mixtures(record: Record) -> Iterator[Derived]:
    cells, run = record.mixture_weights, record.run_configuration
    if not cells or run is None:
        return
    try:
        numbers = {path: run.value(path) for path in MIXTURE_LEAVES}
    except KeyError:
        return
    for path, number in numbers.items():
        if type(number) is not int or number < 1:
            raise RecordError(f"{RUN_CONFIGURATION}, {path}: must be a positive whole number, not {number!r}.")
    steps, batch, length, block = numbers.values()
    known = [data for data in record.training_data if not _no_cells(record, data)]
    for data in known:
        if scope_of(data.rung, record) != ():
            continue
        starts = [stage.from_step for stage in data.stages]
        blocks = mixture.blocks_per_phase(starts, steps, batch, block)
        weights = [_weights(record, stage.weights, stage.phase) for stage in data.stages]
        counts = [mixture.block_counts(weight, block) for weight in weights]
        tokens = _store_tokens(record, data.store)
        by_weights = mixture.exposure_by_weights(
            [(weight, n * block * length) for weight, n in zip(weights, blocks, strict=True)], tokens
        )
        by_counts = mixture.exposure_by_block_counts(list(zip(counts, blocks, strict=True)), tokens, length)
        inputs = (WEIGHTS, f"training_data:{data.id}")
        stages = ", ".join(f"{stage.weights} from step {stage.from_step:,}" for stage in data.stages)
        if data.status == "planned":
            yield _exposure("by weights over the horizon", by_weights, stages, inputs)
            yield _exposure("by integer block counts", by_counts, stages, inputs)
            for stage, weight, count in zip(data.stages, weights, counts, strict=True):
                empty = sum(weight[cell] > 0 for cell in mixture.zero_quota_cells(count))
                yield _derived(
                    "mixture.zero_quota_cells",
                    freeze_scope({"phase": str(stage.phase)}),
                    exact(empty),
                    "cells of positive weight whose whole number of sequences in a block is 0",
                    f"{stage.weights}, phase {stage.phase}, blocks of {block:,} sequences",
                    inputs,
                )
            yield from _phase_starts(steps, batch, inputs)
        else:
            yield _exposure("by weights over the run's own phases", by_weights, stages, inputs)
    yield from _fitted_exposure(replace(record, training_data=tuple(known)), steps * batch * length)


def _phase_starts(steps: int, batch: int, inputs: tuple[str, ...]) -> Iterator[Derived]:
    for phase, start in enumerate(mixture.phase_starts(steps, batch)):
        yield _derived(
            "training.phase_start",
            freeze_scope({"phase": str(phase)}),
            exact(start),
            "first step of the phase = its share of the steps, rounded down to whole blocks",
            f"{steps:,} steps of {batch:,} sequences, whole blocks every {mixture.step_multiple(batch)} steps",
            inputs,
        )


def _fitted_exposure(record: Record, tokens_of_run: int) -> Iterator[Derived]:
    """The exposure that the run would have had with the mixture and store of the fitted rungs: an alternative."""
    fitted = _fitted(record)
    if not fitted or len({(data.store, data.stages[0].weights) for data in fitted}) > 1:
        return
    data = fitted[0]
    tokens = _store_tokens(record, data.store)
    shares = (1 - 1 / 5, 1 / 5)  # a cooldown of the last fifth: repro.ladder.mixture.COOLDOWN_FRACTION
    weights = [_weights(record, stage.weights, stage.phase) for stage in data.stages]
    exposure = mixture.exposure_by_weights(
        [(weight, share * tokens_of_run) for weight, share in zip(weights, shares, strict=False)], tokens
    )
    yield _exposure(
        "by weights over the horizon",
        exposure,
        f"{data.stages[0].weights}, the mixture of the fitted rungs",
        (WEIGHTS, f"training_data:{data.id}"),
        alternative="the mixture of the fitted rungs",
    )


def _exposure(
    convention: str, exposure: dict[str, float], stages: str, inputs: tuple[str, ...], alternative: str = ""
) -> Derived:
    cell, epochs = mixture.most_exposed(exposure)
    return _derived(
        "mixture.max_exposure",
        (),
        exact(Fraction(epochs)),
        f"largest of all cells: tokens drawn ÷ tokens available, {convention}",
        f"{stages}: cell {cell} is read {epochs:.4g} times",
        inputs,
        convention=convention,
        printed=f"{epochs:.4g}",
        alternative=alternative,
    )


def _comparability(record: Record) -> Iterator[Derived]:
    """Whether the fitted rungs and the target read one mixture from one store."""
    fitted = _fitted(record)
    target = [data for data in record.training_data if scope_of(data.rung, record) == () and data.status == "ran"]
    if not fitted or not target:
        return
    run, inputs = target[0], tuple(f"training_data:{data.id}" for data in (*fitted, target[0]))
    stores = sorted({data.store for data in fitted})
    yield _derived(
        "forecast.one_store",
        (),
        "yes" if stores == [run.store] else "no",
        "the fitted rungs and the forecast run read the same token store",
        f"fitted rungs: {', '.join(stores)}; the run: {run.store}",
        inputs,
        printed=run.store
        if stores == [run.store]
        else f"no: {', '.join(stores)} for the ladder, {run.store} for the run",
    )
    if not record.mixture_weights or any(_no_weights(record, data) for data in (*fitted, run)):
        return
    first, cells = run.stages[0], {data.stages[0].weights for data in fitted}
    apart = {
        name: mixture.half_l1(_weights(record, name, 0), _weights(record, first.weights, first.phase))
        for name in sorted(cells)
    }
    furthest = max(apart, key=lambda name: apart[name])
    words = f"half-L1 distance {apart[furthest]:.3f} in the first phase ({furthest} against {first.weights})"
    one = "yes" if len(cells) == 1 and apart[furthest] == 0 else "no"
    yield _derived(
        "forecast.one_mixture",
        (),
        one,
        "the fitted rungs and the forecast run read the same mixture",
        words,
        (WEIGHTS, *inputs),
        printed=f"{one}: {words}",
    )
    yield _derived(
        "mixture.half_l1",
        (),
        exact(Fraction(apart[furthest])),
        "half the sum of absolute differences of the cells' weights in the first phase",
        words,
        (WEIGHTS, *inputs),
        printed=f"{apart[furthest]:.6f}",
    )


def _fitted(record: Record) -> list[TrainingData]:
    names = record.forecast.fitted_on if record.forecast else ()
    return [data for data in record.training_data if data.rung in names and data.status == "ran"]


def _no_cells(record: Record, data: TrainingData) -> str:
    """Why what a run read is not known by cell, where the table was derived from bytes that do not show it; "" where it
    is known. Raises RecordError where people wrote the table: then record.toml names what does not exist."""
    return _no_weights(record, data) or _absent(
        record, data.store in record.mixture_weights[0].tokens, f"tokens of {data.store!r}", "store"
    )


def _no_weights(record: Record, data: TrainingData) -> str:
    missing = sorted({stage.weights for stage in data.stages} - record.mixture_weights[0].weights.keys())
    return _absent(record, not missing, f"weights {', '.join(missing)!r}", "stages")


def _absent(record: Record, there: bool, what: str, field: str) -> str:
    if there:
        return ""
    if record.file(WEIGHTS).is_derived:
        return f"{WEIGHTS} has no {what}"
    raise RecordError(f"record.toml, {field}: {WEIGHTS} has no {what}.")


def _weights(record: Record, name: str, phase: int) -> dict[str, float]:
    return {cell.cell: cell.weights[name][phase] for cell in record.mixture_weights}


def _store_tokens(record: Record, store: str) -> dict[str, int]:
    return {cell.cell: cell.tokens[store] for cell in record.mixture_weights}


# The forecast


def _forecast(record: Record) -> Iterator[Derived]:
    if record.forecast is None or not record.ladder_grid:
        return
    try:
        final = fit_record(record).final
    except MarinReproError:  # said by `not_computed`
        return
    middle = Fraction(final.prediction)
    value = Interval(middle * (1 - LAST_DIGITS), middle * (1 + LAST_DIGITS))
    yield _derived(
        "forecast.loss",
        (),
        value,
        "the published fit repeated on the record's grid",
        f"{record.forecast.asymptote} + {final.coefficient:.6g} × C^-{final.alpha:.6g} at the run's compute gives "
        f"{final.prediction!r}",
        ("ladder_grid.csv", "ladder_rungs.csv"),
        printed=repr(final.prediction),
        rank=THIRD_PARTY,
        source=record.forecast.source,
    )


def _derived(
    quantity: str,
    scope: Scope,
    value: Interval | str,
    relation: str,
    arithmetic: str,
    inputs: tuple[str, ...],
    *,
    convention: str = "",
    printed: str = "",
    rank: int = CONFIGURED,
    source: str = "",
    alternative: str = "",
) -> Derived:
    return Derived(
        quantity=quantity,
        scope=scope,
        convention=convention,
        value=value,
        printed=printed or (value if isinstance(value, str) else shown(value)),
        relation=relation,
        source=source or ARITHMETIC,
        arithmetic=f"{relation}: {arithmetic}",
        inputs=inputs,
        roots=inputs,
        rank=rank,
        alternative=alternative,
        from_claims=False,
    )
