"""Rung and scale → `Recipe`: every resolved number of one training run, and where each comes from.

Closed formulas over plain ints and floats: no arrays, no JAX. `Recipe.as_json()` is the object that `plan --json`
prints; `explain` lists the same numbers with formula and source. Nothing downstream computes one of them again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from marin_model import flops
from marin_model.config import ModelConfig
from repro.ladder import laws, mixture
from repro.ladder.departures import Departure, departures_of
from repro.ladder.rungs import RUNGS, Rung
from repro.ladder.scales import HERO, Scale, get_scale

EVALUATION_MARKS = 20  # launch_scaling_ladder.py, of the ladder's rungs
HERO_EVALUATION_INTERVAL = 3000  # steps; W&B config of the hero

JOB_SUMMARY = "issue 8435, job summary"
LAUNCHER = "launch_scaling_ladder.py"
HEURISTIC = "heuristic.py"
FIT_SCRIPT = "plot_scaling_ladder.py"
MIXTURE_CODE = "harrier_mix_2026_08_18.py"
HERO_CONFIG = "W&B config of hero-12d8b6f0-dee637"

_MARIN = "https://github.com/marin-community/marin"
_RUN_COMMIT = "12d8b6f09f96ad4f0277445765c1a00dbc81d5be"  # named in the job summary
_WANDB = "https://wandb.ai/marin-community/marin_moe/runs"

# The names that an Explanation's source is made of, and where each is to be found.
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        JOB_SUMMARY: f"{_MARIN}/issues/8435#issuecomment-5335872267",
        "issue 9277": f"{_MARIN}/issues/9277",
        "pull request 9162": f"{_MARIN}/pull/9162",
        LAUNCHER: f"{_MARIN}/blob/0b22469a71b1ae2311e91a2aa4351a26ebafb138/experiments/grug/moe_hero_ep/{LAUNCHER}",
        HEURISTIC: f"{_MARIN}/blob/{_RUN_COMMIT}/experiments/grug/moe_hero_ep/{HEURISTIC}",
        FIT_SCRIPT: f"{_MARIN}/blob/d23e6e9c3673435fb82d83aa6c51a607d0da6009/experiments/grug/moe_hero_ep/{FIT_SCRIPT}",
        MIXTURE_CODE: f"{_MARIN}/blob/{_RUN_COMMIT}/experiments/grug/moe_hero_ep/{MIXTURE_CODE}",
        **{f"W&B config of {rung.wandb_run}": f"{_WANDB}/{rung.wandb_run}" for rung in RUNGS.values()},
    }
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every resolved number of one training run. Made by `resolve_recipe`."""

    rung: str
    scale: str
    model: ModelConfig
    racks: int
    gpus: int  # expert shards of all racks; virtual where there are fewer devices
    total_parameters: int  # every stored leaf
    active_parameters: int  # the launcher's rule, without embedding and LM head; sets the token horizon
    matrix_parameters: int  # the published "535.3B"
    batch_size: int  # sequences a step
    seq_len: int  # tokens a sequence
    tokens_per_step: int
    tokens_per_active_parameter: float
    steps: int  # completed updates
    tokens: int
    forward_flops_per_token: int  # with the LM head
    flops_per_step_with_lm_head: int
    flops_per_step_without_lm_head: int
    flops_with_lm_head: int  # of the run; the published "2.7e24"
    flops_without_lm_head: int  # of the run; the forecast's axis
    muonh_learning_rate: float  # peaks
    adamh_learning_rate: float
    adam_learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    warmup_steps: int
    schedule: str
    min_learning_rate_ratio: float  # final over peak
    mixture_block_size: int  # sequences
    mixture_step_multiple: int
    mixture_phase_starts: tuple[int, ...]  # steps, as launched
    mixture_weights: tuple[dict[str, float], ...] | None  # of each cell, by phase; None: the record's
    simulated_epoching_ratio: float | None  # share of each cell that may be read; None: off
    simulated_epoching_reference: int  # tokens of the run that the ratio imitates
    compute_dtype: str  # of the forward and backward pass; masters and optimizer are float32
    newton_schulz_dtype: str
    evaluation_steps: tuple[int, ...]  # completed updates after which held-out data is evaluated
    evaluation_tokens: int | None  # of held-out data; None: all
    departures: tuple[Departure, ...] = ()  # what the scale changed of the published run

    def as_json(self) -> dict[str, Any]:
        """The `plan` object of the command-line contract. FLOPs are exact integers, beyond 2^53 for every rung."""
        return {
            "rung": self.rung,
            "scale": self.scale,
            "params": {
                "total": self.total_parameters,
                "active": self.active_parameters,
                "total_matrices": self.matrix_parameters,
            },
            "tokens_per_step": self.tokens_per_step,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "tokens": self.tokens,
            "flops": {
                "total": self.flops_with_lm_head,
                "without_lm_head": self.flops_without_lm_head,
                "per_token_forward": self.forward_flops_per_token,
            },
            "learning_rate": {
                "muonh": self.muonh_learning_rate,
                "adamh": self.adamh_learning_rate,
                "adam": self.adam_learning_rate,
            },
            "betas": [self.beta1, self.beta2],
            "epsilon": self.epsilon,
            "warmup_steps": self.warmup_steps,
            "schedule": self.schedule,
            "mixture": {
                "block_size": self.mixture_block_size,
                "step_multiple": self.mixture_step_multiple,
                "phase_starts": list(self.mixture_phase_starts),
            },
            "departures": [departure._asdict() for departure in self.departures],
            "memory_per_device": None,  # needs a mesh
            "communication_per_step": None,  # needs a mesh
        }


