from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repro.errors import RecordError
from repro.record.facts import load_record
from repro.record.tables import GridPoint

TOML = Path(__file__).with_name("small_record.toml").read_text()


def add_file(folder: Path, name: str, content: str) -> None:
    entry = TOML[TOML.index("[[file]]") :].replace("ladder_grid.csv", name)
    (folder / "record.toml").write_text((folder / "record.toml").read_text() + entry)
    (folder / name).write_text(content)


def refused(folder: Path) -> str:
    with pytest.raises(RecordError) as caught:
        load_record(folder)
    return str(caught.value)


def test_a_record_of_ones_own_has_whichever_tables_it_has(small: Path) -> None:
    record = load_record(small)
    assert record.run.name == "small"
    assert dict(record.ladder_grid) == {
        "w64": (GridPoint(99, 3.5), GridPoint(199, 3.25)),
        "w128": (GridPoint(199, 3.0),),
    }
    assert record.hero_lineage == ()
    assert record.run_configuration is None
    assert record.claims is None


def test_a_table_that_a_command_needs_is_asked_for_by_name(small: Path) -> None:
    record = load_record(small)
    record.require("ladder_grid.csv")
    with pytest.raises(RecordError, match=r"record small .* has no claims\.json, which this command needs"):
        record.require("claims.json")
    with pytest.raises(RecordError, match=r"record small .* has no mixture_weights\.csv, which this command needs"):
        record.require("ladder_grid.csv", "mixture_weights.csv")


def test_a_step_that_stands_twice_is_left_to_the_fit(small: Path) -> None:
    (small / "ladder_grid.csv").write_text("rung,step,loss\nw64,99,3.5\nw64,99,3.4\n")
    assert [point.loss for point in load_record(small).ladder_grid["w64"]] == [3.4, 3.5]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("rung,step,loss\nw64,99,nan\n", "ladder_grid.csv, line 2, loss: 'nan': should be a finite number"),
        ("rung,step,loss\nw64,99,-inf\n", "line 2, loss: '-inf'"),
        ("rung,step,loss\nw64,99,1e999\n", "line 2, loss"),
        ("rung,step,loss\nw64,99,3.5\nw64,199.5,3.2\n", "line 3, step: '199.5'"),
        ("rung,step,loss\nw64,99,\n", "line 2: loss is empty or has no column."),
        ("rung,step,loss\nw64,99,3.5\nw64,19", "line 3: 2 cells under 3 columns"),
        ("rung,step,los\nw64,99,3.5\n", "line 1: unknown column 'los'; did you mean 'loss'?"),
        ("rung,step\nw64,99\n", "line 2: loss is empty or has no column."),
        ("rung,step,loss,loss\nw64,99,3.5,3.5\n", "line 1: column 'loss' stands twice"),
        ('rung,step,loss\n"w64,99,3.5\n', "not CSV"),
        ("", "ladder_grid.csv: empty"),
    ],
)
def test_a_malformed_table_names_line_and_column(small: Path, content: str, words: str) -> None:
    (small / "ladder_grid.csv").write_text(content)
    assert words in refused(small), refused(small)


def test_a_table_that_is_not_utf8_is_an_error(small: Path) -> None:
    (small / "ladder_grid.csv").write_bytes(b"rung,step,loss\nw\xe9,99,3.5\n")
    assert "ladder_grid.csv: not UTF-8 at byte 16" in refused(small)


def test_a_table_as_a_spreadsheet_writes_it_is_read(small: Path) -> None:
    (small / "ladder_grid.csv").write_bytes(b"\xef\xbb\xbfrung,step,loss\r\nw64,99,3.5\r\n")
    assert load_record(small).ladder_grid == {"w64": (GridPoint(99, 3.5),)}


def test_a_repeated_row_is_an_error(small: Path) -> None:
    add_file(small, "ladder_eval_times.csv", "rung,step,unix_time\nw64,99,1.5\nw64,99,2.5\n")
    assert "ladder_eval_times.csv: rung and step ('w64', 99) stands twice (again as entry 2)" in refused(small)


def test_nan_in_a_mapping_of_a_table_is_an_error(small: Path) -> None:
    header = "cell,cluster,quality,cluster_name,weights.a.phase0,weights.a.phase1,tokens.s\n"
    add_file(small, "mixture_weights.csv", header + "c0,0,0,News,0.5,nan,10\n")
    assert "mixture_weights.csv, line 2, weights.a.phase1: 'nan'" in refused(small)


def test_an_empty_cell_of_a_mapping_is_an_error(small: Path) -> None:
    header = "rung,step,fraction,macro_loss,losses.ptb,losses.gab\n"
    add_file(small, "ladder_domains.csv", header + "w64,99,0.5,3.0,3.0,\n")
    assert "ladder_domains.csv, line 2, losses.gab: None" in refused(small)


def test_a_misnamed_table_is_answered_with_the_nearest(small: Path) -> None:
    (small / "ladder_grids.csv").write_text("rung,step,loss\n")
    assert "unknown table 'ladder_grids.csv'; did you mean 'ladder_grid.csv'?" in refused(small)


