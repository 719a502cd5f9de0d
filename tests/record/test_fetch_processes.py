"""Fetches as processes: killed half way, and two at once into one cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.record.artifact_lock import read_artifacts, read_bytes
from repro.record.cache import KEY, open_cache
from repro.record.facts import load_record
from repro.record.fetch import Result
from tests.record.world import OPEN, World, write_record

Bring = Callable[..., Result]
PROGRAM = Path(sys.executable).with_name("marin-repro")


def start(record: Path, cache: Path) -> subprocess.Popen[bytes]:
    """A fetch as a process of its own, led to the stand-ins by this test's environment."""
    return subprocess.Popen(
        [PROGRAM, "fetch", "--record", record, "--cache", cache, "--quiet"],
        env=dict(os.environ),
        stderr=subprocess.PIPE,
    )


def is_whole(record: Path, cache: Path) -> None:
    locked = read_artifacts(record)
    assert set(locked) == set(OPEN)
    assert all(read_bytes(record, entry) for entry in locked.values())
    load_record(record)
    assert not [path for path in record.rglob("*") if path.name.startswith(".") and path.name != ".held"]
    entries = list((cache / "entries").iterdir())
    assert len(entries) == len(OPEN)
    assert all(KEY.fullmatch(path.name) for path in entries)


def wait_for(what: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not what():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.01)


@pytest.mark.parametrize("where", ["/graphql", "/final/"])
def test_a_fetch_that_is_killed_half_way_is_taken_up_by_the_next(
    where: str, public: World, bring: Bring, tmp_path: Path
) -> None:
    record, cache = write_record(tmp_path / "record"), tmp_path / "cache"
    for server in public.servers:
        server.fault("slow body", where=where)  # a byte every 0.4 seconds: it is still coming when all else is there
    public.forget()
    process = start(record, cache)
    wait_for(lambda: len(list(record.glob(".fetch/*"))) >= 5 and any(where in line for line in public.asked()))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stderr is not None
    process.stderr.close()
    assert sorted(path.name for path in record.iterdir()) == [".fetch", ".held", "record.toml"]
    left = [path.name for path in (cache / "entries").iterdir()]
    assert any(not KEY.fullmatch(name) for name in left)  # what was half written, under no name that is read

    public.heal()
    public.forget()
    result = bring()
    assert not result.missing
    assert "from the cache" in {one.action for one in result.fetched}
    is_whole(record, cache)


def test_a_fetch_killed_between_tables_and_lock_is_finished_by_the_next(bring: Bring, tmp_path: Path) -> None:
    (write_record(tmp_path / "record") / "notes.md").write_text("mine")
    bring()
    (tmp_path / "record" / ".fetch").mkdir()  # what such a process leaves: a stage, and a file that is not in the lock
    (tmp_path / "record" / "derived.md").write_text("a table")
    assert not bring().missing
    load_record(tmp_path / "record")
    assert not (tmp_path / "record" / ".fetch").exists()


def test_two_fetches_at_once_into_one_cache_are_both_right(public: World, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    records = [write_record(tmp_path / name) for name in ("one", "two")]
    processes = [start(record, cache) for record in records]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
    for record in records:
        is_whole(record, cache)


def test_what_a_killed_process_left_is_swept_by_whoever_is_alone(tmp_path: Path) -> None:
    with open_cache(tmp_path) as cache:
        (cache.entries / "tmpabc").write_bytes(b"half")
        (cache.answers / ".x.part").write_bytes(b"half")
        with open_cache(tmp_path):  # not alone: the other may be writing it
            assert (cache.entries / "tmpabc").exists()
    with open_cache(tmp_path) as cache:
        assert list(cache.entries.iterdir()) == list(cache.answers.iterdir()) == []
