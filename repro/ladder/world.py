"""Where a run runs, or is evaluated: one device, or a mesh of devices of one process or of many, all of one program.

    one device     expert shards are virtual; nothing here does anything
    a mesh         every process holds its devices' parts of the arrays, and their rows of a batch
    process 0      alone writes manifest, metrics and evaluations, and decides what all must agree on

Processes find each other through `jax.distributed`: by its own detection of SLURM, Open MPI and Kubernetes, or by the
coordinator's address. All see one folder for the run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from marin_model import sharding
from marin_model.training import Batch
from repro.errors import MarinReproError, TrainingError, UsageError
from repro.ladder.meshes import Sizes, check_mesh
from repro.ladder.recipe import Recipe

HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead
FAREWELL = 10  # seconds that a process which ends waits for the others to end too

GONE = (
    "another process of the run is gone or out of reach; its own log says why. What was saved is whole: start all "
    "processes again, train with --resume."
)
LAST_WORDS = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.read() or sys.stderr.write(sys.argv[1])
"""

T = TypeVar("T")
Span = tuple[int, int]  # first row of a batch, and how many


@dataclass(frozen=True)
class World:
    """The mesh of a run, None for one device, and which of its processes this is."""

    mesh: jax.sharding.Mesh | None = None
    process: int = 0
    processes: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes and decides."""
        return self.process == 0

    @property
    def groups(self) -> int:
        """Rows of devices that exchange no tokens."""
        return 1 if self.mesh is None else sharding.axis_size(self.mesh, (sharding.REPLICA, sharding.DATA))

    @property
    def devices(self) -> int:
        """That compute."""
        return 1 if self.mesh is None else self.mesh.size

    @cached_property
    def on_tokens(self) -> NamedSharding | None:
        """How the rows of a batch lie."""
        return None if self.mesh is None else NamedSharding(self.mesh, sharding.TOKENS)

    def shardings(self, tree: Any, recipe: Recipe) -> Any:
        """Where the arrays of a state lie, given their shapes."""
        if self.mesh is None:
            alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            return jax.tree.map(lambda leaf: alone, tree)
        return sharding.tree_shardings(tree, recipe.model, self.mesh)

    def whole(self) -> NamedSharding | None:
        """One copy on every device."""
        return None if self.mesh is None else NamedSharding(self.mesh, sharding.REPLICATED)

    def place(self, recipe: Recipe, read: Callable[[Span], Batch], rows: int) -> Batch:
        """A batch of so many rows, of which this process reads only those of its devices, each span once."""
        where = self.on_tokens
        assert where is not None
        parts = []
        for device, spans in self._spans(recipe, rows):
            read_rows = [read(span) for span in spans]
            joined = [np.concatenate(arrays) for arrays in zip(*read_rows, strict=True)]
            parts.append([jax.device_put(array, device) for array in joined])
        fields = (
            jax.make_array_from_single_device_arrays((rows, *of[0].shape[1:]), where, list(of))
            for of in zip(*parts, strict=True)
        )
        return Batch(*fields)

    def _spans(self, recipe: Recipe, rows: int) -> Iterator[tuple[jax.Device, list[Span]]]:
        """Rows of the batch that lie on each device of this process.

        A batch lies over (rack, shard). Devices of one row of the mesh hold the same racks, each a part of the shards.
        """
        assert self.mesh is not None
        racks, expert = recipe.racks // self.groups, sharding.axis_size(self.mesh, sharding.EXPERT)
        each = rows // (self.groups * racks * expert)
        for number, device in enumerate(self.mesh.devices.reshape(-1)):
            if device.process_index != jax.process_index():
                continue
            row, column = divmod(number, expert)
            first = [((row * racks + rack) * expert + column) * each for rack in range(racks)]
            yield device, [(start, each) for start in first]

    def spread(self, rows: T) -> T:
        """Arrays whose first axis is the rows of a batch, which every process holds whole, on the mesh."""
        where = self.on_tokens
        if where is None:
            return jax.tree.map(jnp.asarray, rows)

        def put(array: Any) -> jax.Array:
            whole = np.asarray(array)
            return jax.make_array_from_callback(whole.shape, where, lambda index: whole[index])

        return jax.tree.map(put, rows)

    def fetch(self, tree: T) -> T:
        """Arrays as numpy; those that lie over several processes, which must all ask for them, come whole."""
        if self.processes == 1:
            return jax.device_get(tree)
        return jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)

    def first_does(self, what: Callable[[], Any]) -> Any:
        """Let process 0 do something before any goes on; only there its result is returned.

        Raises what it raises; in the other processes TrainingError, which points there.
        """
        if self.processes == 1:
            return what()
        result, failure = None, None
        if self.is_first:
            try:
                result = what()
            except MarinReproError as error:
                failure = error
        if multihost_utils.broadcast_one_to_all(np.int32(failure is not None)):
            raise failure or TrainingError("process 0 refused, and its message says why.")
        return result

    def first_says(self, number: int) -> int:
        """What process 0 says, in all of them."""
        return number if self.processes == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))

    def check_alike(self, what: str, said: object) -> None:
        """Raise UsageError in every process where one of them says something else than process 0."""
        if self.processes == 1:
            return
        digest = np.frombuffer(hashlib.sha256(repr(said).encode()).digest(), np.uint8)
        of_first = multihost_utils.broadcast_one_to_all(digest)
        if any(self.any_says(not np.array_equal(digest, of_first))):
            raise UsageError(f"{what} are not the same in all processes. All must have the same arguments and files.")

    def any_says(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is raised in any process."""
        if self.processes == 1:
            return flags
        raised = np.reshape(multihost_utils.process_allgather(np.asarray(flags, np.int32)), (self.processes, -1))
        return tuple(bool(np.any(raised[:, flag])) for flag in range(len(flags)))


