"""The mixture-of-experts half of a block: routed experts in a narrow latent space, shared experts beside them.

Routed: project down to the latent width, norm, send to the chosen experts, sum what comes back with the combine
weights, project up once. Routing reads the full-width vector. Shared: every token goes through each of them at full
width, and they are added unscaled. A dropped assignment contributes nothing and the other weights stay as they are.

Source: experiments/grug/moe_hero_ep/model.py of marin-community/marin (the latent norm: issue #6822).

Letters: B batch, S sequence, T = B·S tokens, D hidden, L latent, E experts, K chosen a token.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int

from marin_model import layers, router, sharding
from marin_model.config import ModelConfig
from marin_model.grouped import ExpertBank, count
from marin_model.transport import Transport, transport_tokens


class ExpertStats(NamedTuple):
    """What one layer's routing measured."""

    counts: Int[Array, " E"]  # int32, assignments an expert was chosen for, dropped ones included
    qb_beta: Float[Array, " E"]  # float32, the next step's quantiles
    sender_dropped: Int[Array, ""]  # int32, assignments refused at their source
    receiver_dropped: Int[Array, ""]  # int32, assignments refused at their destination


def mixture(
    u: Float[Array, "T D"],
    weights: Mapping[str, Array],
    valid: Bool[Array, " T"],
    *,
    config: ModelConfig,
    transport: Transport,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[Float[Array, "T D"], router.Routed, ExpertStats]:
    """Routed plus shared experts of one layer. `weights`: the layer's arrays by name, in the compute dtype."""
    routed = router.route(u, weights["mlp.router"], weights["mlp.router_bias"], valid, config=config, mesh=mesh)
    z = layers.rms_norm(
        layers.dense(u, weights["mlp.w_latent_down"]), weights["mlp.latent_norm.weight"], epsilon=config.layer_norm_eps
    )
    bank = ExpertBank(*(weights[f"mlp.expert_mlp.{name}"] for name in ("w_gate", "w_up", "w_down")))
    back = transport_tokens(
        z, routed.selected, routed.weights.astype(u.dtype), bank, transport=transport, valid=valid, mesh=mesh
    )
    out = layers.dense(layers.keep(back.out), weights["mlp.w_latent_up"])
    for j in range(config.num_shared_experts):
        out = out + layers.swiglu(u, *(weights[f"shared{j}.{name}"] for name in ("w_gate", "w_up", "w_down")))
    stats = ExpertStats(
        counts=count(routed.selected.reshape(-1), config.num_experts),
        qb_beta=router.qb_betas(routed.margins, valid, config=config, shards=token_shards(transport, mesh)),
        sender_dropped=back.sender_dropped,
        receiver_dropped=back.receiver_dropped,
    )
    return out, routed, stats


def token_shards(transport: Transport, mesh: jax.sharding.Mesh | None) -> int:
    """Devices, real or virtual, that the tokens lie on."""
    here = transport.groups * transport.shards
    return here if mesh is None else max(here, sharding.axis_size(mesh, sharding.AXES))
