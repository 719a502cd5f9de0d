"""The Paloma sets on a checkpoint of ours: the losses that upstream logs, as trained and dropless, each defined.

    texts → windows → batches of as many windows as the run had GPUs, sets one behind the other, not shuffled
          → a rack's windows at a time through the model, as trained (capacities drop assignments) and dropless
          → sums by batch and set → values (`evals.aggregate`) with their identities → RUN/evals/LABEL-STEP.json

A batch may span two sets; the last is filled up with padding, which weighs nothing. The loss is the cross-entropy
alone, in float32 on a compute copy of the weights. Bits a byte appear only where every document passed the gate of
`evals.byte_counts`. The forecast's metric is `eval_dropless/paloma/macro_loss`.

Source: levanter's tagged evaluator (marin-levanter 0.2.227) with its settings in the W&B config of
hero-12d8b6f0-dee637.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evals.aggregate import Sums, values
from evals.batching import parse_world
from evals.byte_counts import Gate, token_bytes
from evals.identity import DENOMINATORS, DROPLESS, Metric, MetricIdentity, as_trained_dispatch
from evals.loading import LoadedRun, RouterBias, load_run, weights
from evals.miniature import write_miniature
from evals.results import Evaluation, find_or_make
from evals.sources import HUB, PUBLISHED_TEXTS, Survey, Texts, hub_texts, local_texts, survey
from evals.windows import Window, windows
from marin_model.config import ModelConfig
from marin_model.loss import token_loss
from marin_model.model import cast, transformer
from marin_model.transport import Transport
from repro.errors import RecordError
from repro.ladder.batches import segment_ids
from repro.ladder.meshes import check_mesh
from repro.ladder.recipe import Recipe
from repro.ladder.step import pooled_wave
from repro.ladder.world import world_of

MINIATURE = "miniature"
SEMANTICS = 1  # raised where the same inputs would give other values
AS_TRAINED = "as_trained"
PREFIXES = {AS_TRAINED: "eval", DROPLESS: "eval_dropless"}  # upstream's


class _Rows(NamedTuple):
    """Of a group of windows."""

    loss: jax.Array  # [B] nats, sum over the scored targets of each
    dropped: jax.Array  # [] int32 assignments


class _Batch(NamedTuple):
    """What a batch gave: sums by way and set, and what its windows stand for."""

    places: np.ndarray  # [B] set of each window
    loss: dict[str, np.ndarray]  # by way, [B]
    dropped: dict[str, int]
    bytes: np.ndarray  # [2, B] text, logged


def evaluate_run(
    folder: Path,
    suites: Sequence[str],
    *,
    data: str = MINIATURE,
    step: int | None = None,
    tokenizer: str | Path | None = None,
    router_bias: RouterBias = "saved",
    limit: int | None = None,
    mesh: str | None = None,
    force: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Evaluate a checkpoint of a run on `data`: "miniature", "hub" or a folder; write and return the result.

    `limit`: only so many windows of each set. `mesh`: devices as `repro.ladder.meshes` writes them, None for one; it
    changes no value. An evaluation of the same inputs that is there already is returned as it is, unless `force`.
    `report` is told the bytes of text done, and of all. Raises what `load_run`, `hub_texts` and `local_texts` raise,
    UsageError for a mesh that the recipe cannot be dealt to.
    """
    world = world_of(None) if mesh is None else parse_world(mesh)
    run = load_run(folder, step=step, tokenizer=tokenizer, world=world)
    if world.mesh is not None:
        check_mesh(run.recipe, world.mesh.shape)
    with _texts(data, suites) as texts:
        surveys = [survey(one) for one in texts.sets]
        inputs = _inputs(run, texts, surveys, router_bias, limit)

        def make() -> dict[str, Any]:
            found = evaluate(run, texts, surveys, router_bias=router_bias, limit=limit, report=report)
            return {**_of_run(run, suites), **found}

        return find_or_make(run, _label(suites, texts, inputs), inputs, make, force=force)


