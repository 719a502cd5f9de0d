"""The real training step, traced and lowered over a mesh of any size, and what its program does, counted.

No array exists and nothing is compiled: shapes go in, with their shardings. Matrix products and collectives are counted
in the traced program, bodies of scans times their trips; inside `shard_map` shapes are one device's. Loops whose trips
depend on data are the attention's over blocks of keys: one trip is counted, and `attention_trips` says how many a
sequence without document bounds takes. Every count must equal a closed formula (`check_counts`).

Lowering for CUDA covers the plain JAX path: attention in blocks, pooled-wave products as einsums. The kernels that only
a GPU lowers, cuDNN's attention (`attend_fused`) and tokamax's ragged product, are chosen where a GPU is present.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from marin_model import capacity, sharding
from marin_model.attention import BLOCKS
from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.optimizer import MUONH, NEWTON_SCHULZ_COEFFICIENTS, parameter_group
from marin_model.training import Batch, TrainState, init_train_state
from repro.ladder.recipe import Recipe
from repro.ladder.step import make_step, optimizer_config

COLLECTIVES = ("all_to_all", "all_gather", "reduce_scatter", "psum", "psum_invariant", "ppermute")


class Counts(NamedTuple):
    """Matrix-product FLOPs of one step and bytes that one device puts into collectives, as the program says."""

    plain: int  # FLOPs on arrays of the whole mesh, the optimizer's too
    shards: int  # FLOPs inside shard_map, one device's: experts and combine
    attention_trip: int  # FLOPs of all of the attention's loops if each went once
    collectives: dict[tuple[str, tuple[str, ...]], int]  # (primitive, mesh axes) -> bytes


class Lowered(NamedTuple):
    """A step lowered over a mesh."""

    state: TrainState  # shapes with shardings
    counts: Counts
    carried: int  # bytes of the whole mesh that the layers' forward scan saves for the backward one
    size: int  # characters of the lowered program


def lower_step(recipe: Recipe, mesh: AbstractMesh, *, remat: bool, platform: str = "cuda") -> Lowered:
    """Trace and lower the step of a recipe. Raises ValueError where the mesh does not divide model or batch."""
    state, batch = step_arguments(recipe, mesh)
    traced = make_step(recipe, mesh=mesh, remat=remat).trace(state, batch)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    counts = count_program(traced.jaxpr.jaxpr)
    check_counts(recipe, mesh, counts, remat=remat)
    return Lowered(state, counts, _carried(traced.jaxpr.jaxpr, recipe.model.num_layers), len(text))


def step_arguments(recipe: Recipe, mesh: AbstractMesh | Mesh) -> tuple[TrainState, Batch]:
    """State and batch as shapes, each with its sharding."""
    shapes = {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in parameter_shapes(recipe.model).items()}
    state = jax.eval_shape(lambda params: init_train_state(params, optimizer_config(recipe)), shapes)
    placed = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        state,
        sharding.tree_shardings(state, recipe.model, mesh),
    )
    rows, where = (recipe.batch_size, recipe.seq_len), NamedSharding(mesh, sharding.TOKENS)
    of: Any = (jax.ShapeDtypeStruct(rows, dtype, sharding=where) for dtype in (jnp.int32, jnp.float32, jnp.int32))
    return placed, Batch(*of)


# What the program says


def count_program(jaxpr: Any) -> Counts:
    """Count a traced step."""
    flops: Counter[str] = Counter()
    moved: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def walk(jaxpr: Any, times: int, place: str) -> None:
        for equation in jaxpr.eqns:
            name, parameters = equation.primitive.name, equation.params
            if name == "dot_general":
                flops[place] += times * _product_flops(equation)
            elif name in COLLECTIVES:
                axes = parameters.get("axes") or parameters["axis_name"]
                axes = (axes,) if isinstance(axes, str) else tuple(axes)
                moved[name, axes] += times * sum(_bytes(one.aval) for one in equation.invars)
            inner, trips = place, times
            if name == "shard_map":
                inner = "shards"
            elif name == "scan":
                trips = times * parameters["length"]
            elif name == "while":
                inner = "attention_trip"
            for body in _bodies(parameters):
                walk(body, trips, inner)

    walk(jaxpr, 1, "plain")
    return Counts(flops["plain"], flops["shards"], flops["attention_trip"], dict(moved))


def _product_flops(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * prod(equation.outvars[0].aval.shape) * prod(left[axis] for axis in contracted)


def _bodies(parameters: Any) -> Iterator[Any]:
    """Programs inside an equation."""
    for value in parameters.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(one, "jaxpr", one)
            if hasattr(inner, "eqns"):
                yield inner


def _bytes(aval: Any) -> int:
    return prod(aval.shape) * aval.dtype.itemsize


def _carried(jaxpr: Any, layers: int) -> int:
    """Bytes that the first scan over the layers stacks up: what the backward pass will read."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan" and equation.params["length"] == layers:
            return sum(_bytes(one.aval) for one in equation.outvars[equation.params["num_carry"] :])
        for body in _bodies(equation.params):
            if found := _carried(body, layers):
                return found
    return 0


# What it must say


