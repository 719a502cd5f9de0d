"""A model as an object: the configuration and the named arrays, in an `nnx.Module` whose paths are the flat names.

`blocks.mlp.expert_mlp.w_gate` is `model.blocks.mlp.expert_mlp.w_gate`, an `nnx.Param` of all layers, so that nnx's
tools (split, state, grad, jit, optimizers) work on it. The mathematics takes the flat dict: `to_named_arrays`.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.initial import init_arrays


class Part(nnx.Module):
    """A named group of arrays and parts."""


class Model(Part):
    """All arrays of a model as `nnx.Param`s, float32, and the configuration they fit."""

    def __init__(self, config: ModelConfig, arrays: Mapping[str, Any]) -> None:
        self.config = config
        for name in parameter_shapes(config):
            *parts, leaf = name.split(".")
            at: Any = self
            for part in parts:
                if not hasattr(at, part):
                    setattr(at, part, Part())
                at = getattr(at, part)
            setattr(at, leaf, nnx.Param(arrays[name]))


def init(config: ModelConfig, key: Array) -> Model:
    """A fresh model. Equal keys give equal bits, and the original's (`marin_model.initial`)."""
    return Model(config, init_arrays(config, key))


def from_named_arrays(config: ModelConfig, arrays: Mapping[str, Any]) -> Model:
    """A model of given arrays by flat name, kept as float32 masters.

    ValueError that names what is missing, unknown or of another shape.
    """
    shapes = parameter_shapes(config)
    problems = [f"{name} is missing" for name in shapes if name not in arrays]
    problems += [f"{name} is not an array of this model" for name in arrays if name not in shapes]
    problems += [
        f"{name} has shape {list(np.shape(arrays[name]))}, expected {list(shape)}"
        for name, shape in shapes.items()
        if name in arrays and np.shape(arrays[name]) != shape
    ]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"named arrays: {'; '.join(problems[:3])}{more}.")
    return Model(config, {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()})


def to_named_arrays(model: Model) -> dict[str, Array]:
    """The model's arrays by flat name, in the order of `parameter_shapes`."""
    found = {
        ".".join(map(str, path)): param.get_value() for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }
    return {name: found[name] for name in parameter_shapes(model.config)}