class Explanation(NamedTuple):
    """One number of a recipe: what it is, its value, how it follows, and who published the formula or the value."""

    quantity: str
    value: int | float | str
    formula: str
    source: str  # names out of SOURCES


def resolve_recipe(rung: str, scale: str = "full") -> Recipe:
    """Resolve a rung at a scale, a name or a TOML file. What does not exist is a UsageError that names what does."""
    chosen = get_scale(scale)
    recipe = _resolve(chosen.rung(rung), chosen)
    return recipe if scale == "full" else replace(recipe, departures=departures_of(recipe, resolve_recipe(rung)))


def _resolve(row: Rung, scale: Scale) -> Recipe:
    model = row.model
    active = flops.active_parameters(model)
    steps = _steps(row, scale)
    tokens = steps * row.tokens_per_step
    with_head = row.tokens_per_step * flops.training_flops_per_token(model, lm_head=True)
    without_head = row.tokens_per_step * flops.training_flops_per_token(model, lm_head=False)
    block = scale.mixture.block_size if scale.mixture else mixture.BLOCK_SIZE
    reference = _reference_tokens(scale)
    horizon = {"tokens": tokens, "hidden_dim": model.hidden_dim, "tokens_per_step": row.tokens_per_step}
    muonh = laws.muonh_learning_rate(**horizon)
    return Recipe(
        rung=row.name,
        scale=scale.name,
        model=model,
        racks=row.racks,
        gpus=row.gpus,
        total_parameters=flops.total_parameters(model),
        active_parameters=active,
        matrix_parameters=flops.matrix_parameters(model),
        batch_size=row.batch_size,
        seq_len=row.seq_len,
        tokens_per_step=row.tokens_per_step,
        tokens_per_active_parameter=scale.tokens_per_active_parameter,
        steps=steps,
        tokens=tokens,
        forward_flops_per_token=sum(flops.forward_flops_per_token(model).values()),
        flops_per_step_with_lm_head=with_head,
        flops_per_step_without_lm_head=without_head,
        flops_with_lm_head=steps * with_head,
        flops_without_lm_head=steps * without_head,
        muonh_learning_rate=muonh,
        adamh_learning_rate=muonh,  # one learning rate for both groups (W&B config of the hero)
        adam_learning_rate=laws.adam_learning_rate(**horizon),
        beta1=laws.BETA1,
        beta2=laws.beta2(tokens_per_step=row.tokens_per_step),
        epsilon=laws.epsilon(tokens=tokens, tokens_per_step=row.tokens_per_step),
        warmup_steps=laws.warmup_steps(steps=steps),
        schedule=laws.SCHEDULE,
        min_learning_rate_ratio=laws.MIN_LEARNING_RATE_RATIO,
        mixture_block_size=block,
        mixture_step_multiple=mixture.step_multiple(row.batch_size, block),
        mixture_phase_starts=mixture.phase_starts(steps, row.batch_size, block),
        mixture_weights=scale.mixture.weights() if scale.mixture else None,
        simulated_epoching_ratio=mixture.simulated_epoching_ratio(
            tokens=tokens,
            # Only the hero lies above the published bound on compute, and at no other scale would it.
            flops_with_lm_head=math.inf if row.name == HERO else steps * with_head,
            reference_tokens=reference,
        ),
        simulated_epoching_reference=reference,
        compute_dtype=scale.compute_dtype,
        newton_schulz_dtype=scale.newton_schulz_dtype,
        evaluation_steps=_evaluation_steps(row, scale, steps),
        evaluation_tokens=scale.evaluation_tokens,
    )


