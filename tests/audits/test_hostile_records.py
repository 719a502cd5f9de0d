"""Records that are wrong, foreign or hostile: an answer or one clear refusal, never a traceback and never markup."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.cli.main import exit_code
from repro.record.facts import load_record
from repro.record.lock import LOCK
from tests.audits.conftest import SOURCES, claim

Edit = Callable[[Path], None]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A copy of the built-in record without its lock."""
    return Path(shutil.copytree(load_record().folder, tmp_path / "record", ignore=shutil.ignore_patterns(LOCK)))


def in_text(name: str, pattern: str, new: str) -> Edit:
    def edit(folder: Path) -> None:
        text, count = re.subn(pattern, new, (folder / name).read_text(), count=1)
        assert count == 1, pattern
        (folder / name).write_text(text)

    return edit


def leaf(path: str, value: Any) -> Edit:
    def edit(folder: Path) -> None:
        file = folder / "run_configuration.json"
        content = json.loads(file.read_text())
        for part in ("first", "latest"):
            place = content[part]["leaves"]
            *above, last = path.split(".")
            for key in above:
                place = place.setdefault(key, {})
            place[last] = value
        file.write_text(json.dumps(content))

    return edit


REFUSED: dict[str, tuple[Edit, str]] = {
    "a rung without a batch": (in_text("ladder_rungs.csv", "1,64,1024,4096", "1,64,0,4096"), "batch_size"),
    "a rung of negative length": (in_text("ladder_rungs.csv", "1024,4096,11420", "1024,4096,-1"), "steps"),
    "an unknown store": (in_text("record.toml", 'store = "store_4d2e363d"', 'store = "elsewhere"'), "'elsewhere'"),
    "unknown weights": (in_text("record.toml", 'weights = "hero_launch"', 'weights = "none"'), "'none'"),
    "no stages": (in_text("record.toml", r"stages = \[\n(.*\n)*?\]", "stages = []"), "stages"),
    "stages that run backwards": (in_text("record.toml", "from_step = 9120", "from_step = -5"), "upwards"),
    "a forecast of no steps": (in_text("record.toml", "target_steps = 390251", "target_steps = 0"), "target_steps"),
    "a window beyond the run": (in_text("record.toml", r"window = \[0.6, 0.8\]", "window = [0.6, 1e300]"), "window"),
    "no model": (leaf("model", None), "model"),
    "half a layer": (leaf("model.num_layers", 48.5), "num_layers"),
    "layers in words": (leaf("model.num_layers", "many"), "num_layers"),
    "steps in words": (leaf("trainer.trainer.num_train_steps", "abc"), "num_train_steps"),
    "no block": (leaf("data.mixture_block_size", 0), "mixture_block_size"),
    "a number as text": (leaf("trainer.trainer.train_batch_size", "11264"), "train_batch_size"),
    "a giant": (leaf("optimizer.learning_rate", 10**400), "learning_rate"),
    "a giant among claims": (in_text("claims.json", '"value": "535.3B"', '"value": "1e999"'), "10^45"),
    "an escape sequence": (in_text("claims.json", '"quote": "', '"quote": "\\\\u001b[2J'), "no reader can see"),
    "a line end": (in_text("claims.json", '"citation": "', '"citation": "a\\\\n# b'), "no reader can see"),
}


@pytest.mark.parametrize(("edit", "named"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_record_is_refused_by_name(
    edit: Edit, named: str, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(record)
    assert exit_code(["audit", "--record", str(record), "--json"]) == 2
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message


ANSWERED: dict[str, Edit] = {
    "no batch": leaf("trainer.replica_axis_size", 0),
    "a moment of hundreds of digits": in_text("claims.json", '"step": "58020"', f'"step": "{"9" * 400}"'),
    "another recipe": in_text("record.toml", 'recipe = "marin"\n', ""),
    "coarse marks": in_text("record.toml", "mark = 0.05", "mark = 0.2"),
    "no configuration": lambda folder: (
        (folder / "run_configuration.json").unlink()
        or in_text("record.toml", r'\[\[file\]\]\nname = "run_configuration.json"(\n(?!\[).*)*', "")(folder)
    ),
    "rungs of other shapes": in_text("ladder_rungs.csv", "11420,8,768", "11420,4,256"),
}


@pytest.mark.parametrize("edit", ANSWERED.values(), ids=ANSWERED)
def test_a_record_of_which_less_follows_is_audited_and_reproduced_all_the_same(
    edit: Edit, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(record)
    assert exit_code(["audit", "--record", str(record), "--out", str(tmp_path / "audit")]) == 0, capsys.readouterr().err
    assert exit_code(["reproduce", "--record", str(record), "--out", str(tmp_path / "all"), "--quiet"]) == 0


@pytest.mark.parametrize("value", ["0", "1B"])
def test_an_input_that_may_be_zero_settles_nothing(value: str, tmp_path: Path) -> None:
    claims = [
        claim("active", "parameters.active", value, digits="approximate"),
        claim("ratio", "training.tokens_per_active_parameter", "100", digits="exact"),
        claim("batch", "training.batch_size", "0", digits="exact"),
        claim("length", "shape.sequence_length", "4096", digits="exact"),
        claim("steps", "training.steps", "1000", digits="exact"),
        claim("tokens", "training.tokens", "1T"),
    ]
    (tmp_path / "claims.json").write_text(json.dumps({"sources": SOURCES, "claims": claims}))
    (tmp_path / "record.toml").write_text('[run]\nname = "x"\ntitle = "X"\nsnapshot = 2026-01-01\n')
    assert exit_code(["audit", "--record", str(tmp_path), "--json"]) == 0


def test_the_output_may_not_become_part_of_the_record(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("audit", "reproduce"):
        assert exit_code([command, "--record", str(record), "--out", str(record / "out")]) == 2
        assert "inside the record" in capsys.readouterr().err


def test_stages_that_are_not_ours_never_reach_the_index(tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text('{"evil": {"files": {"javascript:alert(1)": ""}}, "audit": {"files": {}}}')
    assert exit_code(["reproduce", "--out", str(tmp_path), "--quiet"]) == 0
    assert "javascript" not in (tmp_path / "index.html").read_text()
