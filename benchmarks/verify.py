"""What a nightly job waits for: `marin-repro verify` of 200 artifacts whose services answer after 50 ms each.

    python benchmarks/verify.py            prints seconds and peak memory, and exits with 1 where the bound is broken

All services are stand-ins on this machine, in a process of their own. A mixture of kinds, most of them of one request,
issues and W&B runs of two or three; every one is compared with a lock. The bound is the project's: 2.5 s for all, the
program's start included. Memory must not grow with what was read: the larger record has 30 MB more than its
quarter, and may take at most half of that more.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.servers.github import COMMIT, GitHub, comment, issue
from tests.servers.hub import REVISION, Hub
from tests.servers.objects import Objects
from tests.servers.wandb import Run, WandB

PROGRAM = Path(sys.executable).with_name("marin-repro")
REPO, LATENCY, BOUND = "marin-community/marin", 0.05, 2.5
METRIC = "eval_dropless/paloma/macro_loss"
OBJECT = 10**6  # bytes of each object
COUNTS = {"github-file": 70, "github-issue": 30, "wandb-run": 20, "hub-file": 20, "object": 40, "page": 20}
ADDRESSES = {
    "github-file": REPO + ":code/f{}.py",
    "github-issue": REPO + "#{}",
    "wandb-run": "marin-community/marin_moe/run-{}",
    "hub-file": "models/marin-community/marin-tokenizer/f{}.json",
    "object": "https://storage.googleapis.com/marin-public/o{}.csv",
    "page": "https://storage.googleapis.com/marin-public/p{}.html",
}
PINS = {"github-file": COMMIT, "hub-file": REVISION}


def serve(pipe: Connection, latency: float) -> None:
    """Serve until told to stop; first say which variables lead here."""
    many = range(1, max(COUNTS.values()) + 1)
    github = GitHub(files={f"code/f{n}.py": b"x = 1\n" * n for n in many}, delay=latency)
    github.issues = {n: issue(REPO, n, f"Plan {n}") for n in many}
    github.comments = {n: [comment(REPO, n, 100 * n + k, "text " * 50) for k in range(5)] for n in many}
    rows = [{"_step": step, "_timestamp": 1.0 + step, METRIC: 3.0} for step in range(100)]
    wandb = WandB(runs=[Run(f"run-{n}", config={"a": n}, rows=rows) for n in many], delay=latency)
    hub = Hub(files={f"f{n}.json": b"{}\n" * n for n in many}, delay=latency)
    pages = {f"p{n}.html": f"<html><p>Page {n}</p></html>".encode() for n in many}
    store = Objects(objects={f"o{n}.csv": b"%d" % (n % 10) * OBJECT for n in many} | pages, delay=latency)
    store.types = dict.fromkeys(pages, "text/html")
    with ExitStack() as stack:
        for server in (github, wandb, hub, store):
            stack.enter_context(server)
        pipe.send(
            {
                "MARIN_REPRO_GITHUB_API": github.url,
                "MARIN_REPRO_GITHUB_RAW": f"{github.url}/raw",
                "MARIN_REPRO_WANDB_API": wandb.url,
                "HF_ENDPOINT": hub.url,
                "MARIN_REPRO_MIRRORS": f"https://storage.googleapis.com={store.url}",
                "NO_PROXY": "127.0.0.1",
            }
        )
        pipe.recv()


@contextmanager
def services(latency: float) -> Iterator[Mapping[str, str]]:
    """The stand-ins in a process of their own, and the environment that leads to them."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, latency))
    process.start()
    try:
        yield {**os.environ, **here.recv()}
    finally:
        here.send("stop")
        process.join()


def write_record(folder: Path, share: float) -> int:
    """A record.toml of a share of the artifacts; their number."""
    lines = ['[run]\nname = "many"\ntitle = "Many"\nsnapshot = 2026-10-07\n']
    for kind, count in COUNTS.items():
        for n in range(1, round(count * share) + 1):
            entry = {"id": f"{kind}-{n}", "role": "metrics", "kind": kind, "address": ADDRESSES[kind].format(n)}
            entry |= {"digest": "none", **({"pin": PINS[kind]} if kind in PINS else {})}
            lines.append("[[artifact]]\n" + "".join(f"{key} = {json.dumps(text)}\n" for key, text in entry.items()))
    folder.mkdir()
    (folder / "record.toml").write_text("\n".join(lines))
    return len(lines) - 1


def run(environment: Mapping[str, str], *arguments: object) -> tuple[float, float, str]:
    """Seconds, peak resident MB and standard output of one process."""
    start = time.perf_counter()
    process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"marin-repro {' '.join(map(str, arguments))} left with {process.returncode}")
    return seconds, usage.ru_maxrss / 1000, output  # ru_maxrss counts KiB on Linux


def measure(share: float, latency: float = LATENCY, tries: int = 5, enough: float = 0.0) -> tuple[int, float, float]:
    """Number of artifacts, best seconds and MB of `tries` verifications, fewer where one took less than `enough`."""
    with tempfile.TemporaryDirectory() as name, services(latency) as environment:
        record, cache = Path(name) / "record", Path(name) / "cache"
        artifacts = write_record(record, share)
        run(environment, "fetch", "--record", record, "--cache", cache, "--quiet")
        best = (float("inf"), float("inf"))
        for _ in range(tries):
            seconds, mb, output = run(environment, "verify", "--record", record, "--cache", cache, "--json", "--quiet")
            if json.loads(output)["summary"]["ok"] != artifacts:
                raise SystemExit(f"not all of {artifacts} artifacts are ok: {json.loads(output)['summary']}")
            best = (min(best[0], seconds), min(best[1], mb))
            if seconds < enough:
                break
    return artifacts, *best


def main() -> int:
    """Print the figures, and say whether the bounds hold."""
    print(f"{'artifacts':>9} {'latency':>8} {'seconds':>8} {'MB':>6}")
    found = {}
    for share in (0.25, 1.0):
        number, seconds, mb = measure(share)
        found[share] = (seconds, mb)
        print(f"{number:9} {LATENCY:8.3f} {seconds:8.2f} {mb:6.0f}")
    more = 0.75 * COUNTS["object"] * OBJECT / 1e6
    return int(found[1.0][0] > BOUND or found[1.0][1] - found[0.25][1] > more / 2)


if __name__ == "__main__":
    sys.exit(main())
