"""Collectives between expert shards, of which a device may hold several.

A function of one shard runs under the mesh's expert axis, under a `vmap` of the same name where there is no mesh, or
under both an axis of devices and one of virtual shards within a device. `axes` names what it runs under, outermost
first; shards are numbered device by device.
"""

from math import prod

from jax import lax
from jaxtyping import Array, Int

Axes = tuple[str, ...]


def shard_count(axes: Axes) -> int:
    """Shards in all."""
    return prod(lax.axis_size(axis) for axis in axes)


def shard_index(axes: Axes) -> Int[Array, ""]:
    """This shard's number."""
    index = lax.axis_index(axes[0])
    for axis in axes[1:]:
        index = index * lax.axis_size(axis) + lax.axis_index(axis)
    return index


def to_shards(blocks: Array, axes: Axes) -> Array:
    """Block p of the leading axis [P, ...] goes to shard p; what comes back is ordered by its source."""
    sizes = [lax.axis_size(axis) for axis in axes]
    by_axis = blocks.reshape(*sizes, *blocks.shape[1:])
    for place, axis in enumerate(axes):
        by_axis = lax.all_to_all(by_axis, axis, split_axis=place, concat_axis=place, tiled=True)
    return by_axis.reshape(blocks.shape)


def from_all(x: Array, axes: Axes) -> Array:
    """Every shard's x, in their order: [P, ...]."""
    gathered = x
    for axis in reversed(axes):
        gathered = lax.all_gather(gathered, axis)
    return gathered.reshape(-1, *x.shape)