def test_a_table_without_a_source_is_an_error(small: Path) -> None:
    (small / "ladder_rungs.csv").write_text("rung\n")
    assert "ladder_rungs.csv has no [[file]] entry" in refused(small)


def test_claims_need_no_entry_since_each_names_its_source(small: Path) -> None:
    (small / "claims.json").write_text("[]")
    record = load_record(small)
    record.require("claims.json")
    assert record.claims == b"[]"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"first": {"run": "a", "as_of"', "run_configuration.json: not JSON at line 1"),
        ('{"first": {"run": "a", "as_of": "now", "leaves": {"lr": NaN}}}', "NaN is not a number of JSON"),
        ('{"first": {"run": "a", "as_of": "now"}}', "run_configuration.json: first.leaves is missing."),
        ('{"frist": {}}', "unknown key 'frist'; did you mean 'first'?"),
        ('{"first": {"run": "a", "asof": "", "leaves": {}, "as_of": ""}}', "'first.asof'; did you mean 'as_of'?"),
        ("[]", "must be an object"),
    ],
)
def test_a_malformed_configuration_names_its_place(small: Path, content: str, words: str) -> None:
    add_file(small, "run_configuration.json", content)
    assert words in refused(small)


def test_the_latest_configuration_lies_over_the_first(small: Path) -> None:
    first = {"run": "a", "as_of": "1", "leaves": {"model": {"width": 64, "depth": 2}, "lr": 0.1}}
    latest = {"run": "b", "as_of": "2", "leaves": {"model": {"depth": 3}, "wd": 0.02}}
    add_file(small, "run_configuration.json", json.dumps({"first": first, "latest": latest}))
    configuration = load_record(small).run_configuration
    assert configuration is not None
    assert configuration.resolved() == {"model": {"width": 64, "depth": 3}, "lr": 0.1, "wd": 0.02}
    assert configuration.resolved("first") == first["leaves"]
    assert configuration.value("model.depth", at="first") == 2
    with pytest.raises(KeyError, match="wd"):
        configuration.value("wd", at="first")


def test_lists_of_the_lineage_are_split(small: Path) -> None:
    header = (
        "run_id,start_step,end_step_exclusive,state,summary_step,last_heartbeat,launched,launch_commits,why_started,"
        "why_ended,archived_evaluations,mixture_stage_starts\n"
    )
    add_file(small, "hero_lineage.csv", header + "a,0,,running,9,x,y,abc; def,launch,open,1,0;50\n")
    (segment,) = load_record(small).hero_lineage
    assert (segment.end_step_exclusive, segment.launch_commits, segment.mixture_stage_starts) == (
        None,
        ("abc", "def"),
        (0, 50),
    )
    text = (small / "hero_lineage.csv").read_text()
    (small / "hero_lineage.csv").write_text(text.replace("0;50", "0;fifty"))
    assert "hero_lineage.csv, a, mixture_stage_starts: '0;fifty' is no list of steps" in refused(small)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ("a,0,50 b,40,", "b: it begins at step 40, and a above it has its end at 50."),
        ("b,50, a,0,50", "a: it begins at step 0, and b above it has no end."),
        ("a,0, b,50,", "b: it begins at step 50, and a above it has no end."),
        ("b,50,90 a,0,50", "a: it begins at step 0, and b above it has its end at 90."),
        ("a,50,50 b,50,", "a: it ends at 50, and begins at 50."),
    ],
)
def test_a_step_of_two_runs_is_an_error_that_names_the_row(small: Path, runs: str, words: str) -> None:
    header = "run_id,start_step,end_step_exclusive,state,summary_step,last_heartbeat,launched,archived_evaluations\n"
    add_file(small, "hero_lineage.csv", header + "".join(f"{run},running,99,x,y,1\n" for run in runs.split()))
    assert f"hero_lineage.csv, {words}" in refused(small)


def test_a_lineage_may_lack_a_run(small: Path) -> None:
    header = "run_id,start_step,end_step_exclusive,state,summary_step,last_heartbeat,launched,archived_evaluations\n"
    add_file(small, "hero_lineage.csv", f"{header}a,0,50,crashed,99,x,y,1\nc,70,,running,99,x,y,1\n")
    assert [one.run_id for one in load_record(small).hero_lineage] == ["a", "c"]


def test_a_folder_that_is_not_there_or_no_record_is_an_error(tmp_path: Path) -> None:
    assert "there is no such folder" in refused(tmp_path / "nowhere")
    assert "it has no record.toml" in refused(tmp_path)
    assert "name too long" in refused(tmp_path / ("x" * 5000))


def test_a_number_of_thousands_of_digits_is_an_error_and_no_crash(small: Path) -> None:
    (small / "ladder_grid.csv").write_text(f"rung,step,loss\nw64,{'9' * 5000},3.5\n")
    assert "ladder_grid.csv, line 2, step" in refused(small)
    (small / "record.toml").write_text(TOML + f"[forecast]\ntarget_steps = {'9' * 5000}\n")
    assert "record.toml: not TOML" in refused(small)


def test_loading_a_record_needs_neither_pandas_nor_numpy() -> None:
    code = "import sys; from repro.record.facts import load_record; load_record(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pydantic" in loaded
    assert not {"pandas", "numpy", "scipy", "jax"} & set(loaded)
