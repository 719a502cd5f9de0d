"""A run directory to its model: which checkpoint, which router bias, and what is refused."""

from __future__ import annotations

import gc
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.loading import checkpoint_steps, load_run, tokenizer_digest, weights
from marin_model.training import ROUTER_BIAS
from repro import runs
from repro.errors import MarinReproError, RecordError, UsageError
from repro.ladder.checkpoint import open_checkpoints
from repro.ladder.tokenizing import load_tokenizer
from tests.evals.toy_run import toy_identity, toy_recipe, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "toy", (3, 7))


def written(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_newest_checkpoint_is_loaded_or_the_one_that_is_asked_for(run: Path) -> None:
    newest, earlier = load_run(run), load_run(run, step=3)
    assert (newest.steps_completed, earlier.steps_completed) == (7, 3)
    assert newest.recipe == replace(toy_recipe(), scale="toy")
    assert newest.config == toy_recipe().model
    assert not np.array_equal(newest.params["output_proj"], earlier.params["output_proj"])


def test_what_is_loaded_is_what_was_saved(run: Path) -> None:
    loaded = load_run(run)
    with open_checkpoints(run) as checkpoints:
        saved = checkpoints.manager.restore(7)["state"]
    assert loaded.params.keys() == saved["params"].keys()
    for name, array in loaded.params.items():
        assert np.array_equal(array, saved["params"][name]), name
    pending = saved["pending_qb_betas"]
    expected = pending.mean(axis=1, keepdims=True) - pending
    np.testing.assert_allclose(loaded.pending_router_bias, expected, atol=1e-6)  # float32 means


def test_the_router_bias_is_as_saved_or_the_next_one_and_nothing_else_changes(run: Path) -> None:
    loaded = load_run(run)
    saved, pending = weights(loaded), weights(loaded, "pending")
    assert saved[ROUTER_BIAS] is loaded.params[ROUTER_BIAS]
    assert pending[ROUTER_BIAS] is loaded.pending_router_bias
    assert not np.allclose(saved[ROUTER_BIAS], pending[ROUTER_BIAS])
    assert all(saved[name] is pending[name] for name in saved if name != ROUTER_BIAS)
    with pytest.raises(UsageError, match="router bias 'next': must be saved or pending"):
        weights(loaded, "next")  # type: ignore[arg-type]


def test_loading_writes_nothing_into_a_run_that_goes_on(run: Path) -> None:
    unfinished = run / "checkpoints" / "9.orbax-checkpoint-tmp"
    unfinished.mkdir()
    before = written(run)
    assert load_run(run).steps_completed == 7
    assert written(run) == before
    unfinished.rmdir()


def test_the_tokenizers_digest_does_not_depend_on_its_name() -> None:
    identity = load_tokenizer("bytes").identity
    assert tokenizer_digest(identity) == tokenizer_digest(replace(identity, name="octets"))
    assert tokenizer_digest(identity) != tokenizer_digest(replace(identity, eos=255))


OTHER = "tokenizer.json (SHA-256 0123456789ab…, 128,256 ids, BOS 128000, EOS 128001)"


@pytest.mark.parametrize(
    ("changed", "options", "kind", "message"),
    [
        ({}, {"step": 5}, RecordError, r"no checkpoint after 5 updates; it keeps those after 3, 7\."),
        ({"data": {"tokenizer": OTHER}}, {}, UsageError, r"trained on tokens of tokenizer.json .* with --tokenizer\."),
        ({"data": {"tokenizer": OTHER}}, {"tokenizer": "bytes"}, UsageError, r"of tokenizer.json .*, not of bytes"),
        ({"data": {}}, {}, RecordError, r"identity.data.tokenizer is missing"),
        ({"recipe": {}}, {}, RecordError, r"manifest.json: identity.recipe.model is missing"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(
    run: Path,
    tmp_path: Path,
    changed: dict[str, Any],
    options: dict[str, Any],
    kind: type[MarinReproError],
    message: str,
) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    runs.write_manifest(other, runs.Manifest(identity=toy_identity(**changed)))
    with pytest.raises(kind, match=message):
        load_run(other, **options)


def test_a_recipe_of_another_version_is_refused_by_its_field(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    identity = toy_identity()
    identity["recipe"]["batch_sizes"] = identity["recipe"].pop("batch_size")
    runs.write_manifest(other, runs.Manifest(identity=identity))
    with pytest.raises(RecordError, match=r"identity.recipe: unknown key 'batch_sizes'; did you mean 'batch_size'"):
        load_run(other)
    del identity["recipe"]["batch_sizes"]
    runs.write_manifest(other, runs.Manifest(identity=identity))
    with pytest.raises(RecordError, match=r"identity.recipe: batch_size is missing"):
        load_run(other)


def test_a_checkpoint_of_another_shape_is_no_checkpoint_of_the_run(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    identity = toy_identity()
    identity["recipe"]["model"]["hidden_dim"] *= 2
    runs.write_manifest(other, runs.Manifest(identity=identity))
    with pytest.raises(RecordError, match="7 cannot be read as a checkpoint of this run"):
        load_run(other)


# Orbax leaves reads unawaited, and Python says so whenever it collects: here, by itself, or in a later test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_checkpoint_and_a_run_without_one_are_refused(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    shutil.rmtree(other / "checkpoints" / "7" / "default")
    with pytest.raises(RecordError, match="7 cannot be read as a checkpoint of this run"):
        load_run(other)
    shutil.rmtree(other / "checkpoints")
    assert checkpoint_steps(other) == []
    with pytest.raises(RecordError, match="no whole checkpoint"):
        load_run(other)
    with pytest.raises(RecordError, match="is not a run"):
        load_run(tmp_path)
    gc.collect()
