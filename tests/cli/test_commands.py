"""Every command as a user's process: what it prints, what it leaves behind, and how it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.record.facts import load_record
from repro.record.lock import LOCK

PROGRAM = Path(sys.executable).with_name("marin-repro")
COMMANDS = {"plan": ("d6144",), "fit": (), "audit": (), "reproduce": ()}


def run(*arguments: object, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
        check=False,
    )
    assert result.returncode == code, result.stderr
    return result


def refusal(*arguments: object, cwd: Path | None = None) -> str:
    """The one message of a command that leaves with 2: the last line, after whatever it had said it was doing."""
    said = run(*arguments, code=2, cwd=cwd).stderr
    assert "Traceback" not in said
    assert said.count("marin-repro: ") == 1
    message = said[said.index("marin-repro: ") :]
    assert len(message.strip().splitlines()) <= 2
    return message


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A copy of the built-in record, never locked, to be damaged."""
    folder = shutil.copytree(load_record().folder, tmp_path / "record", ignore=shutil.ignore_patterns(LOCK))
    return Path(folder)


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example_that_runs(command: str, tmp_path: Path) -> None:
    lines = run(command, "--help").stdout
    example = lines.split("Example: marin-repro ")[1].split("\n\n")[0].split()
    run(*example, code=1 if "--fail-on" in example else 0, cwd=tmp_path)


