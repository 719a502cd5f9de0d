"""The resolved recipe of all five rungs, number by number, against what was published and what the shapes give."""

from __future__ import annotations

from typing import Any

import pytest

from repro.errors import UsageError
from repro.ladder.recipe import SOURCES, explain, resolve_recipe
from repro.ladder.rungs import RUNGS

# Sources: total of d6144 marin-community/marin#9277; steps, batch, tokens launch_scaling_ladder.py @0b22469a; learning
# rates, epsilon, beta2 the W&B configs (see test_laws); FLOPs per step without the head plot_scaling_ladder.py
# @d23e6e9c; with the head launch_scaling_ladder.py, which rounds them; phase starts the W&B configs of rav-ladder-d1536
# and the hero. Digits that nobody published were counted from the published shapes by a separate program.
PLAN: dict[str, dict[str, Any]] = {
    "d768": {
        "params": {"total": 1_591_848_448, "active": 60_555_264, "total_matrices": 1_588_199_424},
        "tokens_per_step": 4_194_304,
        "steps": 11_420,
        "batch_size": 1024,
        "seq_len": 4096,
        "tokens": 47_898_951_680,
        "flops": {
            "total": 54_805_253_980_956_917_760,
            "without_lm_head": 26_496_798_802_701_189_120,
            "per_token_forward": 381_394_944,
        },
        "learning_rate": {
            "muonh": 0.01581899827720595,
            "adamh": 0.01581899827720595,
            "adam": 0.0036505380639706045,
        },
        "betas": [0.9, 0.9684910757595268],
        "epsilon": 1.0340199349722422e-15,
        "warmup_steps": 114,
        "mixture": {"block_size": 49_152, "step_multiple": 48, "phase_starts": [0, 9120]},
    },
    "d1024": {
        "params": {"total": 3_980_116_480, "active": 162_004_992, "total_matrices": 3_973_054_464},
        "tokens_per_step": 8_388_608,
        "steps": 15_276,
        "batch_size": 2048,
        "seq_len": 4096,
        "tokens": 128_144_375_808,
        "flops": {
            "total": 273_590_218_848_932_462_592,
            "without_lm_head": 172_611_827_417_984_532_480,
            "per_token_forward": 711_671_808,
        },
        "learning_rate": {
            "muonh": 0.014411232257430628,
            "adamh": 0.014411232257430628,
            "adam": 0.0033256689824839912,
        },
        "betas": [0.9, 0.95],
        "epsilon": 1.195916022710625e-15,
        "warmup_steps": 152,
        "mixture": {"block_size": 49_152, "step_multiple": 24, "phase_starts": [0, 12_216]},
    },
    "d1536": {
        "params": {"total": 11_534_398_464, "active": 481_296_384, "total_matrices": 11_520_442_368},
        "tokens_per_step": 25_165_824,
        "steps": 15_128,
        "batch_size": 6144,
        "seq_len": 4096,
        "tokens": 380_708_585_472,
        "flops": {
            "total": 1_831_326_175_681_056_866_304,
            "without_lm_head": 1_381_325_850_003_313_262_592,
            "per_token_forward": 1_603_436_544,
        },
        "learning_rate": {"muonh": 0.01488939905130899, "adamh": 0.01488939905130899, "adam": 0.0034360151656866902},
        "betas": [0.9, 0.95],
        "epsilon": 1.1901086660166794e-15,
        "warmup_steps": 151,
        "mixture": {"block_size": 49_152, "step_multiple": 8, "phase_starts": [0, 12_096]},
    },
    "d2048": {
        "params": {"total": 27_742_902_528, "active": 1_170_735_104, "total_matrices": 27_717_533_696},
        "tokens_per_step": 46_137_344,
        "steps": 20_072,
        "batch_size": 11_264,
        "seq_len": 4096,
        "tokens": 926_068_768_768,
        "flops": {
            "total": 9_201_308_336_031_799_443_456,
            "without_lm_head": 7_741_814_947_656_448_868_352,
            "per_token_forward": 3_311_960_064,
        },
        "learning_rate": {
            "muonh": 0.013421680900912756,
            "adamh": 0.013421680900912756,
            "adam": 0.003097310977133713,
        },
        "betas": [0.9, 0.95],
        "epsilon": 1.37085393761407e-15,
        "warmup_steps": 200,
        "mixture": {"block_size": 49_152, "step_multiple": 48, "phase_starts": [0, 16_032]},
    },
    "d6144": {
        "params": {"total": 535_477_106_688, "active": 22_762_487_808, "total_matrices": 535_305_388_032},
        "tokens_per_step": 46_137_344,
        "steps": 390_251,
        "batch_size": 11_264,
        "seq_len": 4096,
        "tokens": 18_005_144_633_344,
        "flops": {
            "total": 2_696_023_010_665_861_685_968_896,
            "without_lm_head": 2_610_894_161_377_270_274_457_600,
            "per_token_forward": 49_912_086_528,
        },
        "learning_rate": {
            "muonh": 0.003290470163258143,
            "adamh": 0.003290470163258143,
            "adam": 0.0007593392684441868,
        },
        "betas": [0.9, 0.95],
        "epsilon": 6.044604247506697e-15,
        "warmup_steps": 3902,
        "mixture": {"block_size": 49_152, "step_multiple": 48, "phase_starts": [0, 312_192]},
    },
}