def _steps(row: Rung, scale: Scale) -> int:
    return laws.steps(
        active_parameters=flops.active_parameters(row.model),
        tokens_per_step=row.tokens_per_step,
        tokens_per_parameter=scale.tokens_per_active_parameter,
    )


def _evaluation_steps(row: Rung, scale: Scale, steps: int) -> tuple[int, ...]:
    """As published, whole intervals of a twentieth of the steps (the hero: 3,000), and the end. Elsewhere the nearest
    step to each mark, since a run of a few dozen steps has no twentieth."""
    if scale.evaluation_marks is None:
        interval = HERO_EVALUATION_INTERVAL if row.name == HERO else max(1, round(steps / EVALUATION_MARKS))
        return (*range(interval, steps, interval), steps)
    marks = range(1, scale.evaluation_marks + 1)
    return tuple(sorted({max(1, round(mark * steps / scale.evaluation_marks)) for mark in marks}))


def _reference_tokens(scale: Scale) -> int:
    """18.75T, or as much more than the scale's largest rung as 18.75T is than the published one."""
    largest = tuple(scale.rungs)[-1]
    here, published = (
        _steps(which.rungs[largest], which) * which.rungs[largest].tokens_per_step
        for which in (scale, get_scale("full"))
    )
    return round(mixture.REFERENCE_TOKENS * here / published)