def evaluate(
    run: LoadedRun,
    texts: Texts,
    surveys: Sequence[Survey],
    *,
    router_bias: RouterBias = "saved",
    limit: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Losses of a model on texts, both ways, as a result file has them. RecordError where a loss is not finite.

    Of several processes each reads all texts, and computes on the windows of its devices.
    """
    recipe, gate = run.recipe, Gate()
    table = token_bytes(run.tokenizer.identity, run.tokenizer_file)
    gate.why = table if isinstance(table, str) else ""
    total = sum(one.utf8_bytes for one in surveys)

    def stream() -> Iterator[tuple[int, Window]]:
        for place, one in enumerate(texts.sets):
            for window in windows(one, run.tokenizer, table, gate, context=recipe.seq_len, limit=limit):
                yield place, window

    done, batches = 0, []
    for batch in _batches(run, stream(), weights(run, router_bias)):
        batches.append(batch)
        done += int(batch.bytes[0].sum())
        report(done, total)
    sums = {way: _sums(batches, way, len(texts.sets), recipe.seq_len) for way in PREFIXES}
    for way, of_way in sums.items():
        if not np.isfinite(of_way.loss).all():
            odd = texts.sets[int(np.argmin(np.isfinite(of_way.loss.sum(axis=0))))].label
            raise RecordError(
                f"{run.folder}: the {way} loss on {odd} is not finite after {run.steps_completed:,} updates."
            )
    return {
        "data": _described(texts, surveys, limit, sums[DROPLESS], recipe.seq_len),
        "tokenizer": {"name": str(run.tokenizer.identity), "digest": run.tokenizer_digest},
        "router_bias": router_bias,
        "dispatch": {way: _dispatch(recipe, way) for way in PREFIXES},
        "context": recipe.seq_len,
        "batch": [recipe.gpus, recipe.seq_len],
        "compute_dtype": recipe.compute_dtype,
        "bytes": {**asdict(gate), "passed": not gate.why},
        "drop_fraction": _drop_fractions(recipe, batches),
        "metrics": dict(_metrics(run, texts, surveys, sums, router_bias, limit, with_bytes=not gate.why)),
    }


# Batches through the model


def _batches(run: LoadedRun, stream: Iterator[tuple[int, Window]], params: dict[str, jax.Array]) -> Iterator[_Batch]:
    """Each row of a mesh's devices has racks of its own; without one it is a rack after the other."""
    recipe, world = run.recipe, run.world
    group = world.groups * recipe.gpus // recipe.racks
    ways = {AS_TRAINED: pooled_wave(recipe, groups=world.groups), DROPLESS: Transport.dropless()}
    compiled = {
        way: partial(_rows, config=recipe.model, transport=transport, dtype=recipe.compute_dtype, mesh=world.mesh)
        for way, transport in ways.items()
    }
    while batch := list(islice(stream, recipe.gpus)):
        found: dict[str, list[_Rows]] = {way: [] for way in ways}
        for start in range(0, len(batch), group):
            tokens = np.stack([window.tokens for _, window in batch[start : start + group]])
            inputs = world.spread(_padded(tokens, group, run.tokenizer.identity.eos))
            for way, rows in compiled.items():
                found[way].append(world.fetch(rows(params, *inputs)))
        yield _Batch(
            places=np.array([place for place, _ in batch]),
            loss={way: np.concatenate([one.loss for one in done])[: len(batch)] for way, done in found.items()},
            dropped={way: sum(int(one.dropped) for one in done) for way, done in found.items()},
            bytes=np.array([[w.text_bytes, w.logged_bytes] for _, w in batch], np.float64).T,
        )


def _padded(tokens: np.ndarray, rows: int, eos: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and segment ids of `rows` windows; what is missing is padding, which takes no capacity."""
    missing = ((0, rows - len(tokens)), (0, 0))
    return np.pad(tokens, missing), np.pad(segment_ids(tokens, eos), missing, constant_values=-1)


@partial(jax.jit, static_argnames=("config", "transport", "dtype", "mesh"))
def _rows(
    params: dict[str, jax.Array],
    tokens: jax.Array,
    segments: jax.Array,
    *,
    config: ModelConfig,
    transport: Transport,
    dtype: str,
    mesh: jax.sharding.Mesh | None,
) -> _Rows:
    """Losses of windows [B, S]; a window's last position has no target."""
    compute = cast(params, jnp.dtype(dtype))
    seen = transformer(compute, tokens, segments, config=config, transport=transport, mesh=mesh)
    labels = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))).reshape(-1)
    hidden = seen.hidden.reshape(-1, config.hidden_dim)
    losses = token_loss(hidden, compute["output_proj"], labels).cross_entropy.reshape(tokens.shape)
    dropped = jnp.sum(seen.stats.sender_dropped + seen.stats.receiver_dropped)
    return _Rows(jnp.sum(losses[:, :-1], axis=1), dropped)


def _sums(batches: Sequence[_Batch], way: str, sets: int, context: int) -> Sums:
    """[J, D] each."""
    found = np.zeros((4, len(batches), sets))
    for number, batch in enumerate(batches):
        parts = (np.full(len(batch.places), context - 1.0), batch.loss[way].astype(np.float64), *batch.bytes[::-1])
        for row, part in zip(found[:, number], parts, strict=True):
            np.add.at(row, batch.places, part)
    return Sums(*found)


