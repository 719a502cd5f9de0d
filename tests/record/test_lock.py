from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repro.errors import RecordError
from repro.record.facts import load_record
from repro.record.lock import LOCK, write_lock


@pytest.fixture
def locked(small: Path) -> Path:
    write_lock(small)
    return small


def refused(folder: Path) -> str:
    with pytest.raises(RecordError) as caught:
        load_record(folder)
    return str(caught.value)


def test_a_locked_record_loads(locked: Path) -> None:
    assert set(load_record(locked).lock or {}) == {"record.toml", "ladder_grid.csv"}


def test_a_moved_record_has_the_same_lock(locked: Path, tmp_path: Path) -> None:
    before = (locked / LOCK).read_bytes()
    moved = shutil.copytree(locked, tmp_path / "elsewhere")
    write_lock(moved)
    assert (moved / LOCK).read_bytes() == before


def test_one_changed_digit_names_the_file_and_the_mend(locked: Path) -> None:
    table = locked / "ladder_grid.csv"
    table.write_text(table.read_text().replace("3.25", "3.26"))
    message = refused(locked)
    assert "ladder_grid.csv has changed: expected 52 bytes, sha256 " in message
    assert f"python -m repro.record.lock {locked}" in message


def test_relocking_accepts_a_meant_change(locked: Path) -> None:
    table = locked / "ladder_grid.csv"
    table.write_text(table.read_text().replace("3.25", "3.26"))
    run = subprocess.run([sys.executable, "-m", "repro.record.lock", str(locked)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert load_record(locked).ladder_grid["w64"][1].loss == 3.26


def test_a_missing_file_is_named_with_its_size(locked: Path) -> None:
    (locked / "ladder_grid.csv").unlink()
    assert "ladder_grid.csv is missing (record.lock.json expects 52 bytes)" in refused(locked)


def test_an_extra_file_is_named_and_counted(locked: Path) -> None:
    (locked / "notes.txt").write_text("x")
    (locked / "more").mkdir()
    (locked / "more" / "paper.txt").write_text("x")
    message = refused(locked)
    assert "more/paper.txt is not in record.lock.json. (1 more of its files differ.)" in message


def test_rewritten_line_ends_are_recognised(locked: Path) -> None:
    table = locked / "ladder_grid.csv"
    table.write_bytes(table.read_bytes().replace(b"\n", b"\r\n"))
    assert "only the line ends differ" in refused(locked)


def test_a_git_lfs_pointer_is_recognised(locked: Path) -> None:
    (locked / "ladder_grid.csv").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 53\n")
    assert "git lfs pull" in refused(locked)


def test_a_sha1_in_the_lock_is_refused(locked: Path) -> None:
    lock = json.loads((locked / LOCK).read_text())
    lock["files"]["record.toml"]["sha256"] = "a" * 40
    (locked / LOCK).write_text(json.dumps(lock))
    assert "record.lock.json, record.toml, sha256" in refused(locked)
    assert "is not a sha256" in refused(locked)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('{"version": 1, "files": {"record.toml"', "not JSON at line 1"),
        ('{"version": 1}', "must hold version and files"),
        ('{"version": 2, "files": {}}', "version 2 is not 1"),
        ('{"version": 1, "files": {"../x": {"bytes": 1, "sha256": ""}}}', "leads out of"),
        ('{"version": 1, "files": {"record.toml": {"bytes": true, "sha256": ""}}}', "True is not a size"),
        ('{"version": 1, "files": {"record.toml": {"sha256": ""}}}', "must hold bytes and sha256"),
    ],
)
def test_a_malformed_lock_says_what_is_wrong(small: Path, content: str, word: str) -> None:
    (small / LOCK).write_text(content)
    assert word in refused(small)


def test_a_link_out_of_the_record_is_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (small / "notes.txt").symlink_to(tmp_path / "secret")
    assert "leads out of" in refused(small)


def test_a_folder_that_is_no_record_is_not_locked(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-m", "repro.record.lock", str(tmp_path)], capture_output=True, text=True)
    assert (run.returncode, "no record.toml" in run.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_unlocked_record_loads_and_says_so(small: Path) -> None:
    assert load_record(small).lock is None


def test_the_built_in_record_is_refused_without_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(load_record().folder, tmp_path / "marin_535b")
    (folder / LOCK).unlink()
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    with pytest.raises(RecordError, match=r"record\.lock\.json is missing from the built-in record"):
        load_record()