def explain(recipe: Recipe) -> list[Explanation]:
    """Each number of the recipe with its formula and source, in the order in which one follows from another."""
    r, c = recipe, recipe.model
    scaled = r.scale != "full"
    here = f"scale {r.scale}"
    resolved = here if scaled else RUNGS[r.rung].resolved
    given = here if scaled else HERO_CONFIG
    unrounded = r.tokens_per_active_parameter * r.active_parameters / r.tokens_per_step
    unclipped = laws.beta2_unclipped(tokens_per_step=r.tokens_per_step)
    long_layers, counted = len(c.long_layers), c.num_layers // c.global_every
    undercount = f"; counts {counted} of the {long_layers} full-causal layers" if counted != long_layers else ""
    cooldown = f"int({mixture.COOLDOWN_FRACTION} · {r.steps:,}) rounded down to a multiple of {r.mixture_step_multiple}"
    switched = mixture.phase_starts(r.steps, r.batch_size, r.mixture_block_size, switched=True)
    ratio = r.simulated_epoching_ratio
    flops_rule = f"{mixture.SIMULATED_EPOCHING_MAX_FLOPS:.0e} FLOPs with the LM head"
    epoching = f"tokens / {r.simulated_epoching_reference:,}; up to {flops_rule}"
    return [
        Explanation("racks", r.racks, "given", LAUNCHER),
        Explanation("GPUs", r.gpus, f"racks · {r.gpus // r.racks}", here if scaled else JOB_SUMMARY),
        Explanation(
            "total parameters", r.total_parameters, "every stored leaf of the shape", "issue 9277, for the hero"
        ),
        Explanation(
            "matrix parameters",
            r.matrix_parameters,
            "active rule with all experts + embedding + LM head",
            f"{JOB_SUMMARY}, for the hero",
        ),
        Explanation(
            "active parameters",
            r.active_parameters,
            "layers · (attention + router + chosen experts + latent + shared); no embedding, no LM head",
            LAUNCHER,
        ),
        Explanation(
            "batch size",
            r.batch_size,
            f"racks · {r.batch_size // r.racks} sequences",
            here if scaled else LAUNCHER,
        ),
        Explanation("sequence length", r.seq_len, "given", here if scaled else JOB_SUMMARY),
        Explanation("tokens per step", r.tokens_per_step, "batch size · sequence length", LAUNCHER),
        Explanation(
            "steps",
            r.steps,
            f"max(1, round({r.tokens_per_active_parameter:g} · active / tokens per step)) = round({unrounded:,.3f})",
            f"{LAUNCHER}; {resolved}",
        ),
        Explanation("tokens", r.tokens, "steps · tokens per step", LAUNCHER),
        Explanation(
            "forward FLOPs per token",
            r.forward_flops_per_token,
            f"matrices, attention over full spans, LM head{undercount}",
            LAUNCHER,
        ),
        Explanation(
            "FLOPs per step, with LM head", r.flops_per_step_with_lm_head, "3 · forward · tokens per step", LAUNCHER
        ),
        Explanation(
            "FLOPs per step, without LM head",
            r.flops_per_step_without_lm_head,
            "3 · (forward - 2 · hidden · vocabulary) · tokens per step",
            FIT_SCRIPT,
        ),
        Explanation("FLOPs, with LM head", r.flops_with_lm_head, "steps · FLOPs per step, with LM head", LAUNCHER),
        Explanation(
            "FLOPs, without LM head",
            r.flops_without_lm_head,
            "steps · FLOPs per step, without LM head: the forecast's axis",
            FIT_SCRIPT,
        ),
        Explanation(
            "peak learning rate, MuonH and AdamH",
            r.muonh_learning_rate,
            "min(0.05, 13/3 · Adam's)",
            f"{HEURISTIC}; {resolved}",
        ),
        Explanation(
            "peak learning rate, Adam",
            r.adam_learning_rate,
            "min(0.05, 0.087571 · tokens^-0.3461 · hidden^-0.3448 · sqrt(tokens per step))",
            f"{JOB_SUMMARY}; {resolved}",
        ),
        Explanation("beta1", r.beta1, "given", f"{HERO_CONFIG}; W&B config of rav-ladder-d1536"),
        Explanation(
            "beta2",
            r.beta2,
            f"0.999^(tokens per step / 131,072) = {unclipped:.6f}, held to [0.95, 0.9999]",
            f"{HEURISTIC}; {resolved}",
        ),
        Explanation("epsilon", r.epsilon, "9.676e-18 · sqrt(tokens / tokens per step)", f"{HEURISTIC}; {resolved}"),
        Explanation("warm-up steps", r.warmup_steps, f"int({laws.WARMUP_FRACTION} · steps)", HERO_CONFIG),
        Explanation(
            "schedule",
            r.schedule,
            f"from the peak after warm-up straight to {r.min_learning_rate_ratio:.0%} of it at the last step",
            HERO_CONFIG,
        ),
        Explanation("mixture block", r.mixture_block_size, "sequences; given", given),
        Explanation(
            "mixture step multiple", r.mixture_step_multiple, "block / gcd(block, batch size), in steps", MIXTURE_CODE
        ),
        Explanation(
            "mixture phase starts", ", ".join(f"{s:,}" for s in r.mixture_phase_starts), cooldown, MIXTURE_CODE
        ),
        Explanation(
            "mixture switch, later rule",
            switched[1],
            "steps · 108,000 / 390,251 rounded up; ran on the hero only",
            "pull request 9162",
        ),
        Explanation(
            "simulated epoching",
            "off" if ratio is None else ratio,
            f"above {flops_rule}" if ratio is None else epoching,
            MIXTURE_CODE,
        ),
    ]
