"""The Marin mixture-of-experts model as pure mathematics: Flax modules, transport, loss and optimizer.

What is unusual about this model, and where it lives:

- every norm is followed by a gate that reads the normed vector (`layers.gated_norm`), the embedding's too;
- short causal convolutions on keys and on both branches of a block (`layers.short_conv`);
- three of four layers see a sliding window and rotate half of each head; the fourth sees all and knows no positions,
  with fewer KV heads (`attention`);
- attention gives up each position's own value, and gates every head (`attention.exclude_self`);
- experts work in a latent of half the width (`experts`), chosen by biased scores, weighed by unbiased ones (`router`);
- the bias is no parameter: quantiles of one step's scores are the next step's bias (`router.qb_betas`);
- tokens that do not fit their expert's buffers are dropped, in an order that is part of the model (`transport`);
- matrices move on spheres (`optimizer`).

The public face, loaded when first used, so that the configuration alone costs no JAX:

    model = marin_model.init(config, key)            # or from_named_arrays(config, arrays), read_exported(config, path)
    seen = marin_model.forward(model, tokens, segment_ids)          # .hidden, .routing[layer].selected, …
    marin_model.logits(model, seen.hidden)
    marin_model.next_token_loss(model, tokens, loss_weight, segment_ids)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marin_model.config import ModelConfig

if TYPE_CHECKING:
    from marin_model.arrays import Model, from_named_arrays, init, to_named_arrays
    from marin_model.exported import read_exported
    from marin_model.face import Forward, Routing, forward, logits, next_token_loss

__all__ = [
    "Forward", "Model", "ModelConfig", "Routing", "forward", "from_named_arrays", "init", "logits", "next_token_loss",
    "read_exported", "to_named_arrays",
]  # fmt: skip

_HOME = {
    **dict.fromkeys(("Model", "from_named_arrays", "init", "to_named_arrays"), "arrays"),
    **dict.fromkeys(("Forward", "Routing", "forward", "logits", "next_token_loss"), "face"),
    "read_exported": "exported",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
