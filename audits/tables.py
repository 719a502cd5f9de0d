"""What the record's tables state, as claims beside the published ones: configuration, rungs, evaluations, stores.

A table is a source like any other; `record.toml` says where each came from. The run that a record is about has the
empty scope; where its forecast names a target, the target's rows speak of that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from audits.claims import Claim, Date, Scope, Source, freeze_scope
from audits.intervals import Digits, Interval, exact, read_number, shown
from audits.quantities import QUANTITIES
from repro.errors import RecordError
from repro.record.facts import RUN_CONFIGURATION, Record

CONFIGURATION = {  # leaf of the resolved configuration: what it is a number, or a name, of
    "model.num_layers": "shape.layers",
    "model.hidden_dim": "shape.hidden_dim",
    "model.num_heads": "shape.heads",
    "model.head_dim": "shape.head_dim",
    "model.num_kv_heads": "shape.kv_heads",
    "model.local_kv_heads": "shape.local_kv_heads",
    "model.global_kv_heads": "shape.global_kv_heads",
    "model.num_experts": "shape.experts",
    "model.num_experts_per_token": "shape.experts_per_token",
    "model.num_shared_experts": "shape.shared_experts",
    "model.shared_expert_intermediate_dim": "shape.shared_width",
    "model.intermediate_dim": "shape.expert_width",
    "model.latent_dim": "shape.latent_dim",
    "model.vocab_size": "shape.vocabulary",
    "model.max_seq_len": "shape.sequence_length",
    "model.sliding_window": "shape.sliding_window",
    "model.global_every": "shape.global_every",
    "model.initializer_std": "shape.initializer_std",
    "model.pooled_transport_capacity_factor": "transport.sender_factor",
    "model.capacity_factor": "transport.receiver_factor",
    "optimizer.learning_rate": "optimizer.muonh_learning_rate",
    "optimizer.adam_lr": "optimizer.adam_learning_rate",
    "optimizer.beta1": "optimizer.beta1",
    "optimizer.beta2": "optimizer.beta2",
    "optimizer.epsilon": "optimizer.epsilon",
    "optimizer.warmup": "optimizer.warmup_fraction",
    "optimizer.min_lr_ratio": "optimizer.min_learning_rate_ratio",
    "optimizer.lr_schedule": "optimizer.schedule",
    "trainer.z_loss_weight": "training.z_loss_weight",
    "trainer.trainer.num_train_steps": "training.steps",
    "trainer.trainer.train_batch_size": "training.batch_size",
    "trainer.replica_axis_size": "hardware.racks",
    "resources.device.count": "hardware.gpus_per_node",
    "resources.device.variant": "hardware.gpu_name",
    "model.expert_chunks": "transport.expert_chunks",
    "optimizer.gate_router_weight_decay": "optimizer.gate_router_weight_decay",
    "data.shuffle.window_blocks": "data.shuffle_window_blocks",
    "eval.eval_batch_size": "evaluation.batch_size",
    "max_retries_failure": "run.retries_per_task",
    "max_task_failures": "run.task_failures",
}
RUNG_COLUMNS: dict[str, tuple[str, Digits]] = {  # column of ladder_rungs.csv: quantity, and how its digits are meant
    "gpus": ("hardware.gpus", "exact"),
    "racks": ("hardware.racks", "exact"),
    "batch_size": ("training.batch_size", "exact"),
    "seq_len": ("shape.sequence_length", "exact"),
    "steps": ("training.steps", "exact"),
    "num_layers": ("shape.layers", "exact"),
    "hidden_dim": ("shape.hidden_dim", "exact"),
    "printed_total": ("parameters.total", "printed"),
    "printed_active": ("parameters.active", "printed"),
    "printed_tokens": ("training.tokens", "printed"),
    "printed_flops": ("training.flops", "printed"),
}


def table_claims(record: Record) -> list[Claim]:
    """Every figure of the record's tables that the vocabulary has a name for."""
    tables = (_configuration, _rungs, _evaluations, _lineage, _samples, _progress, _stores)
    return [claim for read in tables for claim in read(record)]


