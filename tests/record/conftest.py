"""A small record of one's own, to be damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

SMALL = Path(__file__).with_name("small_record.toml")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "record.toml").write_text(SMALL.read_text())
    (folder / "ladder_grid.csv").write_text("rung,step,loss\nw64,99,3.5\nw64,199,3.25\nw128,199,3.0\n")
    return folder
