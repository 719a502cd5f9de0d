"""Learning rate over the run: a linear warm-up from zero, then a linear decay to a twentieth of the peak.

`step` counts completed updates, so the first update of a run with a warm-up has rate zero. There is no stable phase:
the decay starts where the warm-up ends and ends with the run. Both learning rates of the recipe (MuonH's and Adam's)
follow this one curve. Two forms of it live here: real-number arithmetic, for people and planners, and the float32
form the run evaluated on its devices, which differs by up to 2e-4 of the value early in the warm-up.

Source: levanter's `OptimizerConfig.lr_scheduler` with the W&B configuration of hero-12d8b6f0-dee637 (`lr_schedule`
linear, `decay` null, `warmup` 0.01, `min_lr_ratio` 0.05). The ladder comment in marin-community/marin#8435 that says
"cosine" does not describe what ran.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

WARMUP_FRACTION = 0.01  # W&B config of hero-12d8b6f0-dee637, `optimizer.warmup`
FINAL_RATIO = 0.05  # same, `optimizer.min_lr_ratio`

ScheduleFn = Callable[[jax.Array], jax.Array]


def warmup_steps(steps: int, *, warmup: float = WARMUP_FRACTION) -> int:
    """Updates before the peak: 3,902 of the hero's 390,251; rounded down."""
    return int(warmup * steps)


def learning_rate(
    step: int, *, peak: float, steps: int, warmup: float = WARMUP_FRACTION, final_ratio: float = FINAL_RATIO
) -> float:
    """The rate of the update after `step` completed ones, in double precision. Beyond `steps` it stays at the end."""
    rise = warmup_steps(steps, warmup=warmup)
    if step < rise:
        return peak * step / rise
    end = peak * final_ratio
    return end + (peak - end) * (1 - min(step - rise, steps - rise) / (steps - rise))


def float32_learning_rate(
    *, peak: float, steps: int, warmup: float = WARMUP_FRACTION, final_ratio: float = FINAL_RATIO
) -> ScheduleFn:
    """The same curve as the run computed it: an int32 count on the device -> a float32 rate, digit for digit.

    Each segment is (from − to)·(1 − t/length) + to. While warming up `to` is the peak, so the sum cancels and the
    first rates carry rounding of the peak's size.
    """
    rise = warmup_steps(steps, warmup=warmup)

    def line(start: float, end: float, length: int, count: jax.Array) -> jax.Array:
        left = 1 - jnp.clip(count, 0, length) / length  # [] float32: count is int32 and JAX divides in float32
        return (start - end) * left + end

    def rate(count: jax.Array) -> jax.Array:
        decaying = line(peak, peak * final_ratio, steps - rise, count - rise)
        return jnp.where(count < rise, line(0.0, peak, rise, count), decaying) if rise else decaying

    return rate


def annealed_weight_decay(*, initial: float, steps: int) -> ScheduleFn:
    """Decay of the head gates and routers from step 58,014 on: `initial`·max(0, 1 − count/`steps`), float32.

    The count is Adam's own, which a restored run brings along: the hero started at 0.0170, not at its 0.02
    (marin-community/marin#8833).
    """
    return lambda count: initial * jnp.maximum(0.0, 1 - count / steps)