# What the result says


def _metrics(
    run: LoadedRun,
    texts: Texts,
    surveys: Sequence[Survey],
    sums: Mapping[str, Sums],
    router_bias: str,
    limit: int | None,
    *,
    with_bytes: bool,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Values by the name that upstream logs them under."""
    recipe = run.recipe
    names = [(one.suite, one.name) for one in texts.sets]
    for way, prefix in PREFIXES.items():
        for value in values(sums[way], names, with_bytes=with_bytes):
            if not math.isfinite(value.value):
                continue  # a set without a byte of text has no bits a byte
            identity = MetricIdentity(
                name=value.name,
                average=value.average,
                sets=value.sets,
                dispatch=_dispatch(recipe, way),
                router_bias=router_bias,
                context=recipe.seq_len,
                batch=(recipe.gpus, recipe.seq_len),
                tokenizer=run.tokenizer_digest,
                byte_denominator=DENOMINATORS[value.name],
                level=_level(texts, limit),
                data=PUBLISHED_TEXTS if texts.kind == "published" else _digest(surveys),
            )
            yield f"{prefix}/{value.path}", Metric(value.value, identity).as_json(value.definition)


def _dispatch(recipe: Recipe, way: str) -> str:
    return DROPLESS if way == DROPLESS else as_trained_dispatch(recipe)


def _level(texts: Texts, limit: int | None) -> str:
    return texts.kind if limit is None else f"{texts.kind}, the first {limit} windows of each set"


def _drop_fractions(recipe: Recipe, batches: Sequence[_Batch]) -> dict[str, float]:
    """Of all chosen assignments."""
    tokens = recipe.seq_len * sum(len(batch.places) for batch in batches)
    chosen = tokens * recipe.model.num_experts_per_token * recipe.model.num_layers
    return {way: sum(batch.dropped[way] for batch in batches) / chosen for way in PREFIXES}


def _described(texts: Texts, surveys: Sequence[Survey], limit: int | None, sums: Sums, context: int) -> dict[str, Any]:
    targets = sums.targets.sum(axis=0)
    return {
        "kind": texts.kind,
        "what": texts.what,
        "level": _level(texts, limit),
        "sha256": _digest(surveys),
        "sets": [
            {
                "name": one.label,
                **asdict(found),
                "windows": round(scored / (context - 1)),
                "scored_targets": round(scored),
            }
            for one, found, scored in zip(texts.sets, surveys, targets.tolist(), strict=True)
        ],
    }


def _digest(surveys: Sequence[Survey]) -> str:
    return hashlib.sha256("".join(one.sha256 for one in surveys).encode()).hexdigest()


def _of_run(run: LoadedRun, suites: Sequence[str]) -> dict[str, Any]:
    recipe, done = run.recipe, run.steps_completed
    return {
        "suite": "+".join(suites),
        "rung": recipe.rung,
        "scale": Path(recipe.scale).stem,
        "step": done - 1,  # zero-based, as upstream logs it
        "steps_completed": done,
        "fraction": done / recipe.steps,
        "tokens": done * recipe.tokens_per_step,
        "versions": {name: version(name) for name in ("marin-repro", "jax", "numpy")},
    }


def _inputs(
    run: LoadedRun, texts: Texts, surveys: Sequence[Survey], router_bias: str, limit: int | None
) -> dict[str, Any]:
    """All that decides the values, whatever the machine."""
    return {
        "semantics": SEMANTICS,
        "run": run.identity_digest,
        "steps_completed": run.steps_completed,
        "tokenizer": run.tokenizer_digest,
        "data": [texts.kind, _digest(surveys)],
        "router_bias": router_bias,
        "limit": limit,
    }


def _label(suites: Sequence[str], texts: Texts, inputs: Mapping[str, Any]) -> str:
    """The result's name before its step: what may stand side by side has names of its own."""
    kind = texts.kind if texts.kind != "local" else f"local.{inputs['data'][1][:8]}"
    bias = "" if inputs["router_bias"] == "saved" else f".{inputs['router_bias']}"
    limited = "" if inputs["limit"] is None else f".first{inputs['limit']}"
    return f"{'+'.join(suites)}-{kind}{bias}{limited}"


@contextmanager
def _texts(data: str, suites: Sequence[str]) -> Iterator[Texts]:
    if data == HUB:
        yield hub_texts(suites)
    elif data == MINIATURE:
        with tempfile.TemporaryDirectory(prefix="marin-repro-") as folder:
            yield write_miniature(Path(folder), suites)
    else:
        yield local_texts(Path(data), suites)
