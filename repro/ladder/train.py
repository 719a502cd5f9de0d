"""A rung is trained: state and batch in, a run directory out, the same bits whether or not it was interrupted.

    order of a step     batch(step) → update → metrics.jsonl → at a mark: checkpoint beside evaluation → evals/
    what resumes        masters, optimizer and counters, pending quantiles, completed updates; the data's position is a
                        function of the step, and nothing is random after initialisation
    what ends a run     its last step; --steps; SIGINT or SIGTERM, which saves first; a loss that is not finite; a norm
                        that the optimizer holds fixed and that moved

Equal bits are promised for equal code, devices and flags. Rates and times differ from run to run, all else does not.
On one device, expert shards are virtual (`marin_model.transport`), so that what a rack would drop is dropped; on a mesh
(`world`) they lie over its devices, and a checkpoint made on one is restored onto another.
"""

from __future__ import annotations

import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from marin_model.checks import check_batch
from marin_model.initial import init_arrays
from marin_model.optimizer import sphere_norms
from marin_model.training import Batch, Metrics, TrainState, init_train_state
from repro import runs
from repro.errors import TrainingError, UsageError
from repro.files import canonical_json, write_atomically
from repro.ladder.checkpoint import Checkpoints, Saved, open_checkpoints
from repro.ladder.departures import Departure
from repro.ladder.expected_drops import expected_drop_fraction
from repro.ladder.hardware import peak_flops
from repro.ladder.heldout import make_evaluation
from repro.ladder.recipe import Recipe
from repro.ladder.step import make_step, optimizer_config, recomputes
from repro.ladder.world import ALONE, World

FAILURE = "failure.json"
PUBLISHED_SEED = 0  # W&B config of the hero, trainer.seed
SAVE_EVERY = 600.0  # seconds, beside the saves at marks
# Each update divides by a float32 norm and multiplies by another, so a norm may walk by a rounding or two an update.
NORM_DRIFT = (1e-5, 2.0**-22)  # relative: at once, and for each update


class Data(Protocol):
    """Where batches come from. All arrays have rows of `recipe.seq_len`."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the data is, whatever the machine; part of the run's identity."""

    @property
    def departures(self) -> tuple[Departure, ...]:
        """What of it is not as published."""

    def batch(self, step: int, first: int = 0, count: int | None = None) -> tuple[Any, ...]:
        """The fields of a step's `Batch`, of `count` rows from the first on; a pure function of its arguments."""

    def held_out(self, tokens: int | None) -> tuple[Any, ...]:
        """About so many tokens of documents that are never trained on, whole sequences; None: all."""


class Outcome(NamedTuple):
    """How a call ended."""

    steps_completed: int
    finished: bool  # the recipe's last step is done
    metrics: Mapping[str, Any] | None  # of the last step made
    evaluation: Mapping[str, Any] | None  # the newest of the run


def train(
    recipe: Recipe,
    data: Data,
    out: Path,
    *,
    seed: int = PUBLISHED_SEED,
    resume: bool = False,
    steps: int | None = None,
    record: Mapping[str, Any] | None = None,
    entropy: Mapping[str, float] | None = None,
    on_step: Callable[[Mapping[str, Any]], None] = lambda row: None,
    on_evaluation: Callable[[Mapping[str, Any]], None] = lambda result: None,
    save_every: float = SAVE_EVERY,
    world: World = ALONE,
    remat: bool | None = None,
) -> Outcome:
    """Train a rung into the folder `out`, up to `steps` completed updates or the recipe's last.

    `seed` is that of the initial weights; the data's order has its own. `record` says from which record the recipe
    comes, `entropy` what is known of the held-out data's; `remat` computes each layer again in the backward pass, for
    memory (None: at full scale). Every process of a world calls this, and the first one writes. Raises UsageError where
    the folder holds a run and it is not to be resumed, or holds another run; TrainingError where the run cannot go on;
    OutputError where something cannot be written, or another process writes there; KeyboardInterrupt after SIGINT and
    SIGTERM, with everything saved.
    """
    until = recipe.steps if steps is None else steps
    remat = recomputes(recipe) if remat is None else remat
    session: dict[str, Any] = _session(world, remat)
    identity = {**_identity(recipe, data, record, seed), "entropy": dict(entropy) if entropy else None}
    execution: dict[str, Any] = {"sessions": []}

    def note(**values: Any) -> None:
        session.update(values)
        if world.is_first:
            runs.write_manifest(out, runs.Manifest(identity=identity, execution=execution))

    def begin() -> None:
        if resume:
            runs.check_resumable(out, identity)
            execution.update(runs.read_manifest(out).execution)
        else:
            session["expected_drop_fraction"] = expected_drop_fraction(recipe)
        execution["sessions"] = [*execution["sessions"], session]
        note(outcome="running")

    world.first_does(lambda: check_call(recipe, out, resume=resume, steps=steps))
    with ExitStack() as held:
        world.first_does(lambda: held.enter_context(runs.hold_run(out)))
        world.first_does(begin)
        with open_checkpoints(out) as checkpoints, _stop_signals() as stopped:
            try:
                outcome = _run(
                    recipe, data, out, until, seed, checkpoints, stopped, note, on_step, on_evaluation, save_every,
                    world, remat,
                )  # fmt: skip
            except BaseException as error:
                note(outcome=type(error).__name__, ended=_now())
                raise
        note(outcome="finished" if outcome.finished else "stopped", ended=_now(), steps=outcome.steps_completed)
    return outcome


