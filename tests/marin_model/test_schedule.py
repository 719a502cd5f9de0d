"""The learning-rate curve against the original code's values and the published rungs."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model.schedule import annealed_weight_decay, float32_learning_rate, learning_rate, warmup_steps

# Levanter's linear schedule evaluated at 21 steps of each rung: float32, eager, CPU, JAX 0.11.2.
GOLDEN = Path(__file__).parents[1] / "goldens" / "03_lr_schedules.npz"

# Steps and peaks (MuonH and AdamH, Adam): W&B configurations of the ladder runs and of hero-12d8b6f0-dee637;
# d2048's by the published law.
RUNGS = {
    "d768": (11_420, 0.01581899827720595, 0.0036505380639706045),
    "d1024": (15_276, 0.014411232257430628, 0.0033256689824839912),
    "d1536": (15_128, 0.01488939905130899, 0.0034360151656866902),
    "d2048": (20_072, 0.013421680900912756, 0.003097310977133713),
    "d6144": (390_251, 0.003290470163258143, 0.0007593392684441868),
}
HERO_STEPS, HERO_PEAK, HERO_ADAM_PEAK = RUNGS["d6144"]


@pytest.mark.parametrize("rung", RUNGS)
def test_the_float32_curve_has_the_original_digits(rung):
    steps, *peaks = RUNGS[rung]
    golden = np.load(GOLDEN)
    counts = golden[f"{rung}/steps"]
    for name, peak in zip(("muonh_lr", "adam_lr"), peaks, strict=True):
        expected = golden[f"{rung}/{name}"]
        curve = float32_learning_rate(peak=peak, steps=steps)
        np.testing.assert_array_equal([curve(jnp.int32(t)) for t in counts], expected)
        # Compiled, XLA may fuse the multiplication with the addition: one rounding of the peak's size fewer.
        compiled = jax.jit(jax.vmap(curve))(jnp.asarray(counts, jnp.int32))
        np.testing.assert_allclose(compiled, expected, rtol=0, atol=np.spacing(np.float32(peak)))


@pytest.mark.parametrize(
    ("step", "muonh", "adam"),
    [
        (0, 0.0, 0.0),
        (1, 8.432778480928096e-07, 1.946025803291099e-07),
        (3_901, 0.00328962688541005, 0.0007591446658638578),
        (3_902, HERO_PEAK, HERO_ADAM_PEAK),
        (58_014, 0.0028526504059907154, 0.0006583039398440113),
        (108_000, 0.0024482140815752502, 0.0005649724803635193),
        (312_192, 0.0007960982500415689, 0.00018371498077882358),
        (390_250, 0.0001645315991548736, 3.7968830574201524e-05),
    ],
)
def test_the_hero_follows_the_real_number_curve(step, muonh, adam):
    """Values recomputed in double precision from the curve's definition, independently of this package."""
    assert learning_rate(step, peak=HERO_PEAK, steps=HERO_STEPS) == pytest.approx(muonh, rel=1e-14)
    assert learning_rate(step, peak=HERO_ADAM_PEAK, steps=HERO_STEPS) == pytest.approx(adam, rel=1e-14)


def test_warm_up_is_a_hundredth_of_the_run_rounded_down():
    assert [warmup_steps(steps) for steps, *_ in RUNGS.values()] == [114, 152, 151, 200, 3_902]


def test_a_run_too_short_for_a_warm_up_starts_at_the_peak():
    assert warmup_steps(60) == 0
    assert learning_rate(0, peak=2.0, steps=60) == float32_learning_rate(peak=2.0, steps=60)(jnp.int32(0)) == 2.0


def test_the_rate_stays_at_its_end_after_the_last_step():
    for step in (HERO_STEPS, HERO_STEPS + 1000):
        assert learning_rate(step, peak=HERO_PEAK, steps=HERO_STEPS) == pytest.approx(HERO_PEAK / 20, rel=1e-14)
        curve = float32_learning_rate(peak=HERO_PEAK, steps=HERO_STEPS)
        assert float(curve(jnp.int32(step))) == pytest.approx(HERO_PEAK / 20, rel=1e-6)


@pytest.mark.parametrize(("step", "decay"), [(58_014, 0.017026836574409804), (312_192, 0.004000450991797586)])
def test_gate_and_router_decay_starts_mid_anneal(step, decay):
    """marin-community/marin#8833: 0.02 over the whole run, entered at step 58,014."""
    curve = annealed_weight_decay(initial=0.02, steps=HERO_STEPS)
    assert float(curve(jnp.int32(step))) == pytest.approx(decay, rel=1e-6)
    assert float(curve(jnp.int32(HERO_STEPS + 5))) == 0
