"""Events as TensorBoard reads them: the numbers of metrics.jsonl, and a resume that hides what it goes back behind."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from repro.errors import MissingExtraError
from repro.ladder.tensorboard import open_tensorboard

ROW = {"step": 3, "loss": 2.5, "mfu": None, "grad_norms": {"adam": 0.5, "muonh": 0.25}}
EVALUATION = {
    "suite": "heldout", "step": 3, "fraction": 0.2,
    "as_trained": {"loss": 2.75, "drop_fraction": 0.125}, "dropless": {"loss": 2.5, "drop_fraction": 0},
}  # fmt: skip


def events(folder: Path) -> list[Event]:
    """Of all files, oldest first: each record is a length, its checksum, the event, its checksum."""
    found = []
    for path in sorted(folder.glob("tensorboard/events.*")):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def test_metrics_and_evaluations_keep_their_names_and_steps(tmp_path: Path) -> None:
    with open_tensorboard(tmp_path) as tracker:
        tracker.on_step(ROW)
        tracker.on_evaluation(EVALUATION)
    seen = {value.tag: (one.step, value.simple_value) for one in events(tmp_path) for value in one.summary.value}
    assert seen == {
        "loss": (3, 2.5),
        "grad_norms/adam": (3, 0.5),
        "grad_norms/muonh": (3, 0.25),
        "heldout/as_trained/loss": (3, 2.75),
        "heldout/as_trained/drop_fraction": (3, 0.125),
        "heldout/dropless/loss": (3, 2.5),
        "heldout/dropless/drop_fraction": (3, 0.0),
    }


def test_a_resume_hides_what_was_written_beyond_it(tmp_path: Path) -> None:
    for step in (5, 3):
        with open_tensorboard(tmp_path) as tracker:
            tracker.on_step({**ROW, "step": step})
    starts = [one.step for one in events(tmp_path) if one.HasField("session_log")]
    assert sorted(starts) == [3, 5]


def test_nothing_is_made_where_nothing_is_said(tmp_path: Path) -> None:
    with open_tensorboard(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'marin-repro\[track\]'"), open_tensorboard(tmp_path):
        pass
