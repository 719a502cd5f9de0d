"""Each module of the ladder either is under the contract that forbids JAX, or is named as one that uses it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_module_is_free_of_jax_by_contract_or_named_as_one_that_uses_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["name"] == "an auditor never pays for JAX")
    free = {name.removeprefix("repro.ladder.") for name in contract["source_modules"] if "repro.ladder." in name}
    (row,) = re.findall(r"^\| `repro/ladder/`.*$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    users = set(re.findall(r"`(\w+)\.py`", row))
    modules = {path.stem for path in (ROOT / "repro" / "ladder").glob("*.py")} - {"__init__"}
    assert not free & users
    assert free | users == modules, modules ^ (free | users)
