"""What XLA makes of a step on a mesh: a process of its own compiles it for as many CPU devices as the mesh has.

    python -m repro.ladder.compiled_step RUNG SCALE RxDxE REMAT

XLA partitions the program before it looks at the hardware, so arguments and collectives are those of any. Temporaries
are the CPU compiler's, an estimate, and a high one: it widens bfloat16 to float32, whole stacks of layers at once, and
keeps what a GPU's kernels would never write. Nothing runs, and no weight exists.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod
from typing import NamedTuple

from repro.errors import TrainingError
from repro.ladder.partitioned import sent_elements
from repro.ladder.recipe import Recipe, resolve_recipe

FLAGS = "--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"


class Compiled(NamedTuple):
    """Of one device."""

    memory: dict[str, int]  # bytes: arguments, temporaries, total
    sent: dict[str, int]  # elements that leave it, by kind of collective


def start(recipe: Recipe, mesh: dict[str, int], *, remat: bool) -> subprocess.Popen[str]:
    """Begin to compile in another process."""
    sizes = "x".join(str(size) for size in mesh.values())
    command = [sys.executable, "-m", __name__, recipe.rung, recipe.scale, sizes, str(int(remat))]
    environment = os.environ | {"XLA_FLAGS": FLAGS.format(devices=prod(mesh.values())), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> Compiled:
    """What it found. Raises TrainingError with the compiler's last line where it failed."""
    out, err = process.communicate()
    if process.returncode:
        last = (err.strip().splitlines() or ["no message"])[-1]
        raise TrainingError(
            f"the step could not be compiled for its mesh of CPU devices: {last} Leave it out: --no-compile."
        )
    return Compiled(*json.loads(out))


def compile_step(recipe: Recipe, mesh: dict[str, int], *, remat: bool) -> Compiled:
    """Compile here, in a process that has the devices, and read XLA's own account."""
    from marin_model import sharding
    from repro.ladder.lowering import step_arguments
    from repro.ladder.step import make_step

    placed = sharding.make_mesh(**mesh)
    state, batch = step_arguments(recipe, placed)
    compiled = make_step(recipe, mesh=placed, remat=remat).lower(state, batch).compile()
    stats = compiled.memory_analysis()
    memory = {
        "arguments": stats.argument_size_in_bytes,  # state and batch
        "temporaries": stats.temp_size_in_bytes,
        "total": stats.argument_size_in_bytes + stats.temp_size_in_bytes,  # the state's buffers are used again
    }
    return Compiled(memory, sent_elements(compiled.as_text()))


def main() -> None:
    """Print a `Compiled` as JSON."""
    rung, scale, sizes, remat = sys.argv[1:]
    mesh = dict(zip(("replica", "data", "expert"), map(int, sizes.split("x")), strict=True))
    sys.stdout.write(json.dumps(compile_step(resolve_recipe(rung, scale), mesh, remat=bool(int(remat)))))


if __name__ == "__main__":
    main()
