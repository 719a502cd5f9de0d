"""Two records side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.errors import RecordError
from repro.record.diff import Difference, diff
from repro.record.facts import load_record
from repro.record.fetch import Result
from repro.record.lock import LOCK
from tests.record.world import World
from tests.servers.github import comment

Bring = Callable[..., Result]


@pytest.fixture
def compare(bring: Bring, tmp_path: Path) -> Callable[..., Difference]:
    """Fetches the record as it is now once more, and compares it with `record`."""

    def run(**options: bool) -> Difference:
        bring("now")
        return diff(load_record(tmp_path / "record"), load_record(tmp_path / "now"), **options)

    return run


def test_equal_records_do_not_differ(bring: Bring, compare: Callable[..., Difference]) -> None:
    bring()
    found = compare(text=True)
    assert not found
    assert found.as_json() == {"artifacts": [], "comments": [], "facts": [], "notes": []}


def test_comments_are_told_one_by_one_with_their_text(
    public: World, bring: Bring, compare: Callable[..., Difference]
) -> None:
    bring()
    comments = public.github.comments[8435]
    comments[0]["body"] = "18.75T tokens"
    comments[1] = comment("marin-community/marin", 8435, 3, "launched again")
    public.github.issues[8435]["body"] = "Another plan."
    found = compare(text=True)
    assert [(one.comment, one.what) for one in found.comments] == [
        *(("issue", "changed"), ("1", "changed"), ("2", "gone"), ("3", "added"))
    ]
    by_comment = {one.comment: one for one in found.comments}
    assert by_comment["1"].text == "@@ -1 +1 @@\n-18.0T tokens\n+18.75T tokens"
    assert by_comment["3"].text == "@@ -0,0 +1 @@\n+launched again"
    assert by_comment["1"].url == "https://github.com/marin-community/marin/issues/8435#issuecomment-1"
    assert found.artifacts == ()
    assert all(one.text == "" for one in compare().comments)


def test_what_changes_without_meaning_is_no_difference(
    public: World, bring: Bring, compare: Callable[..., Difference]
) -> None:
    bring()
    public.github.issues[8435]["reactions"]["total_count"] = 70
    public.github.issues[8435]["updated_at"] = "2026-12-01T00:00:00Z"
    public.store.objects["note/index.html"] = b"<html><script>1</script><p>Note</p>\n</html>"
    assert not compare()


def test_other_artifacts_are_told_by_their_parts(
    public: World, bring: Bring, compare: Callable[..., Difference]
) -> None:
    bring()
    public.store.objects["final/results.csv"] = b"a,b\n1,30\n"
    public.store.objects["note/index.html"] = b"<html><p>Another note</p>\n</html>"
    public.wandb.runs[0].config = {"a": {"b": 2}}
    found = {one.id: one for one in compare(text=True).artifacts}
    assert {id: one.how for id, one in found.items()} == {
        **{"results": "8 → 9 bytes", "page": "text changed", "run": "config changed"}
    }
    assert found["page"].text == "@@ -1 +1 @@\n-Note\n+Another note"
    assert found["results"].text.endswith(" a,b\n-1,2\n+1,30")


def test_artifacts_that_came_went_and_moved(bring: Bring, tmp_path: Path) -> None:
    bring()
    other = Path(shutil.copytree(tmp_path / "record", tmp_path / "other", ignore=shutil.ignore_patterns(LOCK)))
    toml = (other / "record.toml").read_text()
    toml = toml.replace('id = "page"', 'id = "site"').replace("a/launch.py", "a/other.py")
    (other / "record.toml").write_text(toml)
    found = diff(load_record(tmp_path / "record"), load_record(other))
    assert [(one.id, one.what) for one in found.artifacts] == [
        *(("code", "changed"), ("page", "gone"), ("site", "added"))
    ]
    assert found.artifacts[0].how.startswith("address marin-community/marin:a/launch.py → ")
    assert found.notes == (f"{other} was never fetched: what its artifacts contain is not compared.",)


def test_what_only_one_side_brought_is_told(public: World, bring: Bring, compare: Callable[..., Difference]) -> None:
    bring()
    del public.store.objects["final/results.csv"]
    (gone,) = compare().artifacts
    assert (gone.id, gone.what, gone.how) == ("results", "gone", "no longer fetched")


def test_damaged_bytes_are_not_compared(public: World, bring: Bring, tmp_path: Path) -> None:
    bring()
    public.github.comments[8435][0]["body"] = "18.75T tokens"
    bring("now")
    (thread,) = (tmp_path / "now").rglob("8435.json")
    thread.write_bytes(b"{}")
    found = diff(load_record(tmp_path / "record"), load_record(tmp_path / "now"), text=True)
    assert [one.comment for one in found.comments] == ["1"]
    assert "has changed since it was locked" in found.notes[0]


# Facts


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the built-in record, not locked."""
    built_in = load_record().folder
    return Path(shutil.copytree(built_in, tmp_path / "copy", ignore=shutil.ignore_patterns(LOCK)))


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_fact_is_told_old_to_new_with_both_sources(copy: Path) -> None:
    before = load_record()
    rung, points = next(iter(before.ladder_grid.items()))
    step, loss = points[0]
    replace_in(copy / "ladder_grid.csv", f"{rung},{step},{loss}", f"{rung},{step},9.5")
    replace_in(copy / "record.toml", "snapshot = 2026-10-07", "snapshot = 2026-10-08")
    found = {(one.table, one.key, one.field): one for one in diff(before, load_record(copy)).facts}
    grid = found["ladder_grid.csv", f"{rung}, {step}", "loss"]
    assert (grid.old, grid.new) == (loss, 9.5)
    assert grid.old_source == grid.new_source == "; ".join(before.file("ladder_grid.csv").sources)
    snapshot = found["record.toml", "[run]", "snapshot"]
    assert (snapshot.old, snapshot.new) == ("2026-10-07", "2026-10-08")
    assert len(found) == 2


def test_a_row_that_came_or_went_is_told(copy: Path) -> None:
    lines = (copy / "hero_lineage.csv").read_text().splitlines()
    (copy / "hero_lineage.csv").write_text("\n".join(lines[:-1]) + "\n")
    facts = diff(load_record(), load_record(copy)).facts
    assert {one.key for one in facts} == {"hero-fa4sm100-nomask-step146k"}
    assert all(one.new is None and one.new_source == "" for one in facts)


def test_every_table_of_the_built_in_record_equals_itself_and_differs_from_none(copy: Path) -> None:
    before = load_record()
    assert not diff(before, load_record(copy))
    for name in before.files:
        (copy / name.name).unlink()
    toml = (copy / "record.toml").read_text()
    head, *entries = toml.split("[[")
    (copy / "record.toml").write_text(
        head + "".join(f"[[{part}" for part in entries if not part.startswith(("file]]", "training_data]]")))
    )
    (copy / "claims.json").unlink(missing_ok=True)
    gone = {one.table for one in diff(before, load_record(copy)).facts}
    assert gone == {file.name for file in before.files}


def test_a_record_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not a record"):
        load_record(tmp_path)
