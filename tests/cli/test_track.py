"""The command `track`: the contract's keys, the page, a record of one's own, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from repro.cli.main import exit_code
from repro.record.facts import load_record

BUILT_IN = load_record().folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = exit_code(["track", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def copy(folder: Path) -> Path:
    """The built-in record as one's own, not locked."""
    shutil.copytree(BUILT_IN, folder, ignore=shutil.ignore_patterns("record.lock.json", "__pycache__"))
    return folder


def test_json_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json", "--quiet")
    found = json.loads(out)
    keys = {
        "step",
        "fraction",
        "tokens",
        "measured",
        "predicted",
        "residual",
        "band",
        "segment",
        "comparable",
        "why_not",
    }
    assert code == 0
    assert len(found["points"]) == 73
    assert all(set(point) == keys for point in found["points"])
    assert found["points"][-1]["residual"] == pytest.approx(-0.00117, abs=5e-6)
    assert [one["claim"] for one in found["trends"]["grad_norm"]["statements"]] == ["GN-1", "GN-3", "GN-4", "GN-5"]
    assert {one["claim"] for one in found["pace"]["plans"]} == {"DUR-1", "DUR-3"}
    assert [one["claim"] for one in found["conditions"]][-3:] == ["FC-8.context", "FC-8.mixture", "FC-8.tokens"]
    assert found["frozen"] is None
    marks = found["forecast"]["marks"]  # all that the figure draws, beyond the last evaluation too
    assert [mark["fraction"] for mark in marks] == pytest.approx([0.05 * number for number in range(1, 21)])
    assert marks[-1]["prediction"] == found["forecast"]["final"]
    assert marks[-1]["band"] == found["forecast"]["final_band"]
    measured, forecast = load_record().file("hero_evaluations.csv"), load_record().file("ladder_grid.csv")
    for part, file in (("evaluations_from", measured), ("forecast_from", forecast)):
        assert found[part]["file"] == file.name
        assert [one["source"] for one in found[part]["sources"]] == list(file.sources)
        assert [one["address"] for one in found[part]["sources"]] == list(file.urls)
        assert (found[part]["left_out"], found[part]["checked"]) == (file.left_out, file.checked)


def test_the_page_stands_alone_and_is_the_same_each_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for folder in ("a", "b"):
        assert run(capsys, "--quiet", "--out", str(tmp_path / folder))[0] == 0
    page = (tmp_path / "a" / "track.html").read_text()
    assert page == (tmp_path / "b" / "track.html").read_text()
    assert "<script" not in page
    assert not re.search(r'(src|srcset|data|poster)="|url\((?!#)|@import|<link', page)
    assert 'id="residuals-title"' in page
    done, planned = page.index("Where the run stopped being"), page.index("Where it would, as planned now")
    assert done < page.index("is hero_from_108000 since step 108,000") < planned < page.index("from step 312,192, as")
    for name in ("hero_evaluations.csv", "ladder_grid.csv"):  # the record's own caveats stand beside the figure
        file = load_record().file(name)
        assert all(text in page for text in (name, file.left_out, file.checked, *file.urls))
    assert (tmp_path / "a" / "track.json").read_text() == (tmp_path / "b" / "track.json").read_text()


def test_every_statement_is_told_with_its_quantity_and_its_day(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "--quiet", "--out", str(tmp_path))
    page = " ".join(re.sub(r"<[^>]+>", "", (tmp_path / "track.html").read_text()).split())
    out = " ".join(out.split())
    assert code == 0
    # An observation of October and an alert of September were not said beforehand.
    assert "What was said of its course" in page
    assert "2026-10-01T01:46:53Z where the gradient norm peaks: 47% to 100%" in page
    assert "2026-09 drop fraction that raises an alert: 0.07. Not reached: after warm-up" in page
    assert "drop fraction that raises an alert: 0.07 (DROP-13, 2026-09): not reached" in out
    assert "Announced, planned duration: about 100 days, that is 2026-11-28;" in page
    assert "Announced, planned end of pretraining: 2026-12-01; calendar" in page


def test_a_hostile_record_is_shown_as_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record, nasty = copy(tmp_path / "record"), "<script>alert(1)</script>"
    lineage = record / "hero_lineage.csv"
    lineage.write_text(lineage.read_text().replace("gates and router decay at 0.02", nasty))
    claims = json.loads((record / "claims.json").read_text())
    for source in claims["sources"]:
        source["address"] = "javascript:alert(2)"
    for claim in claims["claims"]:
        claim["quote"] = '"><img src=x onerror=alert(3)>'
    (record / "claims.json").write_text(json.dumps(claims))
    assert run(capsys, "--quiet", "--record", str(record), "--out", str(tmp_path / "out"))[0] == 0
    page = (tmp_path / "out" / "track.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "javascript:" not in page
    assert "<img" not in page
    assert "javascript:" not in (tmp_path / "out" / "track.json").read_text()


def test_names_of_a_record_are_no_commands_to_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record = copy(tmp_path / "record")
    lineage = record / "hero_lineage.csv"
    changed = lineage.read_text().replace("hero-main-step121638", "he\x1b[31mro\x07").replace("0;108000;", "0;100000;")
    lineage.write_text(changed.replace("2026-09-23T21:40Z", "\x1b]0;title"))
    code, out, err = run(capsys, "--record", str(record))
    assert code == 0
    assert "he�[31mro� has a mixture stage" in " ".join(out.split())
    assert "is no date that can be read" in err
    assert not any(letter < " " and letter != "\n" for letter in out + err)


def test_a_record_without_claims_lineage_or_configuration_is_still_tracked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = copy(tmp_path / "record")
    gone = ("hero_lineage.csv", "hero_windows.csv", "hero_train.csv", "run_configuration.json", "claims.json")
    about = (record / "record.toml").read_text()
    for name in gone:
        (record / name).unlink()
        about = re.sub(rf'\[\[file\]\]\nname = "{re.escape(name)}"\n.*?(?=\n\[|\Z)', "", about, flags=re.DOTALL)
    (record / "record.toml").write_text(about)
    code, out, err = run(capsys, "--json", "--record", str(record), "--out", str(tmp_path / "out"))
    assert code == 0, err
    found = json.loads(out)
    assert found["pace"] is None
    assert "Whether the context changed is not checked" in err
    assert [point["step"] for point in found["points"] if point["comparable"]][-1] == 107_999


def test_output_inside_the_record_and_points_without_a_forecast_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = copy(tmp_path / "record")
    code, _, err = run(capsys, "--record", str(record), "--out", str(record / "track"))
    assert (code, "lies inside the record" in err) == (2, True)
    code, _, err = run(capsys, "--points", "measured.csv")
    assert (code, "--frozen" in err) == (2, True)


def test_no_jax_is_loaded(tmp_path: Path) -> None:
    import subprocess

    program = (
        "import sys; from repro.cli.main import exit_code; "
        f"code = exit_code(['track', '--quiet', '--json', '--out', {str(tmp_path)!r}]); "
        "sys.exit(code or 'jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, timeout=60).returncode == 0
