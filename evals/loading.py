"""A run directory → the model at one of its checkpoints, with the tokenizer that its tokens are of.

Only what an evaluation needs is read: the float32 masters, the pending quantiles and the count of completed updates.
The optimizer's moments stay on disk. Nothing is written, so a run may be evaluated while it goes on.

    router bias "saved"      as the weights hold it: the one that the last update was made with; what upstream
                             evaluated with from launch until 2026-09-22
    router bias "pending"    as the next forward pass would use it, made of the quantiles that the last one measured
                             (marin-community/marin#9352: dropless macro loss 2.22016478 where "saved" gives 2.22020006)
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np
import orbax.checkpoint as ocp

from marin_model import sharding
from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.router import router_bias as bias_of
from marin_model.training import ROUTER_BIAS
from repro import runs
from repro.errors import RecordError, UsageError
from repro.files import canonical_json
from repro.ladder.checkpoint import FOLDER
from repro.ladder.recipe import Recipe
from repro.ladder.tokenizing import BOS_TOKEN, BYTES, EOS_TOKEN, Tokenizer, TokenizerIdentity, load_tokenizer
from repro.ladder.world import ALONE, World
from repro.record.entries import read_entry

ITEM = "default"  # Orbax's name for what a checkpoint holds where it is one thing
RouterBias = Literal["saved", "pending"]
ROUTER_BIASES: tuple[str, ...] = get_args(RouterBias)


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A run's model at one checkpoint. `weights` gives its arrays with the router bias that is asked for."""

    folder: Path
    identity_digest: str  # SHA-256 of all that decides the run's bits
    recipe: Recipe
    config: ModelConfig
    world: World  # over which its arrays lie
    params: dict[str, jax.Array]  # float32 masters by flat name, the router bias as saved
    pending_router_bias: jax.Array  # [layers, E] float32, of the next forward pass
    tokenizer: Tokenizer
    tokenizer_file: Path | None  # None: bytes
    tokenizer_digest: str  # `tokenizer_digest` of its identity
    steps_completed: int


def load_run(
    folder: Path,
    *,
    step: int | None = None,
    tokenizer: str | Path | None = None,
    bos: str = BOS_TOKEN,
    eos: str = EOS_TOKEN,
    world: World = ALONE,
) -> LoadedRun:
    """The run's model after `step` completed updates, or at its newest checkpoint, which process 0 names for all.

    `tokenizer` is "bytes" or a tokenizers file, as `load_tokenizer` takes it; a run in bytes needs none. Raises
    RecordError where the folder is no run, has no such checkpoint, or holds one that cannot be read; UsageError where
    the tokenizer is not the run's, or the mesh cannot hold the model.
    """
    manifest = runs.read_manifest(folder)
    recipe = _recipe(manifest, f"{folder}/{runs.MANIFEST}")
    found = _tokenizer(manifest, folder, recipe.model, tokenizer, bos, eos)
    steps = checkpoint_steps(folder)
    if not steps:
        raise RecordError(f"{folder} has no whole checkpoint in {FOLDER}/. Train it up to its first evaluation mark.")
    chosen = world.first_says(steps[-1] if step is None else step)
    if chosen not in steps:
        kept = ", ".join(f"{one:,}" for one in steps)
        raise RecordError(f"{folder} has no checkpoint after {chosen:,} updates; it keeps those after {kept}.")
    params, betas = _restore(folder, recipe.model, chosen, _places(recipe.model, world.mesh))
    return LoadedRun(
        folder=folder,
        identity_digest=hashlib.sha256(canonical_json(dict(manifest.identity)).encode()).hexdigest(),
        recipe=recipe,
        config=recipe.model,
        world=world,
        params=params,
        pending_router_bias=bias_of(betas),
        tokenizer=found,
        tokenizer_file=None if tokenizer is None or tokenizer == BYTES else Path(tokenizer),
        tokenizer_digest=tokenizer_digest(found.identity),
        steps_completed=chosen,
    )


def weights(run: LoadedRun, router_bias: RouterBias = "saved") -> dict[str, jax.Array]:
    """The run's arrays by flat name, with the router bias as saved, or as the next forward pass would use it."""
    if router_bias not in ROUTER_BIASES:
        raise UsageError(f"router bias {router_bias!r}: must be {' or '.join(ROUTER_BIASES)}.")
    return run.params if router_bias == "saved" else {**run.params, ROUTER_BIAS: run.pending_router_bias}


