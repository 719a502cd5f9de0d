"""The public face: light to import, honest nnx, and plain about bad input."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import marin_model
from marin_model.sharding import make_mesh
from tests.marin_model.tiny import ABOUT, CONFIG, golden, params


@pytest.fixture(scope="module")
def model() -> marin_model.Model:
    return marin_model.from_named_arrays(CONFIG, params())


@pytest.mark.parametrize(
    ("statement", "loads_jax"),
    [("import marin_model; marin_model.ModelConfig", False), ("import marin_model.model", True)],
)
def test_the_face_alone_loads_no_jax(statement: str, loads_jax: bool) -> None:
    script = f"{statement}; import sys; print('jax' in sys.modules or 'flax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(loads_jax)


def test_every_public_name_is_there_and_no_other() -> None:
    for name in marin_model.__all__:
        assert getattr(marin_model, name).__name__ == name
    assert dir(marin_model) == sorted(marin_model.__all__)
    with pytest.raises(AttributeError, match="no attribute 'forwards'"):
        _ = marin_model.forwards


def test_forward_loss_and_their_parts(model: marin_model.Model) -> None:
    """The compiled scan gives what the golden says; routing is read whole or layer by layer."""
    arrays, batch = golden("01_forward_A")
    seen = marin_model.forward(model, batch.tokens, batch.segment_ids)
    np.testing.assert_allclose(seen.hidden, arrays["hidden"], rtol=0, atol=2e-5)
    np.testing.assert_array_equal(seen.routing.selected, arrays["selected_experts"])
    np.testing.assert_array_equal(seen.routing.counts, arrays["routing_counts"])
    np.testing.assert_allclose(seen.routing.qb_beta, arrays["qb_beta_topk"], rtol=0, atol=2e-5)
    assert len(seen.routing) == len(list(seen.routing)) == CONFIG.num_layers
    np.testing.assert_array_equal(seen.routing[2].selected, seen.routing.selected[2])
    assert seen.routing[2].scores.shape == (batch.tokens.size, CONFIG.num_experts)


def test_nnx_differentiates_the_model(model: marin_model.Model) -> None:
    _, batch = golden("01_forward_A")

    def loss(model: marin_model.Model) -> Any:
        return marin_model.next_token_loss(model, *batch)

    assert abs(float(loss(model)) - float(golden("01_forward_A")[0]["loss"])) <= 5e-6
    gradient = nnx.to_flat_state(nnx.eval_shape(nnx.grad(loss), model))  # traced, not compiled
    assert {".".join(path): param.shape for path, param in gradient} == {n: p.shape for n, p in params().items()}


def test_named_arrays_come_back_as_they_went(model: marin_model.Model) -> None:
    back = marin_model.to_named_arrays(model)
    assert back.keys() == params().keys()
    assert all(np.array_equal(back[name], value) for name, value in params().items())
    assert isinstance(model.blocks.mlp.expert_mlp.w_gate, nnx.Param)


def test_wrong_arrays_are_named() -> None:
    arrays = {**params(), "blocks.mlp.rooter": jnp.zeros(1), "output_proj": jnp.zeros((64, 127))}
    del arrays["token_embed"]
    with pytest.raises(ValueError, match="token_embed is missing") as refusal:
        marin_model.from_named_arrays(CONFIG, arrays)
    assert "blocks.mlp.rooter is not an array of this model" in str(refusal.value)
    assert "output_proj has shape [64, 127], expected [64, 128]" in str(refusal.value)


def test_a_configuration_names_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="unknown field 'num_expert'; did you mean 'num_experts'"):
        marin_model.ModelConfig.from_dict({**ABOUT["config"], "num_expert": 3})
    with pytest.raises(ValueError, match="missing num_layers"):
        marin_model.ModelConfig.from_dict({k: v for k, v in ABOUT["config"].items() if k != "num_layers"})


TOKENS = np.zeros((2, 96), np.int32)
RUNS = np.repeat([[0, 1, 2], [5, 7, -1]], 32, axis=1)


def broken(array: np.ndarray, row: int, column: int, value: int) -> np.ndarray:
    array = array.copy()
    array[row, column] = value
    return array


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokens": broken(TOKENS, 1, 4, 128)}, ["id 128", "row 1, position 4", "0 to 127"]),
        ({"tokens": broken(TOKENS, 0, 0, -1)}, ["id -1", "row 0, position 0"]),
        ({"segment_ids": broken(RUNS, 0, 80, 1)}, ["document 1 of row 0", "position 32 and again at 80"]),
        ({"segment_ids": RUNS[:, :90]}, ["[2, 90]", "[2, 96]"]),
        ({"tokens": TOKENS.astype(np.float32)}, ["float32 [2, 96]", "integers"]),
        ({"tokens": TOKENS[0]}, ["[96]"]),
        ({"mesh": "data=4"}, ["2 sequences", "data 4"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_compiled(
    changed: dict[str, Any], words: list[str], model: marin_model.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin_model.face._forward", lambda *_: pytest.fail("went on to compile"))
    given = {"tokens": TOKENS, "segment_ids": RUNS, **changed}
    if "mesh" in given:
        given["mesh"] = make_mesh(data=4)
    with pytest.raises(ValueError, match=r"^(tokens|segment_ids|batch): ") as refusal:
        marin_model.forward(model, **given)
    for word in words:
        assert word in str(refusal.value)


def test_padding_may_lie_in_several_places(model: marin_model.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_model.face._forward", lambda *_: "went on")
    ids = np.repeat([[0, -1, 2, -1]], 24, axis=1)
    assert marin_model.forward(model, TOKENS[:1], ids) == "went on"


def test_weights_of_another_shape_are_refused(model: marin_model.Model) -> None:
    with pytest.raises(ValueError, match=r"loss_weight: shape \[2, 95\], but tokens have \[2, 96\]"):
        marin_model.next_token_loss(model, TOKENS, np.ones((2, 95)))
