"""What a scale makes otherwise than the published run, each with the published value beside it.

Three kinds: what the scale sets (sizes, horizon, data), what follows from it and should be looked at (batch, steps),
and laws that are used where they do not reach: clipped at a bound, or far outside the sweep they were fitted on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from repro.ladder import laws

if TYPE_CHECKING:
    from repro.ladder.recipe import Recipe

SHORT_WARMUP = 100  # steps; every published rung has more
CELLS = 200  # of the published mixture

Value = int | float | str

MODEL_LABELS = {  # field of the model: what it is called
    "hidden_dim": "hidden width",
    "intermediate_dim": "width of experts, shared experts and latent path",
    "num_layers": "layers",
    "num_heads": "query heads",
    "local_kv_heads": "KV heads, sliding-window layers",
    "global_kv_heads": "KV heads, full-causal layers",
    "head_dim": "head width",
    "gated_norm_rank": "rank of GatedNorms",
    "num_experts": "experts",
    "num_experts_per_token": "experts a token",
    "num_expert_waves": "waves of the expert transport",
    "vocab_size": "vocabulary",
    "max_seq_len": "sequence length",
    "sliding_window": "sliding window",
}


class Departure(NamedTuple):
    """One thing that is not as published."""

    what: str
    published: Value
    here: Value


def departures_of(here: Recipe, published: Recipe) -> tuple[Departure, ...]:
    """Every departure of a recipe from the published one of the same rung, in the order of a plan."""
    both = (published, here)
    pairs: list[tuple[str, Value, Value]] = [
        (label, getattr(published.model, f), getattr(here.model, f)) for f, label in MODEL_LABELS.items()
    ]
    pairs += [
        ("query width over hidden width", *_of(both, _query_share)),
        ("expert shards a rack", *_of(both, lambda r: r.gpus // r.racks)),
        ("batch size", published.batch_size, here.batch_size),
        ("expert assignments a shard and step", *_of(both, _assignments_a_shard)),
        ("tokens per active parameter", published.tokens_per_active_parameter, here.tokens_per_active_parameter),
        ("steps", published.steps, here.steps),
        ("tokens", published.tokens, here.tokens),
        ("compute dtype", published.compute_dtype, here.compute_dtype),
        ("Newton–Schulz dtype", published.newton_schulz_dtype, here.newton_schulz_dtype),
        ("mixture block", published.mixture_block_size, here.mixture_block_size),
        ("mixture cells", *_of(both, _cells)),
        ("cooldown starts at, of the steps", *_of(both, _cooldown_share)),
        ("simulated epoching, reference tokens", *_of(both, lambda r: r.simulated_epoching_reference)),
        ("held-out tokens of an evaluation", *_of(both, lambda r: r.evaluation_tokens or "all")),
        ("steps between evaluations", *_of(both, lambda r: r.evaluation_steps[0])),
    ]
    changed = [Departure(*pair) for pair in pairs if pair[1] != pair[2]]
    return (*changed, *_stretched_laws(here, published)) if changed else ()


def _stretched_laws(here: Recipe, published: Recipe) -> list[Departure]:
    """Laws at a bound, or far from where they were fitted."""
    horizon = {
        "tokens": here.tokens,
        "hidden_dim": here.model.hidden_dim,
        "tokens_per_step": here.tokens_per_step,
    }
    adam = laws.adam_learning_rate_uncapped(**horizon)
    beta2 = laws.beta2_unclipped(tokens_per_step=here.tokens_per_step)
    found = [
        Departure(
            f"peak learning rate of {group}, the law far outside its sweep",
            before,
            _capped(now, law, f"capped, the law gives {law:.4g}"),
        )
        for group, before, now, law in (
            ("MuonH and AdamH", published.muonh_learning_rate, here.muonh_learning_rate, laws.MUONH_TO_ADAM * adam),
            ("Adam", published.adam_learning_rate, here.adam_learning_rate, adam),
        )
    ]
    if here.beta2 != published.beta2:
        found.append(
            Departure("beta2", published.beta2, _capped(here.beta2, beta2, f"clipped, the law gives {beta2:.6f}"))
        )
    if here.warmup_steps < SHORT_WARMUP:
        found.append(Departure("warm-up steps", published.warmup_steps, here.warmup_steps))
    return found


def _capped(value: float, law: float, words: str) -> Value:
    return value if value == law else f"{value:g} ({words})"


def _of(both: tuple[Recipe, Recipe], value: Callable[[Recipe], Value]) -> tuple[Value, Value]:
    published, here = both
    return value(published), value(here)


def _query_share(recipe: Recipe) -> float:
    model = recipe.model
    return model.num_heads * model.head_dim / model.hidden_dim


def _assignments_a_shard(recipe: Recipe) -> int:
    return recipe.tokens_per_step * recipe.model.num_experts_per_token // recipe.gpus


def _cooldown_share(recipe: Recipe) -> float:
    """To three digits: where phases start on whole blocks, the published 80% is met to about that."""
    return round(recipe.mixture_phase_starts[-1] / recipe.steps, 3)


def _cells(recipe: Recipe) -> int:
    return CELLS if recipe.mixture_weights is None else len(recipe.mixture_weights[0])