ALONE = World()


def make_world(recipe: Recipe, sizes: Sizes | None) -> World:
    """The world of a run over a mesh of these sizes. Raises UsageError where it does not go with recipe or devices."""
    if sizes is None:
        return world_of(None)
    check_mesh(recipe, sizes)
    try:
        mesh = sharding.make_mesh(**sizes)
        sharding.parameter_shardings(recipe.model, mesh)
    except ValueError as error:
        raise UsageError(f"{recipe.rung} at scale {recipe.scale}: {error}") from error
    return world_of(mesh)


def world_of(mesh: jax.sharding.Mesh | None) -> World:
    """The world of a mesh. Raises UsageError where it leaves out a process, or a device of several processes."""
    processes, devices = jax.process_count(), len(jax.devices())
    if mesh is None:
        if processes > 1:
            raise UsageError(f"{processes} processes need --mesh RxE that covers their {devices} devices.")
        return ALONE
    if processes > 1 and mesh.size != devices:
        raise UsageError(
            f"a mesh of {mesh.size} devices, but {processes} processes have {devices}. All must take part."
        )
    return World(mesh, jax.process_index(), processes)


def join_arguments(coordinator: str | None, processes: int | None, process: int | None) -> dict[str, Any] | None:
    """Arguments for `connected` of those that name the processes: all three or none. Raises UsageError."""
    given = (coordinator, processes, process)
    if all(one is None for one in given):
        return None
    if coordinator is None or processes is None or process is None or not 0 <= process < processes:
        raise UsageError(
            "--coordinator HOST:PORT, --processes N and --process I (from 0 to N - 1) go together, the same on every "
            f"process but for I; given were {coordinator}, {processes} and {process}."
        )
    return {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}


@contextmanager
def connected(arguments: Mapping[str, Any] | None) -> Iterator[None]:
    """Join the other processes; arguments as of `jax.distributed.initialize`, empty for its detection, None for none.

    Must come before the first array. Raises UsageError where there is nothing to detect, or nobody answers.
    """
    if arguments is None:
        yield
        return
    with _last_words(), _libraries_on_stderr():
        try:
            jax.distributed.initialize(
                **arguments, heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=FAREWELL
            )
        except (ValueError, RuntimeError) as error:
            raise UsageError(
                f"the processes cannot find each other: {error}. Name --coordinator HOST:PORT, --processes and "
                "--process."
            ) from error
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise TrainingError(f"{GONE} XLA says: {str(error).splitlines()[0]}") from error
        finally:
            jax.distributed.shutdown()


@contextmanager
def _libraries_on_stderr() -> Iterator[None]:
    """Keep standard output for results: gloo writes whom it has met there, past Python."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _last_words() -> Iterator[None]:
    """Have something said for this process where XLA ends it without asking Python, as it does once a peer is dead.

    A process that has nothing else to do waits for the end of a pipe: with a word, where all went its way; without,
    where this process is no more.
    """
    command = [sys.executable, "-I", "-S", "-c", LAST_WORDS, f"marin-repro: {GONE}\n"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as speaker:
        try:
            yield
        finally:
            assert speaker.stdin is not None
            speaker.stdin.write(b"done")
            speaker.stdin.close()
