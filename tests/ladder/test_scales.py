"""Scales: what they keep of the recipe, what they say they change, and which files are refused."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path

import pytest

from marin_model.config import ModelConfig
from repro.errors import UsageError
from repro.ladder import mixture
from repro.ladder.recipe import Recipe, explain, resolve_recipe
from repro.ladder.rungs import RUNGS
from repro.ladder.scales import SCALES, get_scale, parse_scale

SMALL = ("mini", "smoke")
LADDER = [(rung, scale) for scale in SMALL for rung in RUNGS]
TOY = """
tokens_per_active_parameter = 2
sequences_per_rack = 4
shards_per_rack = 2
[model]
vocab_size = 64
max_seq_len = 16
sliding_window = 8
head_dim = 8
gated_norm_rank = 4
num_experts = 12
num_experts_per_token = 2
[rungs]
d768 = { hidden_dim = 16, num_layers = 2 }
[mixture]
block_size = 20
topics = 2
phases = [[1, 1], [2, 3]]
[evaluation]
marks = 4
tokens = 256
"""


def published(rung: str) -> Recipe:
    return resolve_recipe(rung)


# What a scale keeps


@pytest.mark.parametrize(("rung", "scale"), LADDER)
def test_a_scale_keeps_the_ratios_of_the_recipe(rung: str, scale: str) -> None:
    here, there = resolve_recipe(rung, scale).model, published(rung).model
    assert (
        here.hidden_dim == 2 * here.latent_dim == 2 * here.intermediate_dim == 2 * here.shared_expert_intermediate_dim
    )
    assert here.num_shared_experts == 2
    assert here.num_experts * there.num_experts_per_token == there.num_experts * here.num_experts_per_token
    assert here.max_seq_len * there.sliding_window == there.max_seq_len * here.sliding_window
    assert here.global_every == there.global_every
    assert here.initializer_std == 0.5 / math.sqrt(here.hidden_dim)
    assert (here.capacity_factor, here.sender_capacity_factor) == (1.15, 1.15)


@pytest.mark.parametrize("scale", SMALL)
def test_the_rungs_stay_a_ladder(scale: str) -> None:
    """Load of a shard and tokens per active parameter are constant; compute and batches rise as published."""
    rungs = [resolve_recipe(rung, scale) for rung in RUNGS]
    assert len({r.tokens_per_step * r.model.num_experts_per_token / r.gpus for r in rungs}) == 1
    for r in rungs:
        assert abs(r.tokens - r.tokens_per_active_parameter * r.active_parameters) <= r.tokens_per_step / 2
    assert [r.batch_size / rungs[0].batch_size for r in rungs] == [1, 2, 6, 11, 11]
    flops = [r.flops_without_lm_head for r in rungs]
    assert flops == sorted(set(flops))
    assert all(r.batch_size >= r.gpus for r in rungs)


@pytest.mark.parametrize(("rung", "scale"), LADDER)
def test_blocks_are_whole_and_no_cell_is_starved(rung: str, scale: str) -> None:
    r = resolve_recipe(rung, scale)
    assert r.mixture_weights is not None
    assert r.steps * r.batch_size >= 10 * r.mixture_block_size
    for weights in r.mixture_weights:
        counts = mixture.block_counts(weights, r.mixture_block_size)
        assert mixture.block_remainder(weights, r.mixture_block_size) == 0
        assert min(counts.values()) >= 4
    main, cooldown = r.mixture_phase_starts
    assert (main, cooldown % r.mixture_step_multiple) == (0, 0)
    assert cooldown < r.steps
    assert r.mixture_weights[0] != r.mixture_weights[1]


@pytest.mark.parametrize("scale", SMALL)
def test_simulated_epoching_keeps_its_measure(scale: str) -> None:
    """A rung may read of each cell what it takes of a run as much longer than the hero as 18.75T is than the hero."""
    hero = resolve_recipe("d6144", scale)
    assert hero.simulated_epoching_ratio is None
    full = published("d6144").tokens
    for rung in tuple(RUNGS)[:-1]:
        r = resolve_recipe(rung, scale)
        assert r.simulated_epoching_ratio == pytest.approx(r.tokens / (hero.tokens * 18.75e12 / full), rel=1e-6)


def test_evaluations_come_at_the_marks() -> None:
    """W&B configs: every 571, 764, 756 steps on the ladder, every 3,000 on the hero; both end with one."""
    for rung, interval in (("d768", 571), ("d1024", 764), ("d1536", 756), ("d2048", 1004), ("d6144", 3000)):
        full = published(rung)
        assert full.evaluation_steps[:2] == (interval, 2 * interval)
        assert full.evaluation_steps[-1] == full.steps
    for rung in RUNGS:
        r = resolve_recipe(rung, "smoke")
        assert len(r.evaluation_steps) == 10
        for mark, step in enumerate(r.evaluation_steps, start=1):
            assert abs(step - mark * r.steps / 10) <= 0.5


# What it says it changes


def test_full_departs_from_nothing() -> None:
    assert all(resolve_recipe(rung, "full").departures == () for rung in RUNGS)


@pytest.mark.parametrize(("rung", "scale"), LADDER)
def test_every_changed_number_of_the_plan_is_a_departure_or_follows_from_a_law(rung: str, scale: str) -> None:
    here, there = resolve_recipe(rung, scale), published(rung)
    listed = {(d.published, d.here) for d in here.departures}
    for field in (
        *("batch_size", "steps", "tokens", "compute_dtype", "newton_schulz_dtype", "mixture_block_size"),
        *("tokens_per_active_parameter", "warmup_steps"),
    ):
        assert (getattr(there, field), getattr(here, field)) in listed, field
    laws = (
        "initializer_std",
        "num_kv_heads",
        "shared_expert_intermediate_dim",
        "latent_dim",
    )  # follow from what is listed
    for field in ModelConfig.__dataclass_fields__:
        pair = getattr(there.model, field), getattr(here.model, field)
        assert pair[0] == pair[1] or field in laws or pair in listed, field
    assert all(d.published != d.here for d in here.departures)
    assert len({d.what for d in here.departures}) == len(here.departures)


def test_clipped_laws_say_what_the_law_gives() -> None:
    by_name = {d.what: d for d in resolve_recipe("d768", "smoke").departures}
    rate = by_name["peak learning rate of MuonH and AdamH, the law far outside its sweep"]
    # 13/3 · 0.087571 · 59392^-0.3461 · 32^-0.3448 · sqrt(1024)
    law = 13 / 3 * 0.087571 * 59_392**-0.3461 * 32**-0.3448 * math.sqrt(1024)
    assert rate.here == f"0.05 (capped, the law gives {law:.4g})"
    assert rate.published == 0.01581899827720595
    assert by_name["beta2"].here == f"0.9999 (clipped, the law gives {0.999 ** (1024 / 131072):.6f})"
    assert (by_name["warm-up steps"].published, by_name["warm-up steps"].here) == (114, 0)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_small_plan_does_not_claim_the_published_sources(rung: str) -> None:
    recipe = resolve_recipe(rung, "smoke")
    assert [d["what"] for d in recipe.as_json()["departures"]] == [d.what for d in recipe.departures]
    sources = {row.quantity: row.source for row in explain(recipe)}
    for quantity in ("GPUs", "batch size", "sequence length", "mixture block"):
        assert sources[quantity] == "scale smoke"
    assert not any("W&B config of rav" in source for quantity, source in sources.items() if quantity != "beta1")


# Files


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "toy.toml"
    path.write_text(text)
    return str(path)


def test_a_file_that_changes_nothing_is_the_published_recipe(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    for rung in RUNGS:
        here, there = resolve_recipe(rung, path), published(rung)
        assert here.departures == ()
        assert {**here.as_json(), "scale": "full"} == there.as_json()


def test_a_file_is_a_scale(tmp_path: Path) -> None:
    recipe = resolve_recipe("d768", write(tmp_path, TOY))
    assert (recipe.model.hidden_dim, recipe.model.latent_dim, recipe.model.num_heads) == (16, 8, 2)
    assert recipe.batch_size == 4
    assert recipe.scale.endswith("toy.toml")
    with pytest.raises(UsageError, match="has no rung d2048; it has d768"):
        resolve_recipe("d2048", recipe.scale)


@pytest.mark.parametrize("name", SMALL)
def test_a_built_in_scale_can_be_copied_as_a_start(name: str, tmp_path: Path) -> None:
    text = resources.files("repro.ladder").joinpath(f"{name}.toml").read_text()
    copied = resolve_recipe("d1536", write(tmp_path, text))
    assert copied.departures == resolve_recipe("d1536", name).departures


@pytest.mark.parametrize(
    ("found", "put", "words"),
    [
        ("[model]", "[model", "is not TOML"),
        ("head_dim = 8", "head_dims = 8", "field model.head_dims: is no field of a scale; did you mean head_dim"),
        ("head_dim = 8", "head_dim = 6", "rung d768: model configuration: head_dim (6) must be a multiple of 4"),
        ("head_dim = 8", "head_dim = 8.5", "field model.head_dim: must be a positive whole number, not 8.5"),
        ("head_dim = 8", "head_dim = true", "field model.head_dim: must be a positive whole number, not True"),
        ("max_seq_len = 16", "max_seq_len = -16", "field model.max_seq_len: must be a positive"),
        ("tokens_per_active_parameter = 2", "tokens_per_active_parameter = nan", "field tokens_per_active_parameter"),
        ("d768 =", "d769 =", "field rungs.d769: is no field of a scale; did you mean d768"),
        ("d768 = { hidden_dim = 16, num_layers = 2 }", "d768 = 16", "field rungs.d768: must be a table"),
        ("shards_per_rack = 2", "shards_per_rack = 3", "field sequences_per_rack: 4 do not divide over 3 shards"),
        ("shards_per_rack = 2", "shards_per_rack = 4\nsteps = 3", "field steps: is no field"),
        ("num_experts = 12", "num_experts = 13", "13 experts do not divide over 2 shards"),
        ("num_experts = 12", "num_experts = 8", "4 experts a shard are no multiple of 3 waves"),
        ("block_size = 20", "block_size = 19", "field mixture.block_size: phase 0 cannot be laid out in blocks of 19"),
        ("phases = [[1, 1], [2, 3]]", "phases = [[1, 1], [2, 0]]", "field mixture.phases: must be two lists"),
        ("phases = [[1, 1], [2, 3]]", "phases = [[1, 1]]", "field mixture.phases: must be two lists"),
        ("marks = 4", "mark = 4", "field evaluation.mark: is no field"),
        ("sequences_per_rack = 4", 'compute_dtype = "float16"\nsequences_per_rack = 4', "must be bfloat16 or float32"),
    ],
)
def test_a_malformed_file_is_refused_by_field(found: str, put: str, words: str) -> None:
    assert found in TOY
    with pytest.raises(UsageError, match=r"toy\.toml") as caught:
        parse_scale(TOY.replace(found, put), "toy.toml")
    assert words in str(caught.value)


def test_a_mixture_that_does_not_fit_its_block_says_how_much_is_left_over() -> None:
    with pytest.raises(UsageError, match=r"3 are left, 15\.8% of the block, and 2% is the most"):
        parse_scale(TOY.replace("block_size = 20", "block_size = 19"), "toy.toml")


def test_an_unknown_scale_names_those_that_exist_and_that_a_file_will_do() -> None:
    with pytest.raises(UsageError) as caught:
        get_scale("smok")
    message = str(caught.value)
    assert all(name in message for name in SCALES)
    assert "Did you mean smoke?" in message
    assert "TOML file" in message
    with pytest.raises(UsageError, match=r"cannot read scale 'nowhere\.toml'"):
        get_scale("nowhere.toml")
