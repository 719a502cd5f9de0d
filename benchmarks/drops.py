"""How fast drops are simulated at the 535B run's full routing geometry: one rack, 33,554,432 assignments of one layer.

    python benchmarks/drops.py [--seq-len N] [--repeats N]      prints a table, and the same as JSON with --json

Of the fastest of the repetitions: seconds and assignments a second to draw a rack (documents, balance on 11 racks,
choices), and to decide by each transport's plans who is dropped; processor seconds of the same, which other work on the
machine does not change as much; and the process's peak memory. Compilation is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from repro.ladder.drops import Room, draw_rack, drop, geometry_of
from repro.ladder.recipe import resolve_recipe
from repro.ladder.router_scores import STATED, ScoreModel

Result = TypeVar("Result")
CELLS = 200  # of equal weight, as many as the published mixture has


def fastest(work: Callable[[], Result], repeats: int) -> tuple[Result, float, float]:
    """What the work gives, its least seconds, and the processor seconds of that repetition."""
    times = []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        result = work()
        times.append((time.perf_counter() - began, time.process_time() - used))
    return result, *min(times)


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    hero = geometry_of(resolve_recipe("d6144"))
    model = ScoreModel(
        experts=hero.experts,
        chosen=hero.chosen,
        spread=STATED.spread,
        shared=STATED.shared,
        document_tokens=STATED.document_tokens,
        document_sigma=STATED.document_sigma,
        cells=(1 / CELLS,) * CELLS,
    )
    assignments = hero.assignments * hero.shards
    experts, *drawn = fastest(lambda: draw_rack(hero, model, chosen.seq_len, "previous", 0), chosen.repeats)
    rows = {"draw": drawn}
    for room in (Room("pooled_wave", 1.15, 1.15), Room("ragged", None, 1.15)):
        drop(hero, experts, chosen.seq_len, room)  # compiles
        _, *rows[room.transport] = fastest(lambda room=room: drop(hero, experts, chosen.seq_len, room), chosen.repeats)
    result = {
        "assignments": assignments,
        "load_average": os.getloadavg()[0],
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "rows": {
            name: {"seconds": seconds, "processor_seconds": used, "assignments_per_second": assignments / seconds}
            for name, (seconds, used) in rows.items()
        },
    }
    if chosen.json:
        print(json.dumps(result))
        return
    print(f"{assignments:,} assignments, {chosen.seq_len:,} tokens a sequence")
    for name, row in result["rows"].items():
        print(
            f"{name:12} {row['seconds']:6.2f} s  {row['processor_seconds']:6.2f} processor s  "
            f"{row['assignments_per_second'] / 1e6:6.2f} million assignments a second"
        )
    print(f"peak memory {result['peak_gib']:.2f} GiB; load of the machine {result['load_average']:.1f}")


if __name__ == "__main__":
    main()
