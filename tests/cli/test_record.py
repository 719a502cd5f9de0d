"""`fetch`, `verify` and `diff` as a user runs them: exit codes, output, files, and the nightly workflow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer.main

from repro.cli.main import app, exit_code
from repro.record.artifact_lock import read_artifacts
from repro.record.lock import LOCK
from repro.record.services.errors import TOKEN_VARIABLES
from repro.record.services.http import Client
from tests.record.world import OPEN, TOML, World, running, write_record

ROOT = Path(__file__).parent.parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "verify.yml"


@pytest.fixture(scope="module")
def stand_ins() -> Iterator[World]:
    with running() as world:
        yield world


@pytest.fixture
def public(stand_ins: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The stand-ins, their environment, a working folder with a record.toml that names them, and no real pauses."""
    for name in (*TOKEN_VARIABLES, "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        **stand_ins.environment,
        "MARIN_REPRO_CACHE": str(tmp_path / "cache"),
        "COLUMNS": "120",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "sleep", lambda seconds: None)  # type: ignore[index]
    monkeypatch.chdir(tmp_path)
    write_record(tmp_path / "record")
    with stand_ins.put_back():
        yield stand_ins


Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process; gives its standard output and asserts its exit code."""

    def once(line: str, code: int = 0, error: bool = False) -> str:
        found = exit_code(line.split())
        said = capsys.readouterr()
        assert found == code, said.err
        return said.err if error else said.out

    return once


# Exit codes


def test_fetch_then_verify_is_green(public: World, run: Run) -> None:
    said = run("fetch")
    assert "artifacts: 9 fetched, 1 not there" in said
    assert "missing: nothing" in said
    assert "not open, as known: store" in said
    said = run("verify --record record")
    assert re.search(r"statistical rerun\s+possible", said)
    assert re.search(r"exact replay\s+not possible\s+store", said)
    assert "9 ok, 1 forbidden" in said


def test_what_changed_or_is_gone_is_1(public: World, run: Run) -> None:
    run("fetch --quiet")
    public.github.comments[8435][0]["body"] = "18.75T tokens"
    said = run("verify --record record", code=1)
    assert "thread: comment 1 changed" in said
    assert "since" not in said  # without a log nothing is known of before
    said = run("verify --record record --text", code=1)
    assert "comment 1\n@@ -1 +1 @@\n-18.0T tokens\n+18.75T tokens\n" in said
    (changed,) = [
        one for one in json.loads(run("verify --record record --text --json", code=1))["artifacts"] if "text" in one
    ]
    assert changed["id"] == "thread"
    run("verify --record record --fail-on gone")
    run("verify --record record --fail-on never")
    del public.store.objects["final/results.csv"]
    run("verify --record record --fail-on gone", code=1)


def test_a_dead_network_is_neither_green_nor_changed(public: World, run: Run) -> None:
    run("fetch --quiet")
    for server in public.servers:
        server.fault("no answer")
    assert "10 unreachable" in run("verify --record record", code=3)
    run("verify --record record --fail-on unreachable", code=1)
    assert "missing: launcher" in run("fetch --record other --only github-file", code=3)
    run("fetch --update", code=3)
    run("fetch --commit main", code=3)


def test_a_login_page_before_everything_is_not_green(public: World, run: Run) -> None:
    run("fetch --quiet")
    for server in public.servers:
        server.fault("login page")
    assert "10 unverifiable" in run("verify --record record", code=3)


def test_a_change_beside_a_dead_service_is_1(public: World, run: Run) -> None:
    run("fetch --quiet")
    public.wandb.fault("no answer")
    public.store.objects["final/results.csv"] = b"a,b\n1,3\n"
    run("verify --record record", code=1)
    run("fetch --update", code=3)


def test_what_is_missing_is_1_and_named(public: World, run: Run) -> None:
    del public.store.objects["final/results.csv"]
    assert "missing: results" in run("fetch", code=1)
    said = run("fetch --record second --offline", code=1)
    assert "not in the cache" in said
    write_record(Path("third"))
    assert "missing: results" in run("fetch --record third --offline", code=1)


def test_records_that_differ_are_1(public: World, run: Run) -> None:
    run("fetch --quiet")
    write_record(Path("second"))
    run("fetch --record second --quiet")
    assert run("diff record second") == "no difference\n"
    public.github.comments[8435][0]["body"] = "18.75T tokens"
    run("fetch --record second --update --quiet")
    said = run("diff record second --text", code=1)
    assert "-18.0T tokens\n+18.75T tokens" in said
    assert "different: 1 comment" in said
    assert run("diff record second --quiet", code=1) == ""
    found = json.loads(run("diff record second --json", code=1))
    assert found["comments"][0]["comment"] == "1"
    run("diff marin-535b marin-535b")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("verify --fail-on chnaged", "--fail-on 'chnaged': did you mean changed?"),
        ("verify --fail-on ok", "--fail-on 'ok': known are changed, gone"),
        ("verify --record nowhere", "nowhere is not a record: there is no such folder"),
        ("verify --sample 0", "--sample"),
        ("fetch --only github-isue", "--only github-isue: did you mean github-issue?"),
        ("fetch --issue 8435", "--issue '8435' is no issue. Write OWNER/NAME#NUMBER"),
        ("fetch --commit nonsense", "'nonsense' is no commit, branch or tag of marin-community/marin"),
        ("fetch --cache record/record.toml", "cannot be used: "),
        ("diff record", "RECORD_B"),
    ],
)
def test_wrong_input_is_2_and_one_message(public: World, run: Run, line: str, words: str) -> None:
    said = run(line, code=2, error=True)
    assert words in said
    assert len(said.strip().splitlines()) <= 2
    assert "Traceback" not in said


def test_damaged_bytes_in_the_folder_are_2_with_the_mend(public: World, run: Run) -> None:
    run("fetch --quiet")
    path = Path("record") / read_artifacts(Path("record"))["code"].path
    path.write_bytes(b"BETA = 0.8\nSTEPS = 390_251\n")
    assert "Run: marin-repro fetch --record record" in run("verify --record record", code=2, error=True)
    run("fetch --quiet")
    run("verify --record record --quiet")


def test_a_lock_is_enough_to_verify(public: World, run: Run, tmp_path: Path) -> None:
    run("fetch --quiet")
    watched = tmp_path / "watched"
    watched.mkdir()
    for name in ("record.toml", LOCK):
        (watched / name).write_bytes((tmp_path / "record" / name).read_bytes())
    assert "9 ok" in run("verify --record watched")
    public.github.comments[8435][0]["body"] = "18.75T tokens"
    run("verify --record watched", code=1)


# What is written


def test_a_fetched_record_is_audited_by_the_claims_that_its_texts_hold(public: World, run: Run) -> None:
    said = run("fetch")
    assert "derived: claims.json" in said
    claims = json.loads(Path("record/claims.json").read_text())["claims"]
    assert {(one["quantity"], one["value"]) for one in claims} >= {
        ("training.tokens", "18T"),
        ("training.steps", "390251"),
    }
    lock = Path("record", LOCK).read_bytes()
    run("fetch --quiet")
    assert Path("record", LOCK).read_bytes() == lock
    public.github.comments[8435][1]["body"] = "We train on 20T tokens."
    run("fetch --update --quiet")
    report = json.loads(run("audit --record record --json"))
    (found,) = [one for one in report["findings"] if one["quantity"] == "training.tokens"]
    assert len(found["claims"]) == 2
    run("verify --record record --quiet")


def test_claims_that_people_wrote_are_kept(public: World, run: Run) -> None:
    Path("record/claims.json").write_text('{"sources": [], "claims": []}')
    run("fetch --quiet")
    assert Path("record/claims.json").read_text() == '{"sources": [], "claims": []}'


def test_a_text_that_cannot_be_read_costs_its_claims_alone(public: World, run: Run) -> None:
    public.hub.files["vocab.json"] = b"\x80\x04 no JSON"
    public.github.files["a/launch.py"] = b"STEPS = = 1\n"
    said = run("fetch", error=True)
    assert "not read for claims: " in said
    assert "vocab.json: not JSON" in said
    assert json.loads(Path("record/claims.json").read_text())["claims"]


def test_json_has_the_contracts_keys(public: World, run: Run) -> None:
    fetched = json.loads(run("fetch --json"))
    assert fetched["missing"] == []
    assert {one["id"]: one["action"] for one in fetched["artifacts"]}["code"] == "fetched"
    found = json.loads(run("verify --record record --json --report verify.json"))
    assert found == json.loads(Path("verify.json").read_text())
    assert {"id", "kind", "url", "status", "expected", "found", "bytes", "seconds"} <= found["artifacts"][0].keys()
    statuses = ["ok", "changed", "gone", "forbidden", "unreachable", "unverifiable", "skipped"]
    assert list(found["summary"]) == statuses
    assert (found["summary"]["ok"], found["summary"]["forbidden"]) == (9, 1)
    assert set(found["capabilities"]) == {"exact replay", "statistical rerun", "refit", "inspection"}


def test_quiet_is_quiet_and_a_line_is_said_for_each_otherwise(public: World, run: Run) -> None:
    assert run("fetch --quiet") == run("verify --record record --quiet") == ""
    said = run("verify --record record --json", error=True)
    assert sorted(line.split(":")[0] for line in said.splitlines()) == sorted([*OPEN, "store"])


def test_junit_and_the_log_are_written(public: World, run: Run) -> None:
    run("fetch --quiet")
    line = "verify --record record --quiet --junit out/verify.xml --history out/log.jsonl"
    run(line)
    public.store.objects["final/results.csv"] = b"a,b\n1,3\n"
    run(line, code=1)
    suite = ElementTree.parse("out/verify.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("10", "1")
    assert len(Path("out/log.jsonl").read_text().splitlines()) == 20
    del public.store.objects["final/results.csv"]
    assert "(lasting since" in run(line.replace("--quiet ", ""), code=1)


def test_findings_become_annotations_in_github_actions(
    public: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("fetch --quiet")
    public.github.comments[8435][0]["body"] = "18.75T tokens"
    line = "verify --record record --json"
    assert "::error" not in run(line, code=1, error=True)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    said = run(line, code=1, error=True)
    assert "::error title=changed%3A thread::comment 1 changed" in said


def test_what_opened_is_news(public: World, run: Run) -> None:
    run("fetch --quiet")
    public.store.bucket, public.store.objects = "closed", {"store.json": b"{}"}
    assert "store: news: it was forbidden and is now open" in " ".join(run("verify --record record").split())


def test_a_sample_asks_for_so_many_and_the_same_again(public: World, run: Run) -> None:
    run("fetch --quiet")
    first, second, other = (
        [
            one["id"]
            for one in json.loads(run(f"verify --record record --sample 4 {seed} --json"))["artifacts"]
            if one["status"] != "skipped"
        ]
        for seed in ("", "", "--seed 1")
    )
    assert len(first) == 4
    assert first == second != other


# Help and the workflow


@pytest.mark.parametrize("command", ["fetch", "verify", "diff"])
def test_help_ends_with_an_example_that_runs(command: str, public: World, run: Run) -> None:
    text = " ".join(run(f"{command} --help").split())
    example = re.search(r"Example: marin-repro (.*?) (?:Options|Arguments):", text)
    assert example is not None
    line = example[1].replace("marin- community", "marin-community")
    run("fetch --quiet")
    run(line)


def test_help_of_the_app_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom repro.cli.main import exit_code\nexit_code(['--help'])\n"
        "print({'httpx', 'pooch', 'pydantic', 'rich.table', 'huggingface_hub', 'lxml', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "set()"


def test_the_workflow_and_its_copy_are_the_same() -> None:
    (copy,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "nightly.md").read_text(), flags=re.DOTALL)
    assert copy == WORKFLOW.read_text()


def commands(text: str) -> list[list[str]]:
    """The command lines that call us: `run: marin-repro …`, or folded over several lines."""
    folded = re.sub(r"\n\s+(?=--)", " ", text.replace(">-\n", ""))
    return [line.split() for line in re.findall(r"marin-repro ((?:fetch|verify|diff)(?: +[^\s`]+)*)", folded)]


def test_every_option_that_workflow_and_docs_call_exists() -> None:
    known = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    }
    found = commands(WORKFLOW.read_text()) + commands((ROOT / "docs" / "nightly.md").read_text())
    assert len(found) >= 6
    for name, *arguments in found:
        unknown = [part for part in arguments if part.startswith("--") and part not in known[name]]
        assert unknown == []


def test_the_workflows_commands_run(public: World, run: Run) -> None:
    fetch, verify = (" ".join(command) for command in commands(WORKFLOW.read_text()))
    run(fetch)
    run(verify)
    assert Path("verify.xml").is_file()
    assert Path("verify.json").is_file()
    public.github.comments[8435][0]["body"] = "18.75T tokens"
    run(fetch)
    run(verify, code=1)


def test_the_built_in_profile_is_fetched_where_the_folder_is_new(public: World, run: Run) -> None:
    said = json.loads(run("fetch --record new --commit 12d8b6f0 --only wandb-report --json", code=1))
    assert said["resolved"]["how"] == "short commit"
    assert len(said["artifacts"]) > 50
    assert Path("new/record.toml").read_text().startswith("# Written by marin-repro fetch.")
    assert TOML not in Path("new/record.toml").read_text()
