"""What a user waits for: wall time and peak memory of light commands, each in a fresh process with a warm page cache.

    python benchmarks/start_times.py            prints a table and exits with 1 where a bound is broken

Bounds are those that the project promises on two cores: --help 0.5 s, audit 3 s and 300 MB, fit 2 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 5
PROGRAM = Path(sys.executable).with_name("marin-repro")
BOUNDS = {  # arguments: seconds, MB
    ("--help",): (0.5, None),
    ("plan", "d6144", "--json"): (None, None),
    ("fit", "--json"): (2.0, None),
    ("audit", "--json"): (3.0, 300),
    ("audit", "--quiet", "--out", "OUT"): (3.0, 300),
}


def measure(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Seconds and peak resident MB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"marin-repro {' '.join(arguments)} left with {process.returncode}")
    return seconds, usage.ru_maxrss / 1000  # ru_maxrss counts KiB on Linux


def main() -> int:
    """Print the best of some runs for each command, and say whether its bounds hold."""
    broken = False
    print(f"{'command':42} {'seconds':>8} {'bound':>6} {'MB':>6} {'bound':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for arguments, (most_seconds, most_mb) in BOUNDS.items():
            given = tuple(folder if part == "OUT" else part for part in arguments)
            measure(given)  # warms the page cache
            runs = [measure(given) for _ in range(RUNS)]
            seconds, mb = min(run[0] for run in runs), max(run[1] for run in runs)
            print(f"{' '.join(arguments):42} {seconds:8.2f} {most_seconds or '':>6} {mb:6.0f} {most_mb or '':>6}")
            broken |= (most_seconds is not None and seconds > most_seconds) or (most_mb is not None and mb > most_mb)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
