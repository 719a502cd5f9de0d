"""Weak scaling over 1, 2 and 4 processes on this machine, and a step's all-to-all bytes against the closed formula.

    python benchmarks/weak_scaling.py [--steps N] [--only-bytes]      prints a table, and the same as JSON with --json

Each process has one CPU device with one thread for its products and trains the toy below over loopback (gloo): a rack
of so many expert shards as there are processes, sixteen sequences a shard, so that a process has the same tokens
whatever their number. The rate is that of the median step, without compilation. With more processes than cores the
efficiency cannot reach 1: beside it stands the share that the cores allow, min(1, cores / processes).

Bytes are counted in the traced program of the real step (`repro.ladder.lowering`), scans times their trips; that they
equal the closed formula to the last one is asserted, for the toy, d768 on 1x8, 1x64 and the hero on 11x64.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from marin_model import sharding
from repro import runs
from repro.ladder import lowering
from repro.ladder.meshes import parse_mesh
from repro.ladder.recipe import resolve_recipe

ROOT = Path(__file__).parents[1]
PROCESSES = (1, 2, 4)
SEQUENCES = 16  # of a process and step
SCALE = """
tokens_per_active_parameter = {horizon}
sequences_per_rack = {rows}
shards_per_rack = {shards}
compute_dtype = "float32"
newton_schulz_dtype = "float32"

[model]
vocab_size = 256
max_seq_len = 128
sliding_window = 64
head_dim = 32
gated_norm_rank = 4
num_experts = 24
num_experts_per_token = 4

[rungs]
d768 = {{ hidden_dim = 64, num_layers = 2 }}

[mixture]
block_size = 20
topics = 2
phases = [[1, 1], [2, 3]]

[evaluation]
marks = 1
tokens = 1024
"""
ON_PAPER = (("d768", "1x8"), ("d768", "1x64"), ("d6144", "11x64"))


def train(processes: int, steps: int, folder: Path) -> float:
    """Tokens a second of the median step."""
    scale = folder / f"{processes}.toml"
    scale.write_text(SCALE.format(horizon=0.4 * processes, rows=SEQUENCES * processes, shards=processes))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    out = folder / f"run{processes}"
    flags = (
        "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=1"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests/ladder/toy_training.py"), str(out), "--scale", str(scale)]
    command += ["--steps", str(steps)]
    if processes > 1:
        command += ["--mesh", f"1x{processes}", "--coordinator", address, "--processes", str(processes), "--process"]
    started = [
        subprocess.Popen(
            [*command, str(i)] if processes > 1 else command, stderr=subprocess.PIPE, text=True, env=environment
        )
        for i in range(processes)
    ]
    for one in started:
        _, said = one.communicate(timeout=900)
        if one.returncode:
            raise SystemExit(f"a process ended with {one.returncode}: {said[-2000:]}")
    return statistics.median(row["tokens_per_second"] for row in runs.read_metrics(out)[1:])


def count_bytes(rung: str, mesh: str, scale: str = "full") -> dict[str, Any]:
    """Bytes that one device puts into the all-to-alls of a step: by the program, and by the formula."""
    recipe, sizes = resolve_recipe(rung, scale), parse_mesh(mesh)
    devices = sizes["replica"] * sizes["data"] * sizes["expert"]
    lowered = lowering.lower_step(recipe, sharding.make_abstract_mesh(**sizes), remat=True)
    counted = lowered.counts.collectives.get(("all_to_all", (sharding.EXPERT,)), 0)
    formula = lowering.transport_bytes(recipe, devices, remat=True)
    assert counted == formula, (rung, mesh, counted, formula)
    return {"rung": rung, "mesh": mesh, "counted": counted, "formula": formula}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--processes", type=int, nargs="+", default=PROCESSES, help="the first is what others are held to"
    )
    parser.add_argument("--only-bytes", action="store_true")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rates: dict[int, float] = {}
    if not chosen.only_bytes:
        with tempfile.TemporaryDirectory() as folder:
            for processes in chosen.processes:
                rates[processes] = train(processes, chosen.steps, Path(folder))
                print(f"{processes} processes: {rates[processes]:.0f} tokens a second", file=sys.stderr)
    cores = os.cpu_count() or 1
    scaling = [
        {
            "processes": processes,
            "tokens_per_second": rate,
            "efficiency": rate / processes * chosen.processes[0] / rates[chosen.processes[0]],
            "cores_allow": min(1.0, cores / processes),
        }
        for processes, rate in rates.items()
    ]
    sent = [count_bytes(rung, mesh) for rung, mesh in ON_PAPER]
    if chosen.json:
        print(json.dumps({"load_average": os.getloadavg()[0], "weak_scaling": scaling, "all_to_all": sent}))
        return
    for row in scaling:
        print(
            f"{row['processes']} processes: {row['tokens_per_second']:8.0f} tokens a second, efficiency "
            f"{row['efficiency']:.2f}, cores allow {row['cores_allow']:.2f}"
        )
    for row in sent:
        print(f"{row['rung']} on {row['mesh']}: {row['counted']:,} bytes a device and step, as the formula says")
    print(f"load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