def scope_of(rung: str, record: Record) -> Scope:
    """The scope of a rung's row: empty for the run that the record is about."""
    return () if record.forecast and rung == record.forecast.target else freeze_scope({"rung": rung})


def _configuration(record: Record) -> Iterator[Claim]:
    if record.run_configuration is None:
        return
    for path, quantity in CONFIGURATION.items():
        try:
            value = record.run_configuration.value(path, at="first")
        except KeyError:
            try:
                value = record.run_configuration.value(path)  # a leaf that only the latest snapshot shows
            except KeyError:
                continue
        if value is None:
            continue
        wanted = str if QUANTITIES[quantity].is_name else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted):
            what = "a word" if wanted is str else "a number"
            raise RecordError(f"{RUN_CONFIGURATION}, {path}: must be {what}, not {value!r}.")
        known = value if isinstance(value, str) else _exact(value, f"{RUN_CONFIGURATION}, {path}")
        yield _claim(record, RUN_CONFIGURATION, "run-configuration", path, quantity, known, "exact", ())


def _rungs(record: Record) -> Iterator[Claim]:
    name = "ladder_rungs.csv"
    for row in record.ladder_rungs:
        for column, (quantity, digits) in RUNG_COLUMNS.items():
            text = str(getattr(row, column))
            if not text:
                continue  # a figure that the launcher's own words were not read for
            try:
                value = read_number(text, digits)
            except ValueError as error:
                raise RecordError(f"{name}, {row.rung}, {column}: {error}.") from error
            scope = scope_of(row.rung, record)
            yield _claim(record, name, "launcher-code", f"{row.rung}.{column}", quantity, value, digits, scope, text)
        yield _claim(record, name, "table", f"{row.rung}.run_id", "ladder.run_id", row.run_id, "exact", scope)
    if record.ladder_rungs and record.forecast:
        yield _counted(record, name, "ladder.rungs", len(record.ladder_rungs))
    if record.ladder_grid:
        yield _counted(record, "ladder_grid.csv", "ladder.measured_rungs", len(record.ladder_grid))
    for rung, points in record.ladder_grid.items():
        last = exact(points[-1].step)
        yield _claim(
            record,
            "ladder_grid.csv",
            "run-metric",
            rung,
            "ladder.last_evaluation",
            last,
            "exact",
            scope_of(rung, record),
        )


def _lineage(record: Record) -> Iterator[Claim]:
    name = "hero_lineage.csv"
    for row in record.hero_lineage:
        scope = freeze_scope({"run": row.run_id})
        start, end = row.start_step, row.end_step_exclusive
        yield _claim(record, name, "table", f"{row.run_id}.start", "run.segment_start", exact(start), "exact", scope)
        yield _claim(record, name, "table", f"{row.run_id}.state", "run.state", row.state, "exact", scope)
        if end is not None:
            yield _claim(record, name, "table", f"{row.run_id}.end", "run.segment_end", exact(end), "exact", scope)


def _samples(record: Record) -> Iterator[Claim]:
    """Training metrics of single steps. Rows of one step in several runs or sources are claims of one scope."""
    name = "hero_train.csv"
    for number, row in enumerate(record.hero_train):
        scope = freeze_scope({"step": str(row.step)})
        rows = {
            "progress.tokens": row.tokens,
            "throughput.tokens_per_second": row.tokens_per_second,
            "routing.drop_fraction": row.drop_fraction,
        }
        for quantity, value in rows.items():
            if value is not None:
                place = f"{number}.{quantity}"
                known = _exact(value, f"{name}, step {row.step}")
                yield _claim(record, name, "run-metric", place, quantity, known, "exact", scope)