def checkpoint_steps(folder: Path) -> list[int]:
    """Completed updates of a run's whole checkpoints, in order; a folder under another name is none."""
    checkpoints = folder / FOLDER
    if not checkpoints.is_dir():
        return []
    return sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal() and path.is_dir())


def tokenizer_digest(identity: TokenizerIdentity) -> str:
    """SHA-256 of what makes two tokenizers the same: the file's digest (null: bytes), size, BOS and EOS; no name."""
    said = [identity.sha256, identity.vocab_size, identity.bos, identity.eos]
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()


def _recipe(manifest: runs.Manifest, where: str) -> Recipe:
    """The recipe that the manifest holds. RecordError that names a missing, unknown or mistyped field."""
    identity = manifest.identity
    if not isinstance(identity, dict) or not isinstance(identity.get("recipe"), dict):
        raise RecordError(f"{where}: identity.recipe is missing. Name the folder that train wrote.")
    settings = dict(identity["recipe"])
    if not isinstance(settings.get("model"), dict):
        raise RecordError(f"{where}: identity.recipe.model is missing. Name the folder that train wrote.")
    try:
        ModelConfig.from_dict(settings["model"])  # its own words where a rule of the shape is broken
    except (ValueError, TypeError) as error:
        raise RecordError(f"{where}: {error}") from error
    known = [field.name for field in fields(Recipe)]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "the run was made by another version of this program."
            raise RecordError(f"{where}, identity.recipe: unknown key {name!r}; {hint}")
    settings["departures"] = identity.get("departures", [])
    return read_entry(Recipe, settings, f"{where}, identity.recipe")


def _tokenizer(
    manifest: runs.Manifest, folder: Path, model: ModelConfig, name: str | Path | None, bos: str, eos: str
) -> Tokenizer:
    """The tokenizer that is named, or bytes, if it is the run's."""
    trained_on = dict(manifest.identity.get("data") or {}).get("tokenizer")
    if not isinstance(trained_on, str):
        raise RecordError(f"{folder}/{runs.MANIFEST}: identity.data.tokenizer is missing: no text can be read for it.")
    if name is None and not trained_on.startswith(f"{BYTES} ("):
        raise UsageError(f"{folder} was trained on tokens of {trained_on}. Name its file with --tokenizer.")
    found = load_tokenizer(BYTES if name is None else name, bos, eos)
    if _said(str(found.identity)) != _said(trained_on):
        raise UsageError(
            f"{folder} was trained on tokens of {trained_on}, not of {found.identity}: its losses on these would mean "
            "nothing. Name the run's own tokenizer."
        )
    if found.identity.vocab_size > model.vocab_size:
        raise UsageError(
            f"{folder}: its model has a vocabulary of {model.vocab_size:,}, too small for {found.identity}."
        )
    return found


def _said(identity: str) -> str:
    """What a manifest says of a tokenizer but for its name: digest, size, BOS and EOS."""
    return identity.rpartition(" (")[2]


def _places(model: ModelConfig, mesh: jax.sharding.Mesh | None) -> Mapping[str, jax.sharding.Sharding]:
    """Where each array is to lie, and under "" all that is no parameter."""
    if mesh is None:
        alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return dict.fromkeys(("", *parameter_shapes(model)), alone)
    try:
        parts = sharding.parameter_shardings(model, mesh)
    except ValueError as error:
        raise UsageError(f"--mesh: {error}") from error
    return {"": jax.sharding.NamedSharding(mesh, sharding.REPLICATED), **parts}


def _restore(
    folder: Path, model: ModelConfig, steps_completed: int, places: Mapping[str, jax.sharding.Sharding]
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Masters and pending quantiles of a checkpoint."""

    def like(shape: tuple[int, ...], dtype: Any = np.float32, name: str = "") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=places[name])

    state = {
        "params": {name: like(shape, name=name) for name, shape in parameter_shapes(model).items()},
        "pending_qb_betas": like((model.num_layers, model.num_experts)),
        "step": like((), np.int32),
    }
    wanted = {"state": state}
    place = (folder / FOLDER / str(steps_completed)).absolute()
    arguments = ocp.args.PyTreeRestore(
        wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
    )
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            got = checkpointer.restore(place / ITEM, args=arguments)["state"]
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(
            f"{place} cannot be read as a checkpoint of this run: {error}. Evaluate an earlier one with --step."
        ) from error
    if int(got["step"]) != steps_completed:
        raise RecordError(f"{place} holds the state after {int(got['step']):,} updates. Was a folder renamed?")
    return got["params"], got["pending_qb_betas"]
