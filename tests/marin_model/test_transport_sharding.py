"""The table of partition specs covers the model, and only that file spells an axis."""

from __future__ import annotations

import ast
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import marin_model
from marin_model import sharding
from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes

PACKAGE = Path(marin_model.__file__).parent


def config(**changed: int) -> ModelConfig:
    shape = dict(vocab_size=64, hidden_dim=32, latent_dim=16, intermediate_dim=8, shared_expert_intermediate_dim=16)
    heads = dict(num_heads=4, num_kv_heads=2, local_kv_heads=2, global_kv_heads=1, head_dim=8)
    moe = dict(num_shared_experts=2, num_experts=16, num_experts_per_token=4, num_layers=3)
    span = dict(max_seq_len=32, sliding_window=16, global_every=2, gated_norm_rank=8)
    return ModelConfig(**(shape | heads | moe | span | changed), initializer_std=0.1)


def test_every_stored_array_has_a_spec_and_every_spec_an_array() -> None:
    names = parameter_shapes(config())
    for name, shape in names.items():
        assert len(sharding.leaf_spec(name)) <= len(shape), name
    bare = {
        name.removeprefix("blocks.").replace("shared0.", "shared.").replace("shared1.", "shared.") for name in names
    }
    assert bare == set(sharding.LEAF_SPECS)


def test_layers_are_never_cut() -> None:
    for name in parameter_shapes(config()):
        if name.startswith("blocks."):
            assert sharding.leaf_spec(name)[0] is None, name


def test_a_rack_holds_one_copy_and_every_replica_another() -> None:
    mesh = sharding.make_mesh(replica=2, data=2, expert=2)
    shardings = sharding.parameter_shardings(config(), mesh)
    bank = shardings["blocks.mlp.expert_mlp.w_gate"]
    assert bank.spec == PartitionSpec(None, sharding.EXPERT, sharding.DATA, None)
    array = jax.device_put(np.zeros((3, 16, 16, 8), np.float32), bank)
    assert {shard.data.shape for shard in array.addressable_shards} == {(3, 8, 8, 8)}
    assert len({str(shard.index) for shard in array.addressable_shards}) == 4  # of 8 devices: two copies


def test_an_array_that_cannot_be_cut_is_named_with_its_numbers() -> None:
    mesh = sharding.make_mesh(expert=8)
    with pytest.raises(ValueError, match=r"w_gate \[3, 12, 16, 8\] cannot be cut 8 ways .* 12 % 8"):
        sharding.parameter_shardings(config(num_experts=12), mesh)


def test_a_mesh_larger_than_the_machine_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"expert 64 needs 64 devices, 8 exist.*device_count=64"):
        sharding.make_mesh(expert=64)


# What takes the name of a mesh axis. Elsewhere the words may mean something else: a part of an array's name, an option.
TAKES_AXES = {"PartitionSpec", "P", "axis_index", "axis_size", "make_mesh", "Mesh", "shard_map", "vmap"}
TAKES_AXES |= {"psum", "pmean", "pmax", "pmin", "psum_scatter", "all_gather", "all_to_all", "ppermute"}


def axis_names_in(source: str) -> set[str]:
    """Axes spelled as strings in the arguments of such calls, or in a subscript `.shape[...]`."""
    spelled = set()
    for node in ast.walk(ast.parse(source)):
        called = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) in TAKES_AXES
        indexed = isinstance(node, ast.Subscript) and getattr(node.value, "attr", None) == "shape"
        if called or indexed:
            spelled |= {word.value for word in ast.walk(node) if isinstance(word, ast.Constant)}
    return spelled & set(sharding.AXES)


def test_no_axis_of_the_mesh_is_spelled_elsewhere() -> None:
    for path in PACKAGE.glob("*.py"):
        if path.name != "sharding.py":
            assert not axis_names_in(path.read_text()), path.name


@pytest.mark.parametrize(
    "spelled",
    ['lax.psum(x, "expert")', 'mesh.shape["expert"]', 'P(None, ("data", "expert"))', 'vmap(f, axis_name="expert")'],
)
def test_an_axis_spelled_elsewhere_would_be_found(spelled: str) -> None:
    assert "expert" in axis_names_in(spelled)
