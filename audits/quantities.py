"""The vocabulary: what a number is a number of. One row a quantity; relations, tables and claims use these names only.

A record may declare quantities of its own in its claims.json; those have no relations, only agreement between claims.

`effect` says what a contradiction would change: 0 what was trained and whether the forecast speaks of it, 1 the recipe,
2 the data behind it, 3 how it was run and told. A contradiction of effect 0 moves a headline.

`conventions` are ways of counting that the public mixes, the default first; a claim that does not name its convention
is compared with all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from repro.errors import RecordError

# Keys of a scope that only narrow down what is spoken of: a step of a run has the run's batch size. The other keys say
# *which* rung, store or chain; two of those share nothing.
REFINING = ("step", "phase", "segment", "cell")


@dataclass(frozen=True)
class Quantity:
    """What a claim may be about. `unit` is "name" where values are words, which are equal or not."""

    name: str
    label: str
    unit: str
    effect: int
    conventions: tuple[str, ...] = ()

    @property
    def is_name(self) -> bool:
        """Whether its values are words."""
        return self.unit == "name"


HEADLINE = 0

_ROWS = (
    # What was trained, how long, on what.
    Quantity("parameters.total", "total parameters", "parameters", 0, ("all stored arrays", "matrices only")),
    Quantity("parameters.active", "active parameters", "parameters", 0),
    Quantity("training.tokens", "training tokens", "tokens", 0),
    Quantity("training.steps", "optimizer steps", "steps", 0, ("completed steps", "zero-based log step")),
    Quantity("training.batch_size", "batch size", "sequences", 0),
    Quantity("training.tokens_per_step", "tokens per step", "tokens", 0),
    Quantity("training.tokens_per_active_parameter", "tokens per active parameter", "ratio", 0),
    Quantity("training.flops", "training FLOPs", "FLOPs", 0, ("with the LM head", "without the LM head")),
    Quantity("hardware.gpus", "GPUs", "GPUs", 0),
    Quantity("forecast.loss", "forecast of the final loss", "nats/token", 0),
    Quantity("forecast.one_mixture", "one mixture for the fitted rungs and the forecast run", "name", 0),
    Quantity("forecast.one_store", "one token store for the fitted rungs and the forecast run", "name", 0),
    Quantity(
        "ladder.compute_share",
        "the ladder's share of compute",
        "fraction",
        0,
        ("with the LM head", "without the LM head"),
    ),
    Quantity("evaluation.dropless_macro_loss", "dropless Paloma macro loss", "nats/token", 0),
    # The recipe.
    Quantity("shape.layers", "layers", "count", 1),
    Quantity("shape.hidden_dim", "hidden width", "count", 1),
    Quantity("shape.heads", "attention heads", "count", 1),
    Quantity("shape.head_dim", "head width", "count", 1),
    Quantity("shape.kv_heads", "stored KV heads", "count", 1),
    Quantity("shape.local_kv_heads", "local KV heads", "count", 1),
    Quantity("shape.global_kv_heads", "global KV heads", "count", 1),
    Quantity("shape.experts", "routed experts", "count", 1),
    Quantity("shape.experts_per_token", "experts per token", "count", 1),
    Quantity("shape.shared_experts", "shared experts", "count", 1),
    Quantity("shape.shared_width", "shared expert width", "count", 1),
    Quantity("shape.expert_width", "expert width", "count", 1),
    Quantity("shape.latent_dim", "latent width", "count", 1),
    Quantity("shape.vocabulary", "vocabulary", "tokens", 1),
    Quantity("shape.sequence_length", "sequence length", "tokens", 1),
    Quantity("shape.sliding_window", "sliding window", "tokens", 1),
    Quantity("shape.global_every", "layers from one global layer to the next", "count", 1),
    Quantity("shape.initializer_std", "initializer standard deviation", "", 1),
    Quantity(
        "shape.flops_per_token", "training FLOPs per token", "FLOPs", 1, ("with the LM head", "without the LM head")
    ),
    Quantity("shape.shared_share", "share of active expert weights in shared experts", "fraction", 1),
    Quantity("optimizer.muonh_learning_rate", "MuonH peak learning rate", "", 1),
    Quantity("optimizer.adam_learning_rate", "Adam peak learning rate", "", 1),
    Quantity("optimizer.beta1", "beta1", "", 1),
    Quantity("optimizer.beta2", "beta2", "", 1),
    Quantity("optimizer.epsilon", "epsilon", "", 1),
    Quantity("optimizer.warmup_fraction", "warm-up", "fraction", 1),
    Quantity("optimizer.min_learning_rate_ratio", "floor of the learning rate", "fraction", 1),
    Quantity("optimizer.schedule", "learning rate schedule", "name", 1),
    Quantity("optimizer.weight_decay", "weight decay", "", 1),
    Quantity("optimizer.gate_router_weight_decay", "weight decay of gates and routers", "", 1),
    Quantity("training.z_loss_weight", "z-loss weight", "", 1),
    Quantity("training.phase_fraction", "share of the phase", "fraction", 1),
    Quantity("training.phase_start", "first step of the phase", "steps", 1),
    Quantity("training.phase_tokens", "tokens of the phase", "tokens", 1),
    Quantity("mixture.reference_tokens", "reference budget of the mixture", "tokens", 1),
    Quantity("mixture.reference_phase_tokens", "reference budget of the mixture's phase", "tokens", 1),
    Quantity("mixture.stage_tokens", "tokens of the mixture's stage", "tokens", 1),
    Quantity("run.segment_start", "first step that the run contributes", "steps", 1),
    Quantity("run.segment_end", "step at which the next run takes over", "steps", 1),
    Quantity("routing.drop_fraction", "dropped expert assignments", "fraction", 1),
    Quantity("transport.kind", "expert transport", "name", 1),
    Quantity("transport.sender_factor", "sender capacity factor", "ratio", 1),
    Quantity("transport.receiver_factor", "receiver capacity factor", "ratio", 1),
    Quantity("transport.waves", "expert waves", "count", 1),
    Quantity("routing.sender_drop_fraction", "expert assignments dropped by senders", "fraction", 1),
    Quantity("routing.receiver_drop_fraction", "expert assignments dropped by receivers", "fraction", 1),
    Quantity("routing.receiver_drop_metric", "the metric of what receivers drop", "name", 3),
    Quantity("routing.sender_drop_metric", "the metric of what senders drop", "name", 3),
    Quantity("transport.expert_chunks", "chunks of local experts", "count", 1),
    Quantity("mixture.stages", "stages of the mixture", "count", 1),
    Quantity("mixture.switch_step", "step of the mixture switch", "steps", 1),
    Quantity("context.planned_length", "context length after the extension", "name", 1),
    Quantity("context.extension_fraction", "where the context is extended", "fraction", 1),
    Quantity("context.early_cooldown_start", "day on which the early cooldown begins", "days", 3),
    Quantity("context.early_cooldown_done", "day on which an early cooldown was done", "days", 3),
    Quantity("mixture.half_l1", "half-L1 distance of the ladder's mixture from the run's", "probability mass", 0),
    Quantity(
        "mixture.max_exposure",
        "exposure of the most repeated cell",
        "epochs",
        1,
        (
            "by weights over the horizon",
            "by integer block counts",
            "by weights over the run's own phases",
        ),
    ),
    Quantity("mixture.zero_quota_cells", "cells of positive weight without a sequence in a block", "cells", 1),
    Quantity("mixture.simulated_epoching", "simulated epoching", "name", 1),
    # The data behind it.
    Quantity("data.store", "token store", "name", 2),
    Quantity("data.store_tokens", "tokens of the store", "tokens", 2),
    Quantity("data.raw_tokens", "raw pool", "tokens", 2),
    Quantity("data.removed_tokens", "removed from the raw pool", "tokens", 2),
    Quantity("data.deduplicated_tokens", "removed by deduplication", "tokens", 2),
    Quantity("data.decontaminated_tokens", "removed by decontamination", "tokens", 2),
    Quantity("data.kept_tokens", "final pool", "tokens", 2),
    Quantity("data.topics", "topics of the mixture", "count", 2),
    Quantity("data.quality_buckets", "quality buckets of a topic", "count", 2),
    Quantity("data.shuffle_window_blocks", "blocks in a shuffle window", "blocks", 2),
    Quantity("data.store_to_be_deleted", "the store is to be deleted", "name", 2),
    Quantity("licence.code", "licence of the code", "name", 2),
    Quantity("licence.weights", "licence of the weights", "name", 2),
    Quantity("licence.data", "licences of the data", "name", 2),
    # Two things set side by side.
    Quantity("study.horizon", "horizon of the study's schedule", "tokens", 2),
    Quantity("study.difference_before_treatment", "difference of the loss before the treatment", "fraction", 2),
    Quantity("mixture.compute_gain", "compute that the new mixture is worth", "×", 2),
    Quantity("mixture.new_in_simulation", "the new mixture against the old one in the ladder's simulation", "name", 2),
    Quantity("forecast.bpb", "forecast of the final macro bits a byte", "bits/byte", 0),
    Quantity("forecast.residual", "measured loss minus forecast along the run", "nats/token", 1),
    Quantity("evaluation.bpb_average", "how bits a byte are averaged", "name", 1),
    Quantity("evaluation.batch_size", "evaluation batch", "sequences", 2),
    Quantity("evaluation.bare_mean", "mean that a metric without macro or micro in its name takes", "name", 1),
    # Where it can be looked up.
    Quantity("run.wandb_commit", "commit that W&B recorded", "name", 1),
    Quantity("run.commit_pushed", "the commit is public", "name", 1),
    Quantity("checkpoint.durable_copy", "a durable copy of the checkpoint", "name", 3),
    Quantity("access.text", "texts that were read for claims", "name", 3),
    Quantity("access.artifacts", "artifacts of the record", "name", 2),
    Quantity("citation.comment", "comment that is cited", "name", 3),
    Quantity("configuration.edited", "configuration as it was at launch", "name", 1),
    Quantity("configuration.idle_fields", "fields of the newest configuration", "name", 1),
    Quantity("configuration.weight_decay", "weight decay field of the configuration", "", 3),
    # How it was run and told.
    Quantity("hardware.racks", "racks", "racks", 3),
    Quantity("hardware.nodes_per_rack", "nodes used per rack", "nodes", 3),
    Quantity("hardware.gpus_per_node", "GPUs per node", "GPUs", 3),
    Quantity("hardware.gpu_name", "kind of GPU", "name", 3),
    Quantity("hardware.peak_flops", "peak of one GPU", "FLOP/s", 3),
    Quantity("throughput.tokens_per_second", "throughput", "tokens/s", 3),
    Quantity("throughput.mfu", "model FLOPs utilisation", "fraction", 3),
    Quantity("progress.tokens", "tokens trained", "tokens", 3),
    Quantity(
        "progress.fraction", "progress", "fraction", 3, ("of the planned steps", "of the planned tokens as printed")
    ),
    Quantity("progress.executed_tokens", "tokens that were computed", "tokens", 3),
    Quantity("run.replay_first_step", "first step that was trained again", "steps", 3),
    Quantity("run.replay_last_step", "last step that was trained again", "steps", 3),
    Quantity("run.retries_per_task", "failures that a task may have", "count", 3),
    Quantity("run.task_failures", "failures that all tasks may have together", "count", 3),
    Quantity("run.planned_days", "planned duration", "days", 3),
    Quantity("run.planned_months", "planned duration in months", "months", 3),
    Quantity("run.planned_end", "planned end of pretraining", "name", 3),
    Quantity("throughput.calendar_rate", "tokens over calendar time", "tokens/s", 3),
    Quantity("checkpoint.bytes", "size of the checkpoint", "bytes", 3),
    Quantity("checkpoint.objects", "objects of the checkpoint", "objects", 3),
    Quantity("run.state", "state of the run in W&B", "name", 3),
    Quantity("ladder.rungs", "rungs of the ladder", "count", 3),
    Quantity("ladder.measured_rungs", "measured rungs of the ladder", "count", 3),
    Quantity("ladder.finished_rungs", "finished rungs of the ladder", "count", 3),
    Quantity("ladder.state", "how the rung ended", "name", 3),
    Quantity("ladder.run_id", "the rung's W&B run", "name", 3),
    Quantity("ladder.last_evaluation", "log step of the rung's last evaluation", "steps", 3),
    Quantity("ladder.stop_fraction", "where the rung stopped", "fraction", 3),
)

QUANTITIES: Mapping[str, Quantity] = {row.name: row for row in _ROWS}


def find_quantity(name: str, known: Mapping[str, Quantity], where: str) -> Quantity:
    """The quantity of that name, or a RecordError that says where it stood and offers the nearest."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else 'declare it under "quantities", or use a name that is known.'
    raise RecordError(f"{where}: unknown quantity {name!r}; {hint}")