def check_call(recipe: Recipe, out: Path, *, resume: bool, steps: int | None) -> int:
    """The step to train up to. Raises UsageError where that is none of the run's, or the folder holds a run already."""
    until = recipe.steps if steps is None else steps
    if not 1 <= until <= recipe.steps:
        raise UsageError(f"--steps {steps}: a run of {recipe.rung} at this scale has steps 1 to {recipe.steps:,}.")
    if not resume and (out / runs.MANIFEST).exists():
        raise UsageError(f"{out} holds a run already. Go on with it with --resume, or choose another --out.")
    return until


def _run(
    recipe: Recipe,
    data: Data,
    out: Path,
    until: int,
    seed: int,
    checkpoints: Checkpoints,
    stopped: list[int],
    note: Callable[..., None],
    on_step: Callable[[Mapping[str, Any]], None],
    on_evaluation: Callable[[Mapping[str, Any]], None],
    save_every: float,
    world: World,
    remat: bool,
) -> Outcome:
    """From the newest checkpoint, or the start, to step `until`."""
    saved = _begin(recipe, checkpoints, seed, world)
    state, held = saved.state, jax.device_get(saved.sphere_norms)
    done = int(state.step)
    if world.is_first:
        runs.cut_metrics(out, done)
        runs.cut_evaluations(out, runs.HELD_OUT, done)
    evaluate = make_evaluation(recipe, Batch(*data.held_out(recipe.evaluation_tokens)), world)
    newest: Mapping[str, Any] | None = None

    def look(params: dict[str, jax.Array]) -> None:
        nonlocal newest
        newest = _evaluation(recipe, done, evaluate(params))
        if world.is_first:
            runs.write_evaluation(out, runs.HELD_OUT, done, newest)
            on_evaluation(newest)

    row: dict[str, Any] | None = None
    missing = world.is_first and _is_mark(recipe, done) and not runs.has_evaluation(out, runs.HELD_OUT, done)
    if any(world.any_says(missing)):
        look(state.params)  # the process died between a checkpoint and its evaluation
    if done < until:
        started = time.monotonic()
        step_of = _compiled_step(recipe, state, _batch(recipe, data, done, world), world, remat)
        note(compile_seconds=round(time.monotonic() - started, 3))
    last_saved = time.monotonic()
    while done < until:
        started = time.monotonic()
        batch = _batch(recipe, data, done, world)
        state, measured = step_of(state, batch)
        row = _row(recipe, done, jax.device_get(measured), state, time.monotonic() - started, held, world)
        _check(row, recipe, done, batch, out, checkpoints, world)
        if world.is_first:
            runs.append_metrics(out, row)
            on_step(row)
        done += 1
        mark = _is_mark(recipe, done)
        stop, due = world.any_says(bool(stopped), time.monotonic() - last_saved > save_every)
        if mark or done == until or stop or due:
            checkpoints.save(Saved(state, saved.sphere_norms))
            if mark:
                look(state.params)
            checkpoints.wait()  # the next step overwrites the buffers that are being saved
            last_saved = time.monotonic()
            (stop,) = world.any_says(bool(stopped))  # it may have come while all this was done
        if stop:
            raise KeyboardInterrupt
    return Outcome(done, done == recipe.steps, row, newest)


