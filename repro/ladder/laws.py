"""The scaling laws of the ladder, one function a law: what a rung's shape and token horizon make of its optimiser.

In: parameters, tokens, tokens per step, hidden width. Out: the number that the launcher passed on, in every digit: the
published values are float64, and products are taken in the published order. The planner and the auditor share these
functions, so they take any real number, not only the five rungs'.

There is no law of depth: layers, heads and racks are rows of `repro.ladder.rungs`.

Sources: experiments/grug/moe_hero_ep/heuristic.py and launch_scaling_ladder.py of marin-community/marin; the job
summary of marin-community/marin#8435 (issuecomment-5335872267); values checked against the W&B configs of
hero-12d8b6f0-dee637 and rav-ladder-d1536.
"""

from __future__ import annotations

import math

TOKENS_PER_ACTIVE_PARAMETER = 791  # issue 8435, job summary
MAX_LEARNING_RATE = 0.05  # heuristic.py; binds on none of the rungs
MUONH_TO_ADAM = 13 / 3  # heuristic.py
MIN_LEARNING_RATE_RATIO = 0.05  # W&B config of the hero, optimizer.min_lr_ratio
WARMUP_FRACTION = 0.01  # W&B config of the hero, optimizer.warmup
SCHEDULE = "linear"  # W&B config of the hero, optimizer.lr_schedule; the ladder comment's "cosine" is not what ran
BETA1 = 0.9  # W&B configs of the hero and of rav-ladder-d1536; a stored text of heuristic.py says 0.9062
BETA2_RANGE = (0.95, 0.9999)  # heuristic.py


def steps(
    *, active_parameters: float, tokens_per_step: float, tokens_per_parameter: float = TOKENS_PER_ACTIVE_PARAMETER
) -> int:
    """Optimiser steps of a run: max(1, round(791 · active / tokens per step)).

    Fit: none, a chosen ratio (issue 8435, job summary). Range: all five rungs use it. Source: launch_scaling_ladder.py,
    whose published step counts it reproduces.
    """
    return max(1, round(tokens_per_parameter * active_parameters / tokens_per_step))


def implied_active_parameters(*, steps: float, tokens_per_step: float) -> float:
    """The step law read backwards: the active parameters that a step count speaks of, within half a step's worth."""
    return steps * tokens_per_step / TOKENS_PER_ACTIVE_PARAMETER


def adam_learning_rate_uncapped(*, tokens: float, hidden_dim: float, tokens_per_step: float) -> float:
    """Peak learning rate of the Adam group before its cap."""
    return 0.087571 * tokens**-0.3461 * hidden_dim**-0.3448 * math.sqrt(tokens_per_step)


def adam_learning_rate(*, tokens: float, hidden_dim: float, tokens_per_step: float) -> float:
    """Peak learning rate of the Adam group: min(0.05, 0.087571 · tokens^-0.3461 · hidden^-0.3448 · sqrt(tokens/step)).

    Fit: R² 0.978, the sweep of issues 7856 and 8003 at sequence length 8192, where it read muonh = 34.35 ·
    tokens^-0.346 · hidden^-0.345 · sqrt(sequences per step); 0.087571 is 34.35 / (13/3 · sqrt(8192)). Range: the widths
    and tokens of that sweep are not in the record, and the hero lies beyond every finished rung. Replaces the May fit
    of issue 5951 (0.06602, -0.395, -0.150), which is not what ran. Source: issue 8435, job summary.
    """
    law = adam_learning_rate_uncapped(tokens=tokens, hidden_dim=hidden_dim, tokens_per_step=tokens_per_step)
    return min(MAX_LEARNING_RATE, law)


def muonh_learning_rate(*, tokens: float, hidden_dim: float, tokens_per_step: float) -> float:
    """Peak learning rate of the MuonH group, and of AdamH, the LM head's: min(0.05, 13/3 · Adam's).

    Fit, range: those of `adam_learning_rate`. Source: heuristic.py; both values stand in issue 8435, job summary.
    """
    adam = adam_learning_rate(tokens=tokens, hidden_dim=hidden_dim, tokens_per_step=tokens_per_step)
    return min(MAX_LEARNING_RATE, MUONH_TO_ADAM * adam)


def epsilon(*, tokens: float, tokens_per_step: float) -> float:
    """Epsilon of Adam and AdamH, far below gradient noise: 9.676e-18 · sqrt(tokens / tokens per step).

    Fit, range: not in the record; equals 9.676e-18 · sqrt(steps). Source: heuristic.py.
    """
    return 9.676e-18 * math.sqrt(tokens / tokens_per_step)


def beta2_unclipped(*, tokens_per_step: float) -> float:
    """Second-moment decay before its bounds: 0.999^(tokens per step / 131,072), a fixed half-life in tokens.

    Fit, range: not in the record. Source: heuristic.py.
    """
    return 0.999 ** (tokens_per_step / 131_072)


def beta2(*, tokens_per_step: float) -> float:
    """Second-moment decay of Adam and AdamH: `beta2_unclipped` held to [0.95, 0.9999].

    The lower bound binds on every rung but d768 (0.703 for the hero), so this is a law for small batches only.
    """
    low, high = BETA2_RANGE
    return min(max(beta2_unclipped(tokens_per_step=tokens_per_step), low), high)


def warmup_steps(*, steps: int) -> int:
    """Steps of linear warm-up: int(0.01 · steps), rounded down. The rest of the run decays linearly to 5% of the peak.

    Source: W&B config of the hero (optimizer.warmup); rounding as in levanter's schedules (marin-levanter 0.2.227).
    """
    return int(WARMUP_FRACTION * steps)


def initializer_std(*, hidden_dim: int) -> float:
    """Standard deviation of every matrix at initialisation: 0.5 / sqrt(hidden).

    Fit: none, a rule. Source: W&B config of the hero (model.initializer_std, 0.0063788795384978605).
    """
    return 0.5 / math.sqrt(hidden_dim)
