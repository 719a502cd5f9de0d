"""The hero on paper: the real step lowers for CUDA, its program does what closed formulas say, and figures agree."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from marin_model import sharding
from repro.errors import UsageError
from repro.ladder import compiled_step, hardware, lowering, meshes, paper
from repro.ladder.recipe import Recipe, resolve_recipe
from repro.ladder.step import make_step
from repro.record.facts import load_record

TOY = str(Path(__file__).with_name("toy.toml"))


def toy() -> Recipe:
    return resolve_recipe("d768", TOY)


@pytest.fixture(scope="module")
def hero() -> paper.Paper:
    return paper.put_on_paper(resolve_recipe("d6144"), meshes.parse_mesh("11x64"), remat=True)


@pytest.mark.parametrize(("expert", "remat"), [pytest.param(2, False, marks=pytest.mark.slow), (2, True), (1, True)])
def test_the_program_multiplies_and_sends_what_closed_formulas_say(expert: int, remat: bool) -> None:
    """`lower_step` asserts it; here that it lowers at all, for CUDA, and that the assertion can fail."""
    mesh = sharding.make_abstract_mesh(expert=expert)
    lowered = lowering.lower_step(toy(), mesh, remat=remat)
    assert lowered.size > 100_000
    with pytest.raises(AssertionError, match="the closed formulas say"):
        lowering.check_counts(toy(), mesh, lowered.counts, remat=not remat)
    more = {**lowered.counts.collectives, ("all_to_all", ("expert",)): 1}
    with pytest.raises(AssertionError, match="1 bytes go through all-to-alls"):
        lowering.check_counts(toy(), mesh, lowered.counts._replace(collectives=more), remat=remat)


def test_a_step_on_one_device_lowers_for_cuda() -> None:
    recipe = toy()
    state, batch = lowering.step_arguments(recipe, sharding.make_abstract_mesh())
    bare = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, batch))
    half = replace(recipe, compute_dtype="bfloat16")
    text = make_step(half, mesh=None, remat=False).trace(*bare).lower(lowering_platforms=("cuda",)).as_text()
    # Every buffer of the state is given to the new one; only the old router bias is not read at all.
    assert text.count("tf.aliasing_output") == len(jax.tree.leaves(state)) - 1
    assert "stablehlo.dot_general" in text
    assert "bf16" in text


def test_the_heros_memory_is_that_of_its_arrays(hero: paper.Paper) -> None:
    recipe, memory = hero.recipe, hero.memory
    model, devices = recipe.model, 704
    embedding = 4 * model.vocab_size * model.hidden_dim
    # Whole on every device: embedding, norm gates, router, head gates; the rest lies over the 64 devices of a rack.
    gates = (2 * model.num_layers + 2) * 2 * model.hidden_dim * model.gated_norm_rank
    routing = model.num_layers * model.hidden_dim * (model.num_experts + model.num_heads)
    whole = embedding + 4 * (gates + routing)
    assert memory.parameters == pytest.approx((4 * recipe.total_parameters - whole) / 64 + whole, rel=1e-3)
    # MuonH keeps one moment, Adam two, of the embedding whole on each device, of the LM head in 64 parts.
    assert memory.optimizer_state - memory.parameters == pytest.approx(embedding * (1 + 1 / 64) + 4 * routing, rel=1e-3)
    carry = model.num_layers * recipe.tokens_per_step // devices * model.hidden_dim * 2
    assert memory.activations == pytest.approx(carry, rel=1e-6)
    assert memory.total == 174_254_724_326
    assert hero.memory_json()["per_host"]["total"] == 4 * memory.total


def test_saved_state_is_as_large_as_the_published_checkpoint(hero: paper.Paper) -> None:
    """5.36T bytes at step 58,014 (issue 8506, entry 20): bfloat16 weights, float32 masters, optimizer state."""
    model = hero.recipe.model
    second_moments = 2 * 4 * model.vocab_size * model.hidden_dim  # embedding and LM head
    whole = (2 + 4 + 4) * hero.recipe.total_parameters + second_moments
    assert f"{whole / 1e12:.2f}T" == "5.36T"


def test_the_latent_width_halves_what_dispatch_and_combine_send(hero: paper.Paper) -> None:
    sent = hero.communication
    # 3 passes, 48 layers, 3 waves: 3,141 slots of 3,072 numbers and 2 header rows to each of 63 others, and back.
    assert sent.dispatch_combine == 3 * 48 * 3 * 63 * (3141 + 2 + 3141) * 3072 * 2
    assert hero.communication_json()["latent_share"] == pytest.approx(0.5, abs=2e-4)


def test_published_throughput_and_flops_give_the_published_mfu(hero: paper.Paper) -> None:
    recipe, gb200 = hero.recipe, hardware.DEVICES["GB200"]
    timed = [row for row in load_record().hero_train if row.step_seconds and row.mfu_percent]
    assert len(timed) == 16
    for row in timed:
        assert 100 * hardware.mfu(recipe, gb200, 704, row.step_seconds or 0) == pytest.approx(row.mfu_percent, rel=1e-6)
        assert hero.roofline(gb200).in_turn < (row.step_seconds or 0)


def test_bounds_grow_with_slower_hardware_and_links_end_at_their_domain(hero: paper.Paper) -> None:
    bounds = {name: hero.roofline(device) for name, device in hardware.DEVICES.items()}
    assert bounds["H100"].compute > bounds["B200"].compute > bounds["GB200"].compute
    assert bounds["H100"].memory > bounds["H200"].memory
    assert bounds["B200"].network > 10 * bounds["GB200"].network  # 56 of 63 peers are outside of an HGX box
    times = hero.time_json(list(hardware.DEVICES.values()))
    assert [bound["fits"] for bound in times["bounds"].values()] == [False, False, True, True]
    assert 1.4 < times["executed_over_launcher"] < 1.6
    gb200 = times["bounds"]["GB200"]
    assert gb200["mfu_at_most"] < 1
    assert gb200["overlapped_seconds"] <= gb200["in_turn_seconds"]


@pytest.mark.slow
def test_arguments_of_the_compiled_step_are_those_on_paper() -> None:
    recipe, mesh = toy(), meshes.parse_mesh("1x2")
    made = paper.put_on_paper(recipe, mesh, remat=False)
    found = compiled_step.finish(compiled_step.start(recipe, mesh, remat=False))
    batch, step = 3 * 4 * recipe.tokens_per_step // 2, 4
    # The pending quantiles come in, and the stored router bias, as large, does not: each step makes it of them.
    assert found.memory["arguments"] == made.memory.parameters + made.memory.optimizer_state + step + batch
    assert found.memory["temporaries"] > 0
    assert found.sent.items() >= made.communication.elements(recipe.compute_dtype).items()


@pytest.mark.parametrize("text", ["", "11", "11x64x2x1", "0x64", "-1x4", "axb", "1x٣", "1.5x2"])
def test_what_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--mesh {text}: must be RxE")):
        meshes.parse_mesh(text)


def test_a_mesh_that_does_not_divide_the_model_says_so() -> None:
    words = r"d768 at scale .* has 1 x 2 expert shards: a mesh of 1 replica x 1 data x 4 expert cannot hold"
    with pytest.raises(UsageError, match=words):
        paper.put_on_paper(toy(), meshes.parse_mesh("1x4"), remat=False)


def test_an_estimate_is_flops_over_peak_and_share() -> None:
    recipe, h200 = resolve_recipe("d768"), hardware.get_device("h200")
    made = hardware.estimate(recipe, h200, 8, share=0.25, price=2.0)
    assert made.hours == pytest.approx(5.48053e19 / (8 * 989.4e12 * 0.25) / 3600, rel=1e-5)
    assert made.hours_at_peak == pytest.approx(made.hours / 4)
    assert made.cost == pytest.approx(16 * made.hours)
    assert made.tokens_per_second * made.step_seconds == pytest.approx(recipe.tokens_per_step)
    assert hardware.estimate(recipe, h200, 8).mfu_source == "published for d2048 on GB200"


@pytest.mark.parametrize("wrong", [{"count": 0}, {"share": 0.0}, {"share": 1.5}])
def test_numbers_that_cannot_be_meant_are_refused(wrong: dict[str, float]) -> None:
    given = {"count": 8, "share": None, **wrong}
    with pytest.raises(UsageError):
        hardware.estimate(
            resolve_recipe("d768"), hardware.get_device("H100"), int(given["count"] or 0), share=given["share"]
        )


def test_an_unknown_device_lists_all() -> None:
    with pytest.raises(UsageError, match="H100, H200, B200, GB200"):
        hardware.get_device("A100")