@pytest.mark.parametrize(("command", "arguments"), COMMANDS.items())
def test_json_is_one_object_and_nothing_else(command: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run(command, *arguments, "--json", cwd=tmp_path)
    assert isinstance(json.loads(result.stdout), dict)


def test_audit_with_json_and_without_out_writes_nothing(tmp_path: Path) -> None:
    run("audit", "--json", cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    for command in ("audit", "reproduce"):
        result = run(command, "--quiet", "--out", tmp_path / command)
        assert (result.stdout, result.stderr) == ("", "")


def test_version_is_the_packages() -> None:
    from repro import __version__

    assert run("--version").stdout == f"marin-repro {__version__}\n"


def test_reproduce_says_five_things_and_does_nothing_twice(tmp_path: Path) -> None:
    first = run("reproduce", cwd=tmp_path)
    labels = [line.split(":")[0] for line in first.stdout.splitlines()]
    assert labels == ["claims", "relations", "findings", "forecast", "report"]
    folder = tmp_path / "reproduction"
    assert (folder / "index.html").is_file()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*") if path.name != "index.html"}
    second = run("reproduce", cwd=tmp_path)
    assert second.stderr.count("unchanged") == 3
    assert second.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (folder / "audit" / "report.md").write_text("edited")
    third = run("reproduce", cwd=tmp_path)
    assert third.stderr.count("unchanged") == 2
    assert (folder / "audit" / "report.md").read_text() != "edited"
    assert run("reproduce", "--force", cwd=tmp_path).stderr.count("unchanged") == 0


def test_the_index_links_only_what_is_there(tmp_path: Path) -> None:
    run("reproduce", "--quiet", cwd=tmp_path)
    folder = tmp_path / "reproduction"
    links = [part.split('"')[0] for part in (folder / "index.html").read_text().split('href="')[1:]]
    assert "audit/report.html" in links
    assert all((folder / link).is_file() for link in links)


def test_two_audits_of_one_record_are_equal_to_the_byte(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run("audit", "--quiet", "--out", tmp_path / name)
    for file in ("report.json", "report.html", "report.md"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize(("severity", "code"), [("never", 0), ("error", 1), ("note", 1)])
def test_fail_on_turns_findings_into_exit_code_1(severity: str, code: int, tmp_path: Path) -> None:
    run("audit", "--json", "--fail-on", severity, code=code, cwd=tmp_path)


# Bad input


def test_an_unknown_rung_names_the_nearest() -> None:
    assert "d2048" in refusal("plan", "d2049")


def test_wrong_usage_is_one_line() -> None:
    assert "RUNG" in refusal("plan")
    assert "--wrong" in refusal("audit", "--wrong")
    assert "nonsense" in refusal("nonsense")


@pytest.mark.parametrize("command", ["fit", "audit", "reproduce"])
def test_a_missing_record_is_named(command: str, tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(command, "--record", tmp_path / "nowhere", cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_changed_byte_names_its_file(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(load_record().folder, tmp_path / "record"))
    replace_in(folder / "ladder_grid.csv", "d768", "d769")
    assert "ladder_grid.csv" in refusal("audit", "--record", folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


Damage = Callable[[Path], None]


def truncate_claims(record: Path) -> None:
    file = record / "claims.json"
    file.write_bytes(file.read_bytes()[:-500])


def drop_a_source(record: Path) -> None:
    content = json.loads((record / "claims.json").read_text())
    del content["claims"][3]["source"]
    (record / "claims.json").write_text(json.dumps(content))


def put_nan_in_the_grid(record: Path) -> None:
    file = record / "ladder_grid.csv"
    lines = file.read_text().splitlines()
    lines[5] = ",".join([*lines[5].split(",")[:-1], "nan"])
    file.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (truncate_claims, ["claims.json", "line"]),
        (drop_a_source, ["claims.json, claim ", "source is missing"]),
        (put_nan_in_the_grid, ["ladder_grid.csv, line 6", "loss"]),
    ],
)
def test_a_malformed_record_names_file_entry_and_field(
    damage: Damage, names: list[str], record: Path, tmp_path: Path
) -> None:
    damage(record)
    message = refusal("audit", "--record", record, "--out", tmp_path / "out")
    assert all(name in message for name in names), message
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("kept")
    for command in ("audit", "reproduce", "fit"):
        assert "file" in refusal(command, "--out", blocked / "out")
    assert blocked.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [blocked]


def test_an_unknown_severity_lists_those_there_are() -> None:
    assert "warning" in refusal("audit", "--json", "--fail-on", "critical")


# Bugs, interrupts, weight


def in_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_bug_of_ours_shows_its_traceback_and_leaves_with_70() -> None:
    result = in_process(
        "import repro.ladder.recipe as recipe\n"
        "recipe.resolve_recipe = lambda *_: 1 / 0\n"
        "from repro.cli.main import run\n"
        "run(['plan', 'd768'])\n"
    )
    assert result.returncode == 70
    assert "ZeroDivisionError" in result.stderr
    assert "bug of ours" in result.stderr


def test_an_interrupt_leaves_with_130() -> None:
    result = in_process(
        "import repro.ladder.recipe as recipe\n"
        "def interrupt(*_): raise KeyboardInterrupt\n"
        "recipe.resolve_recipe = interrupt\n"
        "from repro.cli.main import run\n"
        "run(['plan', 'd768'])\n"
    )
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


HEAVY = "sorted({'jax', 'flax', 'optax', 'orbax', 'torch', 'lm_eval', 'datasets'} & set(sys.modules))"


@pytest.mark.parametrize("arguments", [["plan", "d6144", "--json"], ["fit", "--json"], ["audit", "--json"]])
def test_an_auditor_never_pays_for_jax(arguments: list[str]) -> None:
    result = in_process(
        "import sys\n"
        "from repro.cli.main import exit_code\n"
        "import audits.check, audits.report.render\n"
        f"code = exit_code({arguments})\n"
        f"print(code, {HEAVY}, file=sys.stderr)\n"
    )
    assert result.stderr.splitlines()[-1] == "0 []"


def test_the_test_of_weight_can_fail() -> None:
    """Its twin: the model itself does load JAX, and the same expression sees it."""
    result = in_process(f"import sys\nimport marin_model.transport\nprint({HEAVY})\n")
    assert "jax" in result.stdout


def test_the_names_we_import_are_ours_alone() -> None:
    """`evals`, `repro` and `audits` are also names of packages on PyPI; two of one name would shadow each other."""
    from importlib.metadata import packages_distributions

    owners = packages_distributions()
    for name in ("repro", "marin_model", "audits", "evals"):
        others = sorted(set(owners.get(name, [])) - {"marin-repro"})
        assert not others, f"{name} also belongs to {', '.join(others)}: uninstall it"
