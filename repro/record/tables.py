"""The rows of a record's tables: one type a table, and what each column means.

The types are the format: a column is a field, a field without a default may not be empty, units stand beside it. Steps
are zero-based log steps: step s has s + 1 completed updates. Losses are in nats a token, bpb in bits a byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from typing import Annotated, Any, NamedTuple

from pydantic import Field, FiniteFloat
from pydantic.dataclasses import dataclass

from repro.record.entries import ENTRY

Count = Annotated[int, Field(ge=1, le=10**12)]


class GridPoint(NamedTuple):
    """One evaluation of a rung: zero-based step, mean loss of the 16 Paloma domains without drops (nats a token)."""

    step: int
    loss: float


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class GridRow:
    """A line of ladder_grid.csv. A step that stands twice is passed on: the fit decides what it means."""

    rung: str
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class DomainPoint:
    """A rung's evaluation by domain; losses in nats a token. `fraction` is of the rung's planned steps."""

    rung: str
    step: int
    fraction: float
    macro_loss: float
    losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class LadderRung:
    """A rung as its launcher describes it; `printed_*` are the docstring's own digits, empty where it was not read."""

    rung: str
    run_id: str
    racks: Count
    gpus: Count
    batch_size: Count  # sequences a step
    seq_len: Count
    steps: Count
    num_layers: Count
    hidden_dim: Count
    num_heads: Count
    num_kv_heads: Count  # stored in every layer
    local_kv_heads: Count
    global_kv_heads: Count
    printed_total: str = ""
    printed_active: str = ""
    printed_tokens: str = ""
    printed_flops: str = ""


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class EvalTime:
    """When an evaluation of a rung was logged, in seconds since 1970 (UTC)."""

    rung: str
    step: int
    unix_time: float


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class MixEndpoint:
    """A rung's last evaluation on one domain with the ladder's mixture, and with the H100 study's (bits a byte)."""

    rung: str
    domain: str
    ladder_bpb: float
    mix25_bpb: float
    mix25_loss: float  # nats a token


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class HeroEvaluation:
    """An evaluation of the big run. Dropless: every token reaches its experts. As trained: with capacity drops.

    macro is the plain mean of the 16 Paloma domains, micro the mean over targets; losses in nats a token, bpb in bits a
    byte. `run` owns the step in the lineage; the W&B run that holds a copy may be another.
    """

    step: int
    tokens: int
    run: str
    source: str
    evaluated_at: str | None = None
    dropless_macro_loss: float
    dropless_micro_loss: float
    dropless_macro_bpb: float
    dropless_micro_bpb: float
    as_trained_macro_loss: float | None = None
    as_trained_micro_loss: float | None = None
    as_trained_macro_bpb: float | None = None
    domain_losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class LineageRow:
    """A line of hero_lineage.csv; lists are separated by semicolons."""

    run_id: str
    start_step: int
    end_step_exclusive: int | None = None
    state: str
    summary_step: int
    last_heartbeat: str
    launched: str
    launch_commits: str = ""
    why_started: str = ""  # in people's words
    why_ended: str = ""
    archived_evaluations: int
    mixture_stage_starts: str = ""
    seq_len: Count | None = None  # as the run was configured; empty where the sources do not say it of this run
    planned_steps: Count | None = None


@plain_dataclass(frozen=True, kw_only=True)
class LineageSegment:
    """The steps [start_step, end_step_exclusive) of the final weights' history, trained by one W&B run."""

    run_id: str
    start_step: int
    end_step_exclusive: int | None  # None: still open at the snapshot
    state: str
    summary_step: int  # last step in that run's summary; beyond the end it was discarded
    last_heartbeat: str
    launched: str
    launch_commits: tuple[str, ...]
    why_started: str
    why_ended: str
    archived_evaluations: int
    mixture_stage_starts: tuple[int, ...]
    seq_len: int | None  # tokens of context
    planned_steps: int | None


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class TrainSample:
    """Training metrics of one logged step; None where the source read has no value."""

    step: int
    run: str
    source: str
    at: str | None = None
    tokens: int  # trained when the step was done
    train_loss: float | None = None  # cross-entropy, nats a token
    grad_norm: float | None = None
    learning_rate: float | None = None  # MuonH
    adam_learning_rate: float | None = None
    mfu_percent: float | None = None
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    drop_fraction: float | None = None  # of assignments
    receiver_drop_fraction: float | None = None
    sender_drop_fraction: float | None = None


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Window:
    """Mean and median of a metric over the steps [first_step, end_step_exclusive) of one run; n values."""

    window: str
    run: str
    first_step: int
    end_step_exclusive: int
    metric: str
    n: int
    mean: float
    median: float


class PhaseWeights(NamedTuple):
    """A cell's share of the tokens in each phase of a mixture."""

    phase0: FiniteFloat
    phase1: FiniteFloat


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class MixtureCell:
    """One cell (topic cluster × quality) of the mixture: its share by weight set, its available tokens by store."""

    cell: str
    cluster: int
    quality: int
    cluster_name: str = ""
    weights: Mapping[str, PhaseWeights]
    tokens: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Configuration:
    """What W&B holds as one run's resolved configuration; `leaves` is nested, as resolved."""

    run: str
    as_of: str
    leaves: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class RunConfiguration:
    """The first run's configuration; of the latest only the leaves that differ or are new; the latest run's summary."""

    first: Configuration
    latest: Configuration | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)

    def resolved(self, at: str = "latest") -> dict[str, Any]:
        """The whole configuration "first" or "latest": the latter's leaves laid over the former's."""
        if at not in ("first", "latest"):
            raise ValueError(f"at is 'first' or 'latest', not {at!r}")
        latest = self.latest.leaves if at == "latest" and self.latest else {}
        return _overlaid(self.first.leaves, latest)

    def value(self, path: str, at: str = "latest") -> Any:
        """The leaf or branch at a dotted path such as `model.hidden_dim`. KeyError where neither run has it."""
        place: Any = self.resolved(at)
        for part in path.split("."):
            if not isinstance(place, Mapping) or part not in place:
                raise KeyError(path)
            place = place[part]
        return place


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with the leaves of `above` laid over it; branches that both have are merged."""
    result = dict(below)
    for key, value in above.items():
        lower = result.get(key)
        if isinstance(value, Mapping) and isinstance(lower, Mapping):
            value = _overlaid(lower, value)
        result[key] = value
    return result
