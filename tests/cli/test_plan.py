"""`marin-repro plan` as its user meets it: a table, a table with sources, one JSON object, and clear refusals."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from repro.cli.plan import plan
from repro.errors import UsageError
from repro.ladder.rungs import RUNGS

CONTRACT_KEYS = [
    *("rung", "scale", "params", "tokens_per_step", "steps", "batch_size", "seq_len", "tokens", "flops"),
    *("learning_rate", "betas", "epsilon", "warmup_steps", "schedule", "mixture", "departures"),
    *("memory_per_device", "communication_per_step"),
]

app = typer.Typer()
app.command("plan")(plan)


@app.callback()
def marin_repro() -> None:
    """A program of more than one command, so that `plan` is named as on the real command line."""


def run(*arguments: str, columns: int = 100) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": str(columns), "NO_COLOR": "1"})


@pytest.mark.parametrize("rung", RUNGS)
def test_json_is_one_object_with_the_contracts_keys_and_nothing_else(rung: str) -> None:
    result = run(rung, "--json")
    assert result.exit_code == 0
    assert list(json.loads(result.stdout)) == CONTRACT_KEYS
    assert result.stderr == ""


def test_numbers_survive_json_in_every_digit() -> None:
    hero = json.loads(run("d6144", "--json").stdout)
    assert hero["flops"]["without_lm_head"] == 2_610_894_161_377_270_274_457_600
    assert hero["learning_rate"]["muonh"] == 0.003290470163258143


def test_the_table_names_both_conventions_of_flops_and_the_exact_counts() -> None:
    out = run("d6144").stdout
    rows = {line.strip() for line in out.splitlines()}
    for quantity, value in {
        "total parameters": "535,477,106,688",
        "active parameters": "22,762,487,808",
        "steps": "390,251",
        "tokens": "18,005,144,633,344",
        "FLOPs, with LM head": "2.69602e+24",
        "FLOPs, without LM head": "2.61089e+24",
        "peak learning rate, MuonH and AdamH": "0.003290470163258143",
        "mixture phase starts": "0, 312,192",
    }.items():
        assert any(row.startswith(quantity) and row.endswith(value) for row in rows), quantity
    assert "Departures from the published run: none." in out


@pytest.mark.parametrize("columns", [80, 160])
def test_explain_cuts_no_formula_and_no_source_off(columns: int) -> None:
    out = run("d2048", "--explain", columns=columns).stdout
    assert "…" not in out
    words = " ".join(out.split())
    assert "round(20,071.625)" in words
    assert "https://github.com/marin-community/marin/issues/8435#issuecomment-5335872267" in words
    assert "rav-ladder-d1024" not in words  # only sources that this rung uses


def test_json_with_explain_adds_formulas_and_addresses() -> None:
    result = json.loads(run("d768", "--json", "--explain").stdout)
    assert list(result) == [*CONTRACT_KEYS, "explain", "sources"]
    steps = next(row for row in result["explain"] if row["quantity"] == "steps")
    assert steps["value"] == 11_420
    assert steps["formula"] == "max(1, round(791 · active / tokens per step)) = round(11,420.062)"
    assert "launch_scaling_ladder.py" in steps["source"]


def test_quiet_leaves_the_table_alone() -> None:
    loud, quiet = run("d768").stdout, run("d768", "--quiet").stdout
    assert "d768 at scale full" in loud
    assert quiet.strip() in loud
    assert "conventions" not in quiet


@pytest.mark.parametrize(("arguments", "word"), [(["d4096x"], "d6144"), (["d768", "--scale", "micro"], "full")])
def test_what_cannot_be_planned_is_a_usage_error(arguments: list[str], word: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, UsageError)
    assert word in str(result.exception)
    assert result.stdout == ""


def test_the_example_of_the_help_runs() -> None:
    text = run("--help").stdout
    assert "Show every resolved number" in text
    example = next(line for line in text.splitlines() if "Example:" in line)
    program, command, *arguments = shlex.split(example.split("Example:")[1].strip(" │"))
    assert (program, command) == ("marin-repro", "plan")
    assert run(*arguments).exit_code == 0


LOADED = "import sys; from repro.ladder.recipe import resolve_recipe; resolve_recipe('d6144'); {}print(*sys.modules)"


def loaded(extra: str) -> set[str]:
    """Top-level modules of a fresh interpreter that has imported the command, resolved a recipe and run `extra`."""
    code = "import repro.cli.plan; " + LOADED.format(extra)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in out.split()}


def test_planning_loads_no_array_library() -> None:
    assert not loaded("") & {"jax", "numpy", "pandas", "scipy", "matplotlib"}


def test_the_test_above_can_fail() -> None:
    assert "numpy" in loaded("import numpy; ")


def test_a_device_is_answered_with_hours_and_cost_without_jax() -> None:
    out = run("d768", "--device", "h200", "--count", "8", "--price", "2.5").stdout
    assert "On 8 x H200, at 13.6% of the peak (published for d2048 on GB200):" in out
    assert "14.1 hours, 113 device-hours" in out
    assert "cost: 283" in out
    made = json.loads(run("d768", "--device", "H200", "--count", "8", "--mfu", "0.4", "--json").stdout)["estimate"]
    assert (made["count"], made["mfu"], made["mfu_source"], made["cost"]) == (8, 0.4, "given", None)
    script = "import sys; from repro.cli import main; main.exit_code(['plan', 'd768', '--device', 'H200', '--quiet'])"
    code = f"{script}; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("option", ["--count", "--mfu", "--price"])
def test_options_of_a_device_need_one(option: str) -> None:
    assert f"{option} needs --device" in str(run("d768", option, "1").exception)


def test_a_mesh_fills_what_the_contract_leaves_open() -> None:
    toy = str(Path(__file__).parent.parent / "ladder" / "toy.toml")
    result = json.loads(run("d768", "--scale", toy, "--mesh", "1x2", "--no-compile", "--json").stdout)
    memory, sent = result["memory_per_device"], result["communication_per_step"]
    assert memory["mesh"] == {"replica": 1, "data": 1, "expert": 2}
    assert memory["per_host"]["parameters"] == 4 * memory["parameters"]
    assert memory["compiled_for_cpu"] is None
    assert 0 < sent["dispatch_combine"] < sent["dispatch_combine_without_latent"]
    assert list(result["time_per_step"]["bounds"]) == ["H100", "H200", "B200", "GB200"]
    assert result["measured"] == []
    table = run("d768", "--scale", toy, "--mesh", "1x2", "--no-compile", columns=160).stdout
    for heading in ("Memory on 1 replica x 1 data x 2 expert = 2 devices", "Bytes that leave a device in a step"):
        assert heading in table
