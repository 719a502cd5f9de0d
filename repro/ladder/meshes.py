"""Which meshes a recipe can be trained on: replicas x data x expert shards, as text and as numbers. No JAX.

A recipe has racks of expert shards, which decide who is dropped. A device may hold several shards of a rack, and of
several racks, as many as every other device; a mesh must divide both, and then every mesh drops the same assignments.
"""

from __future__ import annotations

from collections.abc import Mapping

from repro.errors import UsageError
from repro.ladder.recipe import Recipe

Sizes = Mapping[str, int]  # replica, data, expert: devices along each axis


def parse_mesh(text: str) -> dict[str, int]:
    """RxE or RxDxE: replicas x data x expert. UsageError for anything else."""
    parts = text.lower().split("x")
    if len(parts) not in (2, 3) or not all(
        part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in parts
    ):
        raise UsageError(
            f"--mesh {text}: must be RxE or RxDxE, replicas x (data x) expert shards, such as 11x64 for the hero."
        )
    sizes = [int(part) for part in parts]
    replica, data, expert = sizes if len(sizes) == 3 else (sizes[0], 1, sizes[1])
    return {"replica": replica, "data": data, "expert": expert}


def check_mesh(recipe: Recipe, mesh: Sizes) -> None:
    """Raise UsageError where racks, shards or sequences of the recipe cannot be dealt evenly to the mesh."""
    shards, rows = recipe.gpus // recipe.racks, mesh["replica"] * mesh["data"]
    if shards % mesh["expert"] == 0 and recipe.racks % rows == 0:
        return
    raise UsageError(
        f"{recipe.rung} at scale {recipe.scale} has {recipe.racks} x {shards} expert shards: a mesh of "
        f"{show_mesh(mesh)} cannot hold as many on each device. Replicas x data must divide {recipe.racks}, expert "
        f"{shards}."
    )


def show_mesh(mesh: Sizes) -> str:
    """As a person reads it."""
    return " x ".join(f"{size} {axis}" for axis, size in mesh.items())
