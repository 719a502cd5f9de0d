"""How tokens reach their experts and come back: dropless, pooled-wave all-to-all, or ragged.

Three transports, one signature. `dropless` computes every assignment. `pooled_wave` is what the run trained with up to
step 81,716: fixed messages between the expert shards of a rack, in waves, dropping what does not fit. `ragged` is what
it trained with after: no limit at the source, a row budget at the destination (marin-community/marin#8435, #8549).

An expert shard is a device along the mesh's expert axis or, without a mesh, a *virtual* one: the same function of one
shard runs under `shard_map` or under `vmap` with the same axis name, where an all-to-all is a transpose. On a mesh of
fewer devices each holds several shards, under both. So a laptop drops what a rack would drop, and so does one machine
of eight GPUs. Who is dropped is decided in `capacity`, once for all.

Letters: T tokens (τ of them on a shard), K experts chosen a token, A = τ·K, E experts, P shards, Λ = E/P, L latent
width, I expert width, W waves, C_s and C_r slots and rows as in `capacity`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Self, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from marin_model import capacity, exchange, sharding
from marin_model.grouped import ExpertBank, count, grouped_swiglu
from marin_model.pooled_wave import pooled_wave_shard

__all__ = ["ExpertBank", "Transport", "Transported", "transport_tokens"]

Kind = Literal["dropless", "pooled_wave", "ragged"]


class Transported(NamedTuple):
    """What came back to the tokens, and what did not arrive."""

    out: Float[Array, "T L"]  # in the dtype of z: weighted sum over the kept assignments, zero at padding
    sender_dropped: Int[Array, ""]  # int32, refused at their source; the ragged budget counts here, as upstream's does
    receiver_dropped: Int[Array, ""]  # int32, refused at their destination
    kept: Bool[Array, "T K"]  # false at padding


@dataclass(frozen=True)
class Transport:
    """Which transport, over how many expert shards, with which capacities. Hashable, so a static argument of jit.

    `groups` are racks, which exchange nothing: on virtual shards the tokens are cut into groups · shards; on a mesh
    they follow from its replica and data axes, or are a multiple of those, several to a row of devices. Fields that a
    kind does not use keep their defaults.
    """

    kind: Kind
    shards: int = 1
    sender_factor: float = 1.15  # issue 8435, job summary: both gates 1.15
    receiver_factor: float = 1.15
    waves: int = 3
    chunks: int = 2
    groups: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"transport: kind {self.kind!r} must be one of {', '.join(get_args(Kind))}.")
        for name in ("shards", "sender_factor", "receiver_factor", "waves", "chunks", "groups"):
            if not getattr(self, name) > 0:
                raise ValueError(f"transport: {name} must be positive, not {getattr(self, name)}.")

    @classmethod
    def dropless(cls) -> Self:
        """Every assignment is computed; shards do not matter."""
        return cls("dropless")

    @classmethod
    def pooled_wave(
        cls, shards: int, *, sender_factor: float, receiver_factor: float, waves: int, groups: int = 1
    ) -> Self:
        """Fixed messages over `shards` expert shards a group."""
        return cls("pooled_wave", shards, sender_factor, receiver_factor, waves, groups=groups)

    @classmethod
    def ragged(cls, shards: int, *, receiver_factor: float, chunks: int = 2, groups: int = 1) -> Self:
        """A row budget a destination shard and chunk of its experts."""
        return cls("ragged", shards, receiver_factor=receiver_factor, chunks=chunks, groups=groups)


def transport_tokens(
    z: Float[Array, "T L"],
    selected: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    bank: ExpertBank,
    *,
    transport: Transport,
    valid: Bool[Array, " T"] | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> Transported:
    """Send tokens to their experts and sum what comes back: out[t] = sum over kept k of weights[t, k] · Expert(z[t]).

    z and bank in the compute dtype, weights in that or float32, not renormalised over survivors; selected is negative
    where there is none, valid false at padding. Rows lie over the axes of the mesh in the order of `sharding.AXES`,
    within a device over (group, shard), as those of virtual shards do.

    A dropped assignment contributes nothing and has a zero gradient. ValueError, before anything is compiled, where
    experts, tokens, waves and shards do not divide.
    """
    _check(transport, tokens=z.shape[0], experts=bank.w_gate.shape[0], dtype=z.dtype, mesh=mesh)
    experts = jnp.where(selected >= 0 if valid is None else (selected >= 0) & valid[:, None], selected, -1)
    if transport.kind == "pooled_wave":
        shard = partial(
            pooled_wave_shard,
            waves=transport.waves,
            sender_factor=transport.sender_factor,
            receiver_factor=transport.receiver_factor,
        )
        out, sender, receiver, kept = _over_shards(shard, (z, experts, weights), bank, transport, mesh)
        return Transported(out, jnp.sum(sender), jnp.sum(receiver), kept)
    kept = experts >= 0
    if transport.kind == "ragged":
        budget = partial(_within_budget, factor=transport.receiver_factor, chunks=transport.chunks)
        kept = _over_shards(budget, (experts,), bank, transport, mesh)
    dropped = jnp.sum((experts >= 0) & ~kept, dtype=jnp.int32)
    experts = jnp.where(kept, experts, -1)
    if mesh is None:
        out = grouped_swiglu(z, experts, weights, bank).astype(z.dtype)
    else:
        out = _over_shards(_gathered, (z, experts, weights), bank, Transport.dropless(), mesh)
    return Transported(out, dropped, jnp.zeros_like(dropped), kept)


def _check(
    transport: Transport, *, tokens: int, experts: int, dtype: jnp.dtype, mesh: jax.sharding.Mesh | None
) -> None:
    shards, groups = transport.shards, transport.groups
    if mesh is not None:
        devices = sharding.axis_size(mesh, sharding.EXPERT)
        rows = sharding.axis_size(mesh, sharding.AXES) // devices
        if transport.kind == "dropless":
            shards = devices
        elif shards % devices:
            raise ValueError(f"transport: {shards} shards on a mesh whose expert axis has {devices} devices.")
        if groups != 1 and groups % rows:
            raise ValueError(f"transport: {groups} groups on a mesh that has {rows} (replica x data).")
        groups = max(groups, rows)
    if experts % shards:
        raise ValueError(f"transport: {experts} experts do not divide over {shards} expert shards.")
    if tokens % (groups * shards):
        raise ValueError(
            f"transport: {tokens} tokens do not divide over {groups * shards} shards ({groups} groups x {shards})."
        )
    local = experts // shards
    if transport.kind == "pooled_wave" and local % transport.waves:
        raise ValueError(f"transport: {local} experts a shard are not a multiple of {transport.waves} waves.")
    if transport.kind == "pooled_wave" and dtype == jnp.bfloat16 and local > 256:
        raise ValueError(f"transport: {local} experts a shard, but bfloat16 header entries are exact only up to 256.")


def _over_shards(
    shard: Callable,
    per_token: tuple[Array, ...],
    bank: ExpertBank,
    transport: Transport,
    mesh: jax.sharding.Mesh | None,
) -> Any:
    """Run a function of one shard, (*per_token, bank) -> arrays with a token axis or scalars, on all shards.

    Scalars come back as one number a shard.
    """
    if mesh is not None:
        axes, cut = _within_device(transport, mesh)

        def on_device(bank: ExpertBank, *per_token: Array) -> Any:
            if cut == (1, 1):
                return jax.tree.map(lambda x: x[None] if x.ndim == 0 else x, shard(*per_token, bank, axes=axes))
            return _over_virtual(partial(shard, axes=axes), per_token, bank, cut, axes[-1])

        specs = (sharding.EXPERTS, *(sharding.TOKENS for _ in per_token))
        return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=sharding.TOKENS, check_vma=False)(
            bank, *per_token
        )
    cut = (transport.groups, transport.shards)
    return _over_virtual(partial(shard, axes=(sharding.EXPERT,)), per_token, bank, cut, sharding.EXPERT)


def _within_device(transport: Transport, mesh: jax.sharding.Mesh) -> tuple[exchange.Axes, tuple[int, int]]:
    """The axes that shards exchange over on a mesh, and how many (groups, shards) a device holds."""
    devices = sharding.axis_size(mesh, sharding.EXPERT)
    rows = sharding.axis_size(mesh, sharding.AXES) // devices
    cut = (1, 1) if transport.kind == "dropless" else (max(1, transport.groups // rows), transport.shards // devices)
    return ((sharding.EXPERT,) if cut == (1, 1) else (sharding.EXPERT, sharding.VIRTUAL)), cut


def _over_virtual(
    shard: Callable, per_token: tuple[Array, ...], bank: ExpertBank, cut: tuple[int, int], axis: str
) -> Any:
    """The function of one shard on (groups, shards) of them, one after another in the rows; `axis` names the shards."""
    tokens = [x.reshape(*cut, -1, *x.shape[1:]) for x in per_token]
    banks = jax.tree.map(lambda w: w.reshape(cut[1], -1, *w.shape[1:]), bank)
    group = jax.vmap(lambda bank, *tokens: shard(*tokens, bank), axis_name=axis)
    results = jax.vmap(group, in_axes=(None, *(0 for _ in tokens)))(banks, *tokens)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), results)


def _within_budget(
    experts: Int[Array, "τ K"], bank: ExpertBank, *, factor: float, chunks: int, axes: exchange.Axes
) -> Bool[Array, "τ K"]:
    """Ragged drop decision of one shard: which of its assignments are kept."""
    local_experts = bank.w_gate.shape[0]
    counts = exchange.from_all(count(experts.reshape(-1), local_experts * exchange.shard_count(axes)), axes)
    chunks = capacity.ragged_chunks(local_experts, chunks)
    budget = capacity.ragged_budget(experts.size, chunks, factor)
    shard = exchange.shard_index(axes)
    return capacity.ragged_kept(experts.reshape(-1), counts, shard, chunks=chunks, budget=budget).reshape(experts.shape)


def _gathered(
    z: Float[Array, "τ L"],
    experts: Int[Array, "τ K"],
    weights: Float[Array, "τ K"],
    bank: ExpertBank,
    *,
    axes: exchange.Axes,
) -> Float[Array, "τ L"]:
    """Every shard of the expert axis sees the tokens of all, adds what its own experts contribute, and the sums are
    scattered back. One all-gather and one reduce-scatter of [P·τ, L]; sums in float32."""
    z, experts, weights = (lax.all_gather(x, sharding.EXPERT, tiled=True) for x in (z, experts, weights))
    own = experts - lax.axis_index(sharding.EXPERT) * bank.w_gate.shape[0]
    own = jnp.where((experts >= 0) & (own >= 0) & (own < bank.w_gate.shape[0]), own, -1)
    out = grouped_swiglu(z, own, weights, bank)
    return lax.psum_scatter(out, sharding.EXPERT, tiled=True).astype(z.dtype)
