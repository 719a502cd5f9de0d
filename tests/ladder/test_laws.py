"""The scaling laws give the published digits, exactly: float64 in the published order."""

from __future__ import annotations

import pytest

from repro.ladder import laws

# W&B configs of rav-ladder-d768-v2, -d1024, -d1536 and hero-12d8b6f0-dee637 (optimizer.*); d2048 has no published
# config beyond its rounded 0.0134, so its row is computed by the same formulas.
PUBLISHED = {  # hidden, tokens/step, active, steps, warm-up, MuonH LR, Adam LR, beta2, epsilon
    "d768": (
        *(768, 4_194_304, 60_555_264, 11420, 114),
        *(0.01581899827720595, 0.0036505380639706045, 0.9684910757595268, 1.0340199349722422e-15),
    ),
    "d1024": (
        *(1024, 8_388_608, 162_004_992, 15276, 152),
        *(0.014411232257430628, 0.0033256689824839912, 0.95, 1.195916022710625e-15),
    ),
    "d1536": (
        *(1536, 25_165_824, 481_296_384, 15128, 151),
        *(0.01488939905130899, 0.0034360151656866902, 0.95, 1.1901086660166794e-15),
    ),
    "d2048": (
        *(2048, 46_137_344, 1_170_735_104, 20072, 200),
        *(0.013421680900912756, 0.003097310977133713, 0.95, 1.37085393761407e-15),
    ),
    "d6144": (
        *(6144, 46_137_344, 22_762_487_808, 390251, 3902),
        *(0.003290470163258143, 0.0007593392684441868, 0.95, 6.044604247506697e-15),
    ),
}


@pytest.mark.parametrize("rung", PUBLISHED)
def test_every_law_gives_the_published_digits(rung: str) -> None:
    hidden, per_step, active, steps, warmup, muonh, adam, beta2, epsilon = PUBLISHED[rung]
    tokens = steps * per_step
    assert laws.steps(active_parameters=active, tokens_per_step=per_step) == steps
    assert laws.warmup_steps(steps=int(steps)) == warmup
    assert laws.muonh_learning_rate(tokens=tokens, hidden_dim=hidden, tokens_per_step=per_step) == muonh
    assert laws.adam_learning_rate(tokens=tokens, hidden_dim=hidden, tokens_per_step=per_step) == adam
    assert laws.beta2(tokens_per_step=per_step) == beta2
    assert laws.epsilon(tokens=tokens, tokens_per_step=per_step) == epsilon


def test_390_139_steps_make_another_learning_rate() -> None:
    """Issue 8435's job summary: 390,139 steps and 0.003291, which the run's own 390,251 steps do not round to."""
    tokens = 390_139 * 46_137_344
    rate = laws.muonh_learning_rate(tokens=tokens, hidden_dim=6144, tokens_per_step=46_137_344)
    assert f"{rate:.6f}" == "0.003291"
    assert rate == 0.003290797065165357
    assert f"{PUBLISHED['d6144'][5]:.6f}" == "0.003290"


@pytest.mark.parametrize(("steps", "active"), [(390_139, 22_755_976_297), (390_251, 22_762_509_018)])
def test_a_step_count_implies_its_active_parameters(steps: int, active: int) -> None:
    """791 · active = steps · 46,137,344, solved by hand for both published step counts."""
    assert round(laws.implied_active_parameters(steps=steps, tokens_per_step=46_137_344)) == active
    assert laws.steps(active_parameters=active, tokens_per_step=46_137_344) == steps


def test_beta2_of_the_large_batches_is_the_bound_and_not_the_law() -> None:
    assert round(laws.beta2_unclipped(tokens_per_step=46_137_344), 3) == 0.703  # issue 8435, job summary
    assert laws.beta2(tokens_per_step=1) == 0.9999


def test_a_tiny_run_has_at_least_one_step() -> None:
    assert laws.steps(active_parameters=1, tokens_per_step=46_137_344) == 1


def test_the_learning_rate_is_capped() -> None:
    """Never on the ladder; a run of a few tokens reaches it, and the MuonH cap is reached before the Adam one."""
    assert laws.muonh_learning_rate(tokens=1e6, hidden_dim=64, tokens_per_step=2**20) == 0.05
    assert laws.adam_learning_rate(tokens=1e2, hidden_dim=1, tokens_per_step=2**20) == 0.05


def test_initialisation_is_half_over_the_root_of_the_width() -> None:
    assert laws.initializer_std(hidden_dim=6144) == 0.0063788795384978605  # W&B config of the hero
    assert laws.initializer_std(hidden_dim=1024) == 0.015625