def check_counts(recipe: Recipe, mesh: AbstractMesh | Mesh, counts: Counts, *, remat: bool) -> None:
    """Assert that the program multiplies and sends what the closed formulas say, to the last FLOP and byte."""
    devices = sharding.axis_size(mesh, sharding.AXES)
    expected = {part: sum(flops.values()) for part, flops in closed_flops(recipe, mesh, remat=remat).items()}
    found = {part: getattr(counts, part) for part in expected}
    assert found == expected, f"{recipe.rung}: the lowered step multiplies {found}, the closed formulas say {expected}"
    sent = counts.collectives.get(("all_to_all", (sharding.EXPERT,)), 0)
    formula = transport_bytes(recipe, devices, remat=remat)
    assert sent == formula, f"{recipe.rung}: {sent} bytes go through all-to-alls, the closed formula says {formula}"


def closed_flops(recipe: Recipe, mesh: AbstractMesh | Mesh, *, remat: bool) -> dict[str, dict[str, int]]:
    """FLOPs of a step's matrix products by closed formulas, as `Counts` divides them, then by what they are for.

    A product costs one pass forward and two backward, and one more where the forward pass is made again.
    """
    model, tokens = recipe.model, recipe.tokens_per_step
    passes = 4 if remat else 3
    shapes = parameter_shapes(model)
    matrices = {n: s for n, s in shapes.items() if not n.endswith((".weight", "router_bias")) and "expert_mlp" not in n}
    layers = sum(prod(s) for n, s in matrices.items() if n.startswith("blocks."))
    gates = sum(prod(s) for n, s in matrices.items() if not n.startswith("blocks.") and "gated_norm" in n)
    held = recipe.gpus // sharding.axis_size(mesh, sharding.AXES)  # shards of a device
    assignments = tokens // recipe.gpus * model.num_experts_per_token  # of a shard
    local = model.num_experts // (recipe.gpus // recipe.racks)
    rows = capacity.receiver_capacity(assignments, local, model.num_expert_waves, model.capacity_factor)
    waves = 2 * model.num_layers * model.num_expert_waves * held
    bank = waves * local * rows * 3 * model.latent_dim * model.intermediate_dim
    combine = waves * assignments * model.latent_dim
    block = min(max(model.sliding_window, BLOCKS[0]), BLOCKS[1], model.max_seq_len)
    blocks = -(-model.max_seq_len // block)
    tile = 2 * recipe.batch_size * model.num_heads * block * block * model.head_dim
    return {
        "plain": {
            "layers": passes * 2 * tokens * layers,
            "norm gates at both ends": 3 * 2 * tokens * gates,
            "LM head": 4 * 2 * tokens * model.hidden_dim * model.vocab_size,  # its tiles are made again
            "Newton-Schulz": newton_schulz_flops(model, mesh),
        },
        "shards": {"experts": passes * bank, "combine": (passes - 1) * combine},
        # Two products a tile forward, five backward.
        "attention_trip": {"attention": (2 * (passes - 2) + 5) * tile * blocks * model.num_layers},
    }


def newton_schulz_flops(model: ModelConfig, mesh: AbstractMesh | Mesh, *, of_device: bool = False) -> int:
    """Of one update of all MuonH matrices: each step three products, r x c by its transpose, r x r squared, r x r by
    r x c.

    Stacks are filled up with zeros, so that every device of a rack has as many whole matrices. `of_device`: only of
    those of one device; what is not spread, each has all of.
    """
    total = 0
    for name, shape in parameter_shapes(model).items():
        if parameter_group(name, len(shape)) != MUONH:
            continue
        spec = sharding.whole_matrices(sharding.leaf_spec(name))
        ways = sharding.axis_size(mesh, spec[0]) if spec else 1
        *layers, count, rows, columns = (1, *shape) if len(shape) == 2 else shape
        matrices = prod(layers) * -(-count // ways) * (1 if of_device else ways)
        r, c = sorted((rows, columns))
        total += matrices * len(NEWTON_SCHULZ_COEFFICIENTS) * (4 * r * r * c + 2 * r**3)
    return total


def attention_trips(model: ModelConfig) -> float:
    """Blocks of keys that a block of queries visits, mean over blocks and layers, in sequences without bounds."""
    block = min(max(model.sliding_window, BLOCKS[0]), BLOCKS[1], model.max_seq_len)
    blocks = -(-model.max_seq_len // block)

    def visited(window: int) -> int:
        return sum(i + 1 - max(0, i * block - window + 1) // block for i in range(blocks))

    long = len(model.long_layers)
    both = long * visited(model.max_seq_len) + (model.num_layers - long) * visited(model.sliding_window)
    return both / blocks / model.num_layers


def transport_bytes(recipe: Recipe, devices: int, *, remat: bool, width: int | None = None) -> int:
    """Bytes that one device puts into the all-to-alls of a step, its own block too; `width` of a row: the latent's.

    A message goes from each of its shards to all of a rack, and an answer comes back, in every wave: forward, backward,
    and where the forward pass is made again.
    """
    model, shards = recipe.model, recipe.gpus // recipe.racks
    width = width or model.latent_dim
    assignments = recipe.tokens_per_step // recipe.gpus * model.num_experts_per_token
    slots = capacity.sender_capacity(assignments, shards, model.num_expert_waves, model.sender_capacity_factor)
    rows = slots + -(-slots // width) + slots  # header, activations, and the answers
    passes = 3 if remat else 2
    item = jnp.dtype(recipe.compute_dtype).itemsize
    messages = recipe.gpus // devices * shards
    return passes * model.num_layers * model.num_expert_waves * messages * rows * width * item
