"""The model at step zero, drawn from a key.

Every random matrix has one standard deviation, `initializer_std`, whatever its fan-in, and is a normal cut at three of
them (not rescaled for the cut). Gains start at one, head gates and router biases at zero, convolutions as the identity.

Values are a contract: the key tree below is the original's, so that equal keys give equal bits. A training run splits
its seed's key and gives the model the second half: `_, key = jax.random.split(jax.random.PRNGKey(seed))`. Threefry is
partitionable, so values depend neither on how an array lies on devices nor on its shape, only on its size.

Source: `Transformer.init` in experiments/grug/moe_hero_ep/model.py of marin-community/marin.
"""

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.model import BLOCKS

CUT = 3.0  # standard deviations

Keys = dict[str, Array]  # flat name -> keys [n]: one, or one a layer for names that begin with `blocks.`


def init_arrays(config: ModelConfig, key: Array) -> dict[str, Float[Array, "..."]]:
    """All float32 arrays by flat name. `key`: the model's, old style or new. To be traced or not."""
    keys = _keys(config, key)
    arrays = {}
    for name, shape in parameter_shapes(config).items():
        if name not in keys:
            arrays[name] = _constant(name, shape)
            continue
        drawn = _draw(keys[name], config.initializer_std, size=prod(shape) // keys[name].shape[0])
        arrays[name] = drawn.reshape(shape)
    return arrays


def _keys(config: ModelConfig, key: Array) -> Keys:
    """The key of every random array, all layers' keys of a name together."""
    first = _split(key[None], config.num_layers + 4)
    embed, out, embed_gate, final_gate = first[:4]
    of_layers = jnp.concatenate(first[4:])
    attn, moe, shared, attn_gate, mlp_gate = _split(of_layers, 5)
    router, experts, latent_down, latent_up = _split(moe, 4)
    keys = dict(zip(("attn.w_q", "attn.w_k", "attn.w_v", "attn.w_o"), _split(attn, 4), strict=True))
    keys |= {"mlp.router": router, "mlp.w_latent_down": latent_down, "mlp.w_latent_up": latent_up}
    keys |= _mlp("mlp.expert_mlp", experts) | _gate("attn_gated_norm", attn_gate) | _gate("mlp_gated_norm", mlp_gate)
    count = config.num_shared_experts
    for j, one in enumerate(_split(shared, count) if count > 1 else [shared]):  # a single one takes the key as it is
        keys |= _mlp(f"shared{j}", one)
    top = {"token_embed": embed, "output_proj": out}
    top |= _gate("embed_gated_norm", embed_gate) | _gate("final_gated_norm", final_gate)
    return top | {BLOCKS + name: k for name, k in keys.items()}


def _mlp(name: str, keys: Array) -> Keys:
    return dict(zip((f"{name}.w_gate", f"{name}.w_up", f"{name}.w_down"), _split(keys, 3), strict=True))


def _gate(name: str, keys: Array) -> Keys:
    return dict(zip((f"{name}.w_down", f"{name}.w_up"), _split(keys, 2), strict=True))


@partial(jax.jit, static_argnums=1)
def _split(keys: Array, parts: int) -> list[Array]:
    """Split each of keys [n] into parts: that many arrays of keys [n]."""
    split = jax.vmap(partial(jax.random.split, num=parts))(keys)
    return [split[:, i] for i in range(parts)]


@partial(jax.jit, static_argnames="size")  # arrays of one size share a compilation
def _draw(keys: Array, std: float, *, size: int) -> Float[Array, "n size"]:
    return std * jax.lax.map(lambda key: jax.random.truncated_normal(key, -CUT, CUT, (size,), jnp.float32), keys)


def _constant(name: str, shape: tuple[int, ...]) -> Float[Array, "..."]:
    if "sconv" in name:
        return jnp.zeros(shape).at[..., 0, :].set(1.0)  # lag 0 alone: the identity
    return jnp.ones(shape) if name.endswith(".weight") else jnp.zeros(shape)
