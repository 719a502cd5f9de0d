"""The configuration against what runs: fields that nothing reads, cells that get nothing, metrics that stand still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from audits.checks.observation import Observation, View, numbers, several
from audits.claims import Claim
from audits.intervals import Interval, exact, overlap
from audits.relations import MARIN, Derived
from audits.tables import CONFIGURATION
from repro.record.facts import RUN_CONFIGURATION
from repro.record.tables import Configuration, TrainSample

TRANSPORT = "model.moe_implementation"
POOLED_WAVE = ("fixed_pooled_wave_all_to_all",)
LIVE: Mapping[str, tuple[str, tuple[str, ...]]] = {  # leaf: what selects whether it is read, and with which values
    "model.pooled_transport_capacity_factor": (TRANSPORT, POOLED_WAVE),
    "model.num_expert_waves": (TRANSPORT, POOLED_WAVE),
    "optimizer.weight_decay": ("", ()),  # MuonH and AdamH hold norms fixed and read no decay: marin_model.optimizer
}
FIELDS = {
    **CONFIGURATION,
    "model.num_expert_waves": "transport.waves",
    "optimizer.weight_decay": "configuration.weight_decay",
}
PARTS = {  # column of hero_train.csv: the quantity it is of
    "receiver_drop_fraction": "routing.receiver_drop_fraction",
    "sender_drop_fraction": "routing.sender_drop_fraction",
}
SMALL = 1000  # numbers below are too common for two of them to be equal for a reason


def idle_fields(view: View) -> Iterator[Observation]:
    """Fields of the newest configuration that the code it selects does not read."""
    configuration = view.record.run_configuration
    if configuration is None or view.record.run.recipe != MARIN:
        return
    resolved = _flat(configuration.resolved())
    run = (configuration.latest or configuration.first).run
    idle = [
        leaf
        for leaf, (selector, values) in LIVE.items()
        if resolved.get(leaf) is not None and resolved.get(selector) not in values
    ]
    if not idle:
        return
    selectors = sorted({selector for leaf in idle if (selector := LIVE[leaf][0])})
    selected = [f"{selector} is {resolved.get(selector)}" for selector in selectors]
    quantities = {FIELDS[leaf] for leaf in idle}
    yield Observation(
        kind="behaviour",
        quantity="configuration.idle_fields",
        expected="every field does something",
        found=f"{several(idle)} {'do' if len(idle) > 1 else 'does'} nothing",
        arithmetic=f"{RUN_CONFIGURATION}, {run}: "
        + several([*(f"{leaf} = {resolved[leaf]}" for leaf in idle), *selected]),
        claims=tuple(
            one
            for one in view.ledger.claims
            if one.quantity in quantities and (dict(one.scope).get("run") == run or one.quantity.startswith("config"))
        ),
        tables=(RUN_CONFIGURATION,),
        rule="a field of the configuration is read by the code that it selects",
        settles="The pinned code: where the field is read.",
    )


def empty_cells(view: View) -> Iterator[Observation]:
    """Cells that the mixture gives a weight, and whose whole number of sequences is zero."""
    name = "mixture.zero_quota_cells"
    derived = [
        one
        for one in view.pool.by_quantity.get(name, ())
        if isinstance(one, Derived) and isinstance(one.value, Interval) and one.value.low > 0
    ]
    for one in derived:
        said = [claim for claim in view.claims(name) if claim.scope == one.scope]
        yield Observation(
            kind="behaviour",
            quantity=name,
            scope=one.scope,
            expected="every weighted cell is read",
            found=f"{one.printed} get no sequence",
            arithmetic=one.arithmetic,
            claims=tuple(said),
            tables=one.inputs,
            rule="a cell with a weight is read",
            settles="The loader's own count of sequences by cell.",
        )


def edited_afterwards(view: View) -> Iterator[Observation]:
    """A configuration that holds a number which was not known before its run had ended."""
    configuration = view.record.run_configuration
    if configuration is None:
        return
    planned = view.number("training.steps")
    for segment in view.record.hero_lineage:
        end = segment.end_step_exclusive
        held = next(
            (one for one in (configuration.first, configuration.latest) if one and one.run == segment.run_id), None
        )
        if held is None or end is None or end < SMALL or end == planned:
            continue
        leaves = sorted(path for path, value in _flat(held.leaves).items() if type(value) is int and value == end)
        if leaves:
            yield Observation(
                kind="provenance",
                quantity="configuration.edited",
                scope=(("run", segment.run_id),),
                expected="as it was at launch",
                found=f"{several(leaves)} = {end:,}, the step at which the run ended",
                arithmetic=f"launched {segment.launched}, ended at {end:,} ({segment.last_heartbeat}); "
                f"read {held.as_of}",
                claims=tuple(_saying(end, segment.run_id, view)),
                tables=(RUN_CONFIGURATION, "hero_lineage.csv"),
                rule="a configuration is as it was when the run was launched",
                settles="The launch record's own configuration, or W&B's history of the run's config.",
            )


def still_metrics(view: View) -> Iterator[Observation]:
    """A part of a total that is 0 wherever a run shows it, while the total is not; in another run it moved."""
    by_run: dict[str, list[TrainSample]] = {}
    for row in view.record.hero_train:
        if row.drop_fraction is not None:
            by_run.setdefault(row.run, []).append(row)
    for column, quantity in PARTS.items():
        values = {run: [getattr(row, column) for row in rows] for run, rows in by_run.items()}
        moving = [run for run, found in values.items() if any(found)]
        still = [
            run
            for run, found in values.items()
            if found and all(value == 0 for value in found) and any(row.drop_fraction for row in by_run[run])
        ]
        for run in still if moving else ():
            totals = [row.drop_fraction for row in by_run[run] if row.drop_fraction]
            yield Observation(
                kind="behaviour",
                quantity=quantity,
                scope=(("run", run),),
                expected="a share of what is dropped",
                found=f"exactly 0 while the total is {max(totals):.3g}",
                arithmetic=f"hero_train.csv: {column} is 0 wherever {run} shows it, and not in {several(moving)}",
                claims=tuple(
                    one for one in view.ledger.claims if one.quantity == quantity.replace("_fraction", "_metric")
                ),
                tables=("hero_train.csv",),
                rule="a metric that can move, moves",
                settles="The pinned code: what the metric counts with this transport.",
            )


def _saying(number: int, run: str, view: View) -> Iterator[Claim]:
    for claim, value in numbers(list(view.ledger.claims)):
        of_the_run = claim.quantity.startswith("configuration.") and dict(claim.scope).get("run") == run
        if of_the_run and value.is_point and overlap(value, exact(number)):
            yield claim


def _flat(leaves: Mapping[str, Any] | Configuration, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted path."""
    found: dict[str, Any] = {}
    for key, value in leaves.items() if isinstance(leaves, Mapping) else leaves.leaves.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}.")
        else:
            found[path] = value
    return found