# plot_scaling_ladder.py @d23e6e9c: compute of a step without the LM head, as its float constants.
FIT_SCRIPT_STEP_FLOPS = {
    "d768": 2.320210052775936e15,
    "d1024": 1.129954355970048e16,
    "d1536": 9.130921800656486e16,
    "d2048": 3.857022193930076e17,
    "d6144": 6.690294608796058e18,
}
STEP_FLOPS_WITH_HEAD = {
    "d768": 4_799_059_017_596_928,
    "d1024": 17_909_807_465_889_792,
    "d1536": 121_055_405_584_416_768,
    "d2048": 458_415_122_361_090_048,
    "d6144": 6_908_433_317_700_304_896,
}


@pytest.mark.parametrize("rung", PLAN)
def test_the_plan_is_the_published_recipe_to_the_digit(rung: str) -> None:
    assert resolve_recipe(rung).as_json() == {
        "rung": rung,
        "scale": "full",
        **PLAN[rung],
        "schedule": "linear",
        "departures": [],
        "memory_per_device": None,
        "communication_per_step": None,
    }


@pytest.mark.parametrize("rung", PLAN)
def test_flops_of_a_step_are_those_of_launcher_and_fit_script(rung: str) -> None:
    recipe = resolve_recipe(rung)
    assert float(recipe.flops_per_step_without_lm_head) == FIT_SCRIPT_STEP_FLOPS[rung]
    assert recipe.flops_per_step_with_lm_head == STEP_FLOPS_WITH_HEAD[rung]
    head = 6 * recipe.model.hidden_dim * recipe.model.vocab_size * recipe.tokens
    assert recipe.flops_with_lm_head - recipe.flops_without_lm_head == head


@pytest.mark.parametrize(
    ("rung", "total", "active", "tokens", "flops"),
    [  # launch_scaling_ladder.py @0b22469a, the table of its docstring, as printed
        ("d768", "1.6B", "61M", "48B", "5.5e+19"),
        ("d1024", "4.0B", "162M", "128B", "2.7e+20"),
        ("d1536", "11.5B", "481M", "381B", "1.8e+21"),
        ("d2048", "27.7B", "1171M", "926B", "9.2e+21"),  # printed as 1.2B
        ("d6144", "535.5B", "22762M", "18005B", "2.7e+24"),  # printed as 535B, 23B, 18T
    ],
)
def test_the_recipe_rounds_to_the_launchers_own_table(
    rung: str, total: str, active: str, tokens: str, flops: str
) -> None:
    recipe = resolve_recipe(rung)
    assert f"{recipe.total_parameters / 1e9:.1f}B" == total
    assert f"{recipe.active_parameters / 1e6:.0f}M" == active
    assert f"{recipe.tokens / 1e9:.0f}B" == tokens
    assert f"{recipe.flops_with_lm_head:.1e}" == flops


def test_only_the_hero_reads_its_cells_whole() -> None:
    """W&B configs: both budgets null on the hero; 380,708,585,472 of 18.75T on rav-ladder-d1536."""
    assert [resolve_recipe(rung).simulated_epoching_ratio is None for rung in RUNGS] == [False] * 4 + [True]
    assert resolve_recipe("d1536").simulated_epoching_ratio == 380_708_585_472 / 18_750_000_000_000


def test_the_issues_matrix_count_is_not_the_checkpoints() -> None:
    hero = resolve_recipe("d6144")
    assert f"{hero.matrix_parameters / 1e9:.1f}" == "535.3"  # issue 8435, job summary
    assert f"{hero.total_parameters / 1e9:.1f}" == "535.5"


@pytest.mark.parametrize("scale", ["Full", "", "micro", "tiny.toml"])
def test_a_scale_that_does_not_exist_is_told_which_do(scale: str) -> None:
    with pytest.raises(UsageError, match="full, mini, smoke") as caught:
        resolve_recipe("d768", scale)
    assert repr(scale) in str(caught.value)


@pytest.mark.parametrize("rung", PLAN)
def test_every_number_of_the_plan_is_explained_with_a_known_source(rung: str) -> None:
    recipe = resolve_recipe(rung)
    rows = explain(recipe)
    explained = {row.value for row in rows}
    for value in _numbers(recipe.as_json()):
        assert value in explained or value in recipe.mixture_phase_starts, value
    assert all(any(name in row.source for name in SOURCES) and row.formula for row in rows)
    assert len({row.quantity for row in rows}) == len(rows)


def test_the_explanation_admits_what_is_only_computed_and_what_is_miscounted() -> None:
    by_name = {row.quantity: row for row in explain(resolve_recipe("d2048"))}
    assert "not seen" in by_name["steps"].source
    assert "5 of the 6 full-causal layers" in by_name["forward FLOPs per token"].formula
    hero = {row.quantity: row for row in explain(resolve_recipe("d6144"))}
    assert "full-causal" not in hero["forward FLOPs per token"].formula
    assert hero["mixture switch, later rule"].value == 108_000
    assert "0.703156" in hero["beta2"].formula


def test_sources_are_public_addresses() -> None:
    assert all(address.startswith(("https://github.com/", "https://wandb.ai/")) for address in SOURCES.values())


def _numbers(value: object) -> list[int | float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []
