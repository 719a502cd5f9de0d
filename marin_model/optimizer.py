"""The optimizer of the run, as optax transformations: MuonH for matrices, AdamH for the LM head, Adam for the rest.

MuonH orthogonalises a Nesterov momentum (Newton–Schulz) and, like AdamH, moves its weights along a sphere: a step of
relative length `lr` towards the direction, then back to the norm the weights had. So a matrix keeps the norm it was
initialised with for the whole run, and neither gradient scale nor weight decay matters to it. No gradient clipping.

In: a pytree of float32 weights and one of gradients, leaves named by their path (`marin_model.flops.parameter_shapes`
lists the names; `blocks.*` carry a leading layer axis). Out: additive float32 updates, and state of the same shapes.

Source: experiments/grug/moe_hero_ep/optimizer.py and grugmuon_hero.py of marin-community/marin, hyperparameters from
the W&B configuration of hero-12d8b6f0-dee637.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from marin_model import sharding
from marin_model.schedule import FINAL_RATIO, WARMUP_FRACTION, ScheduleFn, annealed_weight_decay, float32_learning_rate

ADAM, ADAMH, MUONH = GROUPS = ("adam", "adamh", "muonh")

# One (a, b, c) a Newton–Schulz step: X <- aX + (bA + cA²)X with A = XXᵀ (levanter's "quintic" coefficients).
NEWTON_SCHULZ_COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
NEWTON_SCHULZ_EPSILON = 1e-8  # `muon_epsilon`
NORM_FLOOR = 1e-10  # of the two divisions on the sphere

Sphere = Literal["layer", "each expert"]
AnyMesh = Mesh | AbstractMesh


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Every number the update depends on. Peaks and `steps` set the schedule; see `marin_model.schedule`."""

    learning_rate: float  # peak of MuonH and AdamH
    adam_lr: float  # peak of Adam
    steps: int  # updates in the whole run: the schedule's length
    beta2: float
    epsilon: float  # of Adam and AdamH: about 1e-15, it only guards 0/0
    beta1: float = 0.9  # W&B config of the run; the stored heuristic's 0.9062 never trained
    momentum: float = 0.95
    warmup: float = WARMUP_FRACTION
    final_ratio: float = FINAL_RATIO
    gate_router_weight_decay: float = 0.0  # 0.02 from step 58,014 on (marin-community/marin#8833)
    newton_schulz_dtype: Literal["bfloat16", "float32"] = "bfloat16"  # bfloat16 as upstream
    sphere: Sphere = "layer"  # "each expert" is a side branch's variant (commit 186618b3), not what the run used

    def schedule(self, group: str) -> ScheduleFn:
        """Learning rate of a parameter group as a function of completed updates."""
        peak = self.adam_lr if group == ADAM else self.learning_rate
        return float32_learning_rate(peak=peak, steps=self.steps, warmup=self.warmup, final_ratio=self.final_ratio)


def parameter_group(name: str, rank: int) -> str:
    """The group of a leaf by its dotted path and rank: the first rule that matches decides, as upstream orders them.

    Norm gains and convolution taps are matrices once layers are stacked, hence the test of the name before the rank.
    """
    path = name.lower()
    if "token_embed" in path or ".router" in path or "router_bias" in path or path.endswith(".attn_gate"):
        return ADAM
    if "output_proj" in path or "lm_head" in path:
        return ADAMH
    if "gated_norm" in path:
        return MUONH
    if path.endswith(".weight"):
        return ADAM
    return MUONH if rank in (2, 3, 4) else ADAM


def leaf_name(path: tuple[Any, ...]) -> str:
    """Dotted name of a leaf from its pytree path; a flat dict's keys are their own names."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def parameter_groups(params: Any) -> Any:
    """The same tree with the group's name at every leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: parameter_group(leaf_name(path), leaf.ndim), params)


def make_optimizer(config: OptimizerConfig, mesh: AnyMesh | None = None) -> optax.GradientTransformationExtraArgs:
    """The three optimizers over one tree, each leaf in the group that `parameter_group` names."""

    def decays(params: Any) -> Any:
        def is_gate_or_router(path: tuple[Any, ...], _: Any) -> bool:
            return leaf_name(path).endswith((".attn_gate", ".router"))

        return jax.tree_util.tree_map_with_path(is_gate_or_router, params)

    def moments() -> optax.GradientTransformation:
        return optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)

    adam = [moments()]
    if config.gate_router_weight_decay:
        decay = annealed_weight_decay(initial=config.gate_router_weight_decay, steps=config.steps)
        adam.append(optax.add_decayed_weights(decay, mask=decays))
    on_sphere = step_on_sphere(config.schedule(MUONH), sphere=config.sphere)
    momentum = orthogonal_momentum(config.momentum, dtype=jnp.dtype(config.newton_schulz_dtype), mesh=mesh)
    return optax.partition(
        {
            ADAM: optax.chain(*adam, optax.scale_by_learning_rate(config.schedule(ADAM))),
            ADAMH: optax.chain(moments(), on_sphere),
            MUONH: optax.chain(momentum, on_sphere),
        },
        parameter_groups,
    )


class MomentumState(NamedTuple):
    """Momentum buffers of the MuonH leaves, float32, zeros at the start."""

    momentum: Any


def orthogonal_momentum(decay: float, *, dtype: jnp.dtype, mesh: AnyMesh | None = None) -> optax.GradientTransformation:
    """Gradients -> orthogonalised Nesterov momentum, matrix by matrix over the last two axes.

    The buffer is B <- decay·B + g, without a (1 − decay), and the direction decay·B + g uses the new B. Muon's factor
    sqrt(max(1, cols/rows)) is left out: it is constant within a leaf and the sphere divides it away.
    """

    def init(params: Any) -> MomentumState:
        return MomentumState(jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: MomentumState, params: Any = None) -> tuple[Any, MomentumState]:
        del params
        momentum = jax.tree.map(lambda b, g: decay * b + g, state.momentum, grads)
        ahead = jax.tree.map(lambda b, g: decay * b + g, momentum, grads)
        leaves, structure = jax.tree_util.tree_flatten_with_path(ahead)
        where = [NamedSharding(mesh, sharding.leaf_spec(leaf_name(path))) for path, _ in leaves] if mesh else None
        directions = orthogonalize([leaf for _, leaf in leaves], dtype=dtype, where=where)
        return jax.tree.unflatten(structure, directions), MomentumState(momentum)

    return optax.GradientTransformation(init, update)


def orthogonalize(
    leaves: Sequence[jax.Array], *, dtype: jnp.dtype, where: Sequence[NamedSharding] | None = None
) -> list[jax.Array]:
    """Newton–Schulz of every matrix [..., in, out] in `leaves`; dtypes are kept. `where`: how each lies on a mesh.

    Tall matrices go in transposed. Expert stacks are walked one layer at a time, which bounds the temporaries to a
    layer's experts and keeps them in cache; other stacks of equal shapes are solved in one batch. On a mesh a stack
    whose matrices are cut is dealt out by whole ones first: of its parts every device would have to sum up each
    product with all others. So upstream places them too.
    """
    alike: dict[Any, list[int]] = {}
    wide = []
    for i, leaf in enumerate(leaves):
        x = leaf[None] if leaf.ndim == 2 else leaf
        wide.append(_transpose(x) if _is_tall(leaf) else x)
        alike.setdefault(i if where or leaf.ndim == 4 else wide[i].shape[1:], []).append(i)
    out = list(leaves)
    for members in alike.values():
        solve = partial(newton_schulz, dtype=dtype)
        if where and (spec := sharding.whole_matrices(where[members[0]].spec)):
            solve = partial(_dealt, solve, NamedSharding(where[0].mesh, spec))
        joined = jnp.concatenate([wide[i] for i in members])
        done = jax.lax.map(solve, joined) if joined.ndim == 4 else solve(joined)
        first = 0
        for i in members:
            y = done[first : first + wide[i].shape[0]]
            first += wide[i].shape[0]
            y = (_transpose(y) if _is_tall(leaves[i]) else y).reshape(leaves[i].shape)
            out[i] = jax.lax.with_sharding_constraint(y, where[i]) if where else y
    return out


def _dealt(solve: Callable[[jax.Array], jax.Array], where: NamedSharding, matrices: jax.Array) -> jax.Array:
    """What `solve` makes of matrices [n, r, c] once they lie so; zeros, which it must keep, fill n up."""
    missing = -len(matrices) % sharding.axis_size(where.mesh, where.spec[0])
    dealt = jax.lax.with_sharding_constraint(jnp.pad(matrices, ((0, missing), (0, 0), (0, 0))), where)
    return jax.lax.with_sharding_constraint(solve(dealt), where)[: len(matrices)]


def newton_schulz(x: jax.Array, *, dtype: jnp.dtype) -> jax.Array:
    """Five quintic steps towards the nearest (semi-)orthogonal matrix, on wide matrices [..., r, c] with r <= c.

    Everything, the Frobenius norm included, is computed in `dtype` as upstream does; the result has x's dtype.
    Singular values above 0.01 of the norm land in [0.978, 1.032].
    """
    y = x.astype(dtype)
    y = y / (jnp.sqrt(jnp.sum(y * y, axis=(-2, -1), keepdims=True)) + NEWTON_SCHULZ_EPSILON)

    def step(y: jax.Array, abc: jax.Array) -> tuple[jax.Array, None]:
        a, b, c = abc
        gram = jnp.einsum("...ij,...kj->...ik", y, y)  # [..., r, r]
        return a * y + (b * gram + c * (gram @ gram)) @ y, None

    y, _ = jax.lax.scan(step, y, jnp.asarray(NEWTON_SCHULZ_COEFFICIENTS, dtype))
    return y.astype(x.dtype)


class SphereState(NamedTuple):
    """Completed updates, the schedule's argument."""

    completed: jax.Array  # [] int32


def step_on_sphere(learning_rate: ScheduleFn, *, sphere: Sphere = "layer") -> optax.GradientTransformation:
    """Directions -> updates that turn each weight by `learning_rate` and leave its norm as it was.

    One sphere a matrix; for expert stacks [layers, E, in, out] one sphere a layer over all its experts, whose single
    norms may drift, or with `sphere="each expert"` one an expert.
    """

    def init(params: Any) -> SphereState:
        del params
        return SphereState(jnp.zeros([], jnp.int32))

    def update(directions: Any, state: SphereState, params: Any = None) -> tuple[Any, SphereState]:
        rate = learning_rate(state.completed)
        updates = jax.tree.map(lambda p, d: _turn(p, d, rate, sphere_axes(p.ndim, sphere)) - p, params, directions)
        return updates, SphereState(optax.safe_increment(state.completed))

    return optax.GradientTransformation(init, update)


def sphere_axes(rank: int, sphere: Sphere = "layer") -> tuple[int, ...]:
    """Axes that share one norm in a leaf of this rank."""
    if rank == 2:
        return (0, 1)
    return (rank - 2, rank - 1) if sphere == "each expert" else tuple(range(1, rank))


def sphere_norms(params: Mapping[str, jax.Array], *, sphere: Sphere = "layer") -> dict[str, jax.Array]:
    """Norms that MuonH and AdamH hold fixed: one a matrix, or one a layer in stacked leaves."""
    held = {name: p for name, p in params.items() if parameter_group(name, p.ndim) != ADAM}
    return {name: _norm(p, sphere_axes(p.ndim, sphere)).squeeze() for name, p in held.items()}


def _turn(p: jax.Array, direction: jax.Array, rate: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    radius = _norm(p, axes)
    q = p - rate * direction * radius / jnp.maximum(_norm(direction, axes), NORM_FLOOR)
    return q / jnp.maximum(_norm(q, axes), NORM_FLOOR) * radius


def _norm(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))


def _is_tall(x: jax.Array) -> bool:
    return x.shape[-2] > x.shape[-1]


def _transpose(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)