def _begin(recipe: Recipe, checkpoints: Checkpoints, seed: int, world: World = ALONE) -> Saved:
    """The newest checkpoint, or the state before the first update."""

    def fresh() -> Saved:
        _, key = jax.random.split(jax.random.PRNGKey(seed))  # the first half orders the data
        state = init_train_state(init_arrays(recipe.model, key), optimizer_config(recipe))
        return Saved(state, sphere_norms(state.params))

    latest, shapes = checkpoints.latest(), jax.eval_shape(fresh)
    if latest is None and world.mesh is None:
        return jax.jit(fresh)()
    where = world.shardings(shapes, recipe)
    if latest is None:
        return jax.jit(fresh, out_shardings=where)()
    like = jax.tree.map(lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), shapes, where)
    return checkpoints.restore(latest, like)


def _batch(recipe: Recipe, data: Data, step: int, world: World) -> Batch:
    """A step's batch: all of it, or on a mesh the rows of this process's devices."""

    def read(*rows: int) -> Batch:
        batch = Batch(*data.batch(step, *rows))
        try:
            check_batch(recipe.model, batch.tokens, batch.segment_ids, batch.loss_weight)
        except ValueError as error:
            raise TrainingError(f"the batch of step {step:,} of {recipe.rung}: {error}") from error
        return batch

    return read() if world.mesh is None else world.place(recipe, lambda span: read(*span), recipe.batch_size)


def _compiled_step(recipe: Recipe, state: TrainState, batch: Batch, world: World, remat: bool) -> Any:
    """The compiled update; compiling apart keeps the first step's rate honest."""
    return make_step(recipe, mesh=world.mesh, remat=remat).lower(state, batch).compile()


# What is measured


def _row(
    recipe: Recipe,
    step: int,
    measured: Metrics,
    state: TrainState,
    seconds: float,
    held: Mapping[str, Any],
    world: World,
) -> dict[str, Any]:
    """One line of metrics.jsonl. Fractions are of all chosen assignments; entropies are in nats."""
    counts = measured.routing_counts.astype(np.float64)  # [layers, E]
    load = counts / counts.sum(axis=1, keepdims=True)
    entropy = -np.sum(load * np.log(np.where(load > 0, load, 1)), axis=1)
    betas = np.asarray(state.pending_qb_betas)
    rate = recipe.tokens_per_step / seconds
    peak = peak_flops(jax.devices()[0].device_kind)
    return {
        "step": step,
        "tokens": (step + 1) * recipe.tokens_per_step,
        "loss": float(measured.loss),
        "ce": float(measured.cross_entropy),
        "z_loss": float(measured.z_loss),
        "grad_norm": float(measured.grad_norm),
        "grad_norms": {group: float(norm) for group, norm in measured.grad_norms.items()},
        "lr": {group: float(rate) for group, rate in measured.learning_rates.items()},
        "sphere_norm_drift": _drift(measured.sphere_norms, held),  # largest relative change since initialisation
        "sender_drop_fraction": float(measured.sender_dropped.sum() / counts.sum()),
        "receiver_drop_fraction": float(measured.receiver_dropped.sum() / counts.sum()),
        "router_entropy": float(entropy.mean()),  # of the experts' loads in this batch, mean over layers
        "router_max_load": float(load.max() * load.shape[1]),  # of the busiest expert, over an even share
        "qb_range": float((betas.max(axis=1) - betas.min(axis=1)).max()),  # of the pending quantiles, widest layer
        "tokens_per_second": rate,
        "mfu": recipe.flops_per_step_with_lm_head / seconds / (peak * world.devices) if peak else None,
    }


def _drift(now: Mapping[str, Any], held: Mapping[str, Any]) -> float:
    return max(float(np.max(np.abs(now[name] / held[name] - 1))) for name in held)