def _evaluations(record: Record) -> Iterator[Claim]:
    name, quantity = "hero_evaluations.csv", "evaluation.dropless_macro_loss"
    for row in record.hero_evaluations:
        scope = freeze_scope({"step": str(row.step)})
        loss = _exact(row.dropless_macro_loss, f"{name}, step {row.step}")
        yield _claim(record, name, "run-metric", f"{row.step}.loss", quantity, loss, "exact", scope)
        yield _claim(
            record, name, "run-metric", f"{row.step}.tokens", "progress.tokens", exact(row.tokens), "exact", scope
        )


def _progress(record: Record) -> Iterator[Claim]:
    """The latest run's own summary: its last step and tokens."""
    summary: Any = record.run_configuration.summary if record.run_configuration else {}
    step = summary.get("_step")
    keys = {
        "throughput/total_tokens": "progress.tokens",
        "throughput/tokens_per_second": "throughput.tokens_per_second",
        "throughput/theoretical_flops_per_device": "hardware.peak_flops",
    }
    for key, quantity in keys.items():
        if isinstance(step, int) and isinstance(summary.get(key), int | float):
            scope = () if quantity == "hardware.peak_flops" else freeze_scope({"step": str(step)})
            value = _exact(summary[key], f"{RUN_CONFIGURATION}, summary, {key}")
            yield _claim(record, RUN_CONFIGURATION, "run-metric", f"summary.{key}", quantity, value, "exact", scope)


def _stores(record: Record) -> Iterator[Claim]:
    for data in record.training_data:
        if data.status == "ran":
            scope = scope_of(data.rung, record)
            source = Source(
                id=f"training_data:{data.id}",
                kind="run-configuration",
                address=data.source,
                citation=f"record.toml, what {data.id} read",
            )
            yield _statement(f"training_data:{data.id}.store", "data.store", data.store, "named", scope, source, "")
    cells = record.mixture_weights
    if cells:
        yield _counted(record, "mixture_weights.csv", "data.topics", len({cell.cluster for cell in cells}))
        yield _counted(record, "mixture_weights.csv", "data.quality_buckets", len({cell.quality for cell in cells}))
    for store in cells[0].tokens if cells else ():
        total = exact(sum(cell.tokens[store] for cell in cells))
        scope = freeze_scope({"store": store})
        place = f"{store}.tokens"
        yield _claim(record, "mixture_weights.csv", "table", place, "data.store_tokens", total, "exact", scope)


def _counted(record: Record, name: str, quantity: str, count: int) -> Claim:
    """How many of something the rows of a table are about."""
    return _claim(record, name, "table", f"count of {quantity}", quantity, exact(count), "exact", ())


def _exact(value: int | float, where: str) -> Interval:
    try:
        return exact(value)
    except ValueError as error:
        raise RecordError(f"{where}: {value}: {error}.") from error


def _claim(
    record: Record,
    name: str,
    kind: str,
    place: str,
    quantity: str,
    value: Interval | str,
    digits: Digits,
    scope: Scope,
    text: str = "",
) -> Claim:
    file = record.file(name)
    source = Source(id=name, kind=kind, address=file.urls[0], citation=f"{name} of the record: {file.what}")
    return _statement(f"{name}:{place}", quantity, value, digits, scope, source, file.date, text, place)


def _statement(
    id: str,
    quantity: str,
    value: Interval | str,
    digits: Any,
    scope: Scope,
    source: Source,
    date: str,
    text: str = "",
    place: str = "",
) -> Claim:
    if isinstance(value, str):
        printed, digits = value, "named"
    else:
        printed = shown(value) if value.is_point else text  # what is not exact is shown as its source prints it
    return Claim(
        id=id,
        quantity=quantity,
        value=value,
        printed=printed,
        digits=digits,
        scope=scope,
        convention="",
        source=source,
        place=place,
        date=Date(text=date or "not stated"),
        quote="",
        note="",
    )