def _check(
    row: Mapping[str, Any], recipe: Recipe, step: int, batch: Batch, out: Path, checkpoints: Checkpoints, world: World
) -> None:
    """Raise TrainingError, and leave what is needed to look into it, where a run must not go on."""
    at_once, each = NORM_DRIFT
    limit = at_once + each * step
    if not (math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"])):
        what = f"the loss is {row['loss']} and the gradient norm {row['grad_norm']}"
    elif not row["sphere_norm_drift"] <= limit:
        what = f"a norm that the optimizer holds fixed has moved by {row['sphere_norm_drift']:.2e}, above {limit:.2e}"
    else:
        return
    kept = checkpoints.latest()
    tokens = np.concatenate([shard.data for shard in jnp.asarray(batch.tokens).addressable_shards])  # this process's
    failure = {
        "step": step,
        "what": what,
        "last_checkpoint": kept,
        "replay": "resume from the last checkpoint: the same step is reached with the same bits",
        "batch": {"sha256": hashlib.sha256(tokens.tobytes()).hexdigest(), "shape": list(tokens.shape)},
        "metrics": {name: value if _is_finite(value) else str(value) for name, value in row.items()},
    }
    if world.is_first:
        write_atomically(out / FAILURE, canonical_json(failure))
    after = f"the checkpoint after {kept:,} updates is kept" if kept is not None else "no checkpoint was made yet"
    raise TrainingError(f"{out}: step {step:,} of {recipe.rung}: {what}. {after.capitalize()}; see {out / FAILURE}.")


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_finite(part) for part in value.values())
    return not isinstance(value, float) or math.isfinite(value)


def _is_mark(recipe: Recipe, steps_completed: int) -> bool:
    """Whether an evaluation is due after so many completed updates."""
    return steps_completed in recipe.evaluation_steps


def _evaluation(recipe: Recipe, steps_completed: int, losses: Mapping[str, Any]) -> dict[str, Any]:
    """One file of evals/. `step` is zero-based, as upstream logs it: that of the last update made."""
    share = steps_completed / recipe.steps
    return {
        "suite": runs.HELD_OUT,
        "rung": recipe.rung,
        "step": steps_completed - 1,
        "steps_completed": steps_completed,
        "fraction": share,
        "tokens": steps_completed * recipe.tokens_per_step,
        "flops_with_lm_head": steps_completed * recipe.flops_per_step_with_lm_head,
        "flops_without_lm_head": steps_completed * recipe.flops_per_step_without_lm_head,
        **losses,
    }


# What the run is, and where it ran


def _identity(recipe: Recipe, data: Data, record: Mapping[str, Any] | None, seed: int) -> dict[str, Any]:
    """All that decides the run's bits, and the record that its recipe is of. No paths."""
    settings = asdict(recipe)
    settings["scale"] = Path(recipe.scale).stem
    departures = [d._asdict() for d in (*recipe.departures, *data.departures)]
    if seed != PUBLISHED_SEED:
        departures.append(Departure("seed of weights and data order", PUBLISHED_SEED, seed)._asdict())
    return {
        "rung": recipe.rung,
        "scale": settings["scale"],
        "recipe": {name: value for name, value in settings.items() if name != "departures"},
        "departures": departures,
        "data": dict(data.identity),
        "seed": seed,
        "code": code_digest(),
        "record": dict(record) if record else None,
    }


def code_digest() -> str:
    """SHA-256 over the source that decides a run's bits: the model and the ladder."""
    import marin_model

    digest = hashlib.sha256()
    for folder in (Path(marin_model.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.glob("*.py")):
            digest.update(f"{folder.name}/{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _session(world: World, remat: bool) -> dict[str, Any]:
    devices = jax.devices()
    return {
        "mesh": dict(world.mesh.shape) if world.mesh else None,
        "processes": world.processes,
        "remat": remat,
        "started": _now(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "versions": {name: version(name) for name in ("marin-repro", "jax", "jaxlib", "orbax-checkpoint", "numpy")},
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Signals that asked the run to stop; a second one stops at once, without saving."""
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def remember(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for which in (signal.SIGINT, signal.SIGTERM):
        before[which] = signal.signal(which, remember)
    try:
        yield received
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
