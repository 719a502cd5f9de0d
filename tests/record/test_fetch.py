"""A record from nothing: what fetch brings, keeps, locks and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.errors import NoAnswerError, OutputError, RecordError, UsageError
from repro.record import profile
from repro.record.artifact_lock import LockedArtifact, read_artifacts, read_bytes, read_resolved
from repro.record.artifacts import read_contents
from repro.record.cache import open_cache
from repro.record.facts import load_record
from repro.record.fetch import Result, Wish, check_names, fetch
from repro.record.lock import LOCK, write_lock
from repro.record.profile import as_toml, built_in_folder, own_steps, read_profile, with_commit, with_issue
from tests.record.world import CODE, OPEN, TOML, World, write_record
from tests.servers.github import COMMIT, comment
from tests.servers.hub import REVISION

Bring = Callable[..., Result]
OTHER = "a1" * 20


def actions(result: Result) -> dict[str, str]:
    return {one.status.artifact.id: one.action for one in result.fetched}


def why(result: Result, id: str) -> str:
    return next(one.status.why for one in result.fetched if one.status.artifact.id == id)


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# What comes


def test_everything_open_is_brought_and_locked_with_its_hashes(bring: Bring, tmp_path: Path) -> None:
    result = bring()
    assert actions(result) == {**dict.fromkeys(OPEN, "fetched"), "store": "not there"}
    assert not result.missing
    locked = read_artifacts(tmp_path / "record")
    assert set(locked) == set(OPEN)
    assert read_bytes(tmp_path / "record", locked["code"]) == CODE
    assert locked["code"].publisher.startswith("git-sha1:")
    assert locked["code"].revision == COMMIT
    assert locked["results"].publisher == "crc32c:499d87c5"
    assert locked["results"].etag
    assert set(locked["thread"].canonical) == {"issue", "comment 1", "comment 2"}
    assert "author's id" in locked["thread"].canonical_form
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry.locked_at) for entry in locked.values())


def test_a_fetched_record_is_a_record_and_its_lock_moves_with_it(bring: Bring, tmp_path: Path) -> None:
    bring()
    moved = (tmp_path / "record").rename(tmp_path / "moved")
    assert load_record(moved).run.name == "small"
    before = (moved / LOCK).read_bytes()
    assert set(actions(bring("moved")).values()) == {"kept", "not there"}
    assert (moved / LOCK).read_bytes() == before
    write_lock(moved)  # by hand, which carries along what was fetched
    assert (moved / LOCK).read_bytes() == before


def test_again_asks_for_nothing_that_is_there(bring: Bring, public: World) -> None:
    bring()
    public.forget()
    bring()
    assert public.asked() == ["GET /closed/store.json"]  # what was closed may have opened


def test_what_is_lost_or_damaged_is_brought_again_from_the_cache(bring: Bring, public: World, tmp_path: Path) -> None:
    bring()
    locked = read_artifacts(tmp_path / "record")
    (tmp_path / "record" / locked["code"].path).unlink()
    (tmp_path / "record" / locked["thread"].path).write_bytes(b"{}")
    public.forget()
    found = actions(bring())
    assert (found["code"], found["thread"], found["page"]) == ("from the cache", "from the cache", "kept")
    assert public.asked() == ["GET /closed/store.json"]
    assert all(read_bytes(tmp_path / "record", entry) for entry in locked.values())


def test_only_brings_one_kind_and_keeps_the_rest_of_the_lock(bring: Bring, tmp_path: Path) -> None:
    assert actions(bring(only="object"))["results"] == "fetched"
    assert set(read_artifacts(tmp_path / "record")) == {"results"}
    found = actions(bring(only="page"))
    assert (found["results"], found["page"]) == ("skipped", "fetched")
    assert set(read_artifacts(tmp_path / "record")) == {"results", "page"}


def test_a_new_artifact_of_record_toml_is_all_that_is_asked_for(bring: Bring, public: World, tmp_path: Path) -> None:
    write_record(tmp_path / "record", TOML.replace('id = "page"', 'id = "later"'))
    bring()
    (tmp_path / "record" / "record.toml").write_text(
        (tmp_path / "record" / "record.toml").read_text()
        + '\n[[artifact]]\nid = "switch"\nrole = "discussion"\nkind = "github-issue"\n'
        + 'address = "marin-community/marin#9162"\ndigest = "canonical"\n'
    )
    public.forget()
    assert actions(bring())["switch"] == "fetched"
    assert len(public.asked()) == 3


def test_links_of_the_runs_thread_come_on_request_one_level_deep(bring: Bring, tmp_path: Path) -> None:
    result = bring(linked=True)
    assert actions(result)["linked-marin-9162"] == "fetched"
    assert not any("77" in id for id in actions(result))  # linked, but there is no such issue
    (added,) = [item for item in load_record(tmp_path / "record").artifacts if item.id.startswith("linked")]
    assert (added.address, added.note) == ("marin-community/marin#9162", "linked by thread")
    assert actions(bring(linked=True))["linked-marin-9162"] == "kept"


def test_small_files_of_hub_repositories_come_on_request(
    bring: Bring, public: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public.hub.files["big.bin"] = b"x" * 100
    monkeypatch.setattr(profile, "SMALL", 50)
    result = bring(small_files=True)
    assert actions(result)["tokenizer-model.bin"] == "fetched"
    assert "tokenizer-big.bin" not in actions(result)
    (added,) = [item for item in load_record(tmp_path / "record").artifacts if item.note == "listed by tokenizer"]
    assert (added.kind, added.pin, added.role) == ("hub-file", REVISION, "config")
    locked = read_artifacts(tmp_path / "record")["tokenizer-model.bin"]
    assert (read_bytes(tmp_path / "record", locked), locked.publisher[:7]) == (b"weights", "sha256:")
    assert actions(bring())["tokenizer-model.bin"] == "kept"


# What stays


def test_an_edited_comment_is_taken_into_the_lock_by_update_alone(bring: Bring, public: World, tmp_path: Path) -> None:
    bring()
    before = (tmp_path / "record" / LOCK).read_bytes()
    public.github.comments[8435][0]["body"] = "18.75T tokens"
    assert actions(bring())["thread"] == "kept"
    (tmp_path / "record" / read_artifacts(tmp_path / "record")["thread"].path).unlink()
    (tmp_path / "cache" / "entries").rename(tmp_path / "cache" / "gone")
    result = bring()
    assert [one.status.artifact.id for one in result.missing] == ["thread"]
    assert result.missing[0].status.status == "changed"
    assert "comment 1 changed. To take it: --update. (The bytes lie in" in why(result, "thread")
    assert (tmp_path / "record" / LOCK).read_bytes() == before
    assert actions(bring(update=True))["thread"] == "fetched"
    assert (tmp_path / "record" / LOCK).read_bytes() != before
    assert not bring().missing


def test_update_brings_only_what_changed(bring: Bring, public: World, tmp_path: Path) -> None:
    bring()
    before = read_artifacts(tmp_path / "record")
    public.store.objects["final/results.csv"] = b"a,b\n1,3\n"
    public.github.comments[8435].append(comment("marin-community/marin", 8435, 3, "more"))
    public.forget()
    found = actions(bring(update=True))
    assert [found[id] for id in ("code", "folder", "tokenizer", "vocabulary", "page")] == ["kept"] * 5
    after = read_artifacts(tmp_path / "record")
    assert {id for id in before if before[id] != after[id]} == {"results", "thread"}
    asked = public.asked()
    assert "HEAD /marin-public/note/index.html" in asked
    assert "GET /marin-public/note/index.html" not in asked
    assert not any("/raw/" in address or "resolve" in address for address in asked)


def test_what_is_gone_stays_in_the_record_and_its_lock(bring: Bring, public: World, tmp_path: Path) -> None:
    bring()
    del public.store.objects["final/results.csv"]
    result = bring(update=True)
    assert [one.status.status for one in result.missing] == ["gone"]
    locked = read_artifacts(tmp_path / "record")["results"]
    assert read_bytes(tmp_path / "record", locked) == b"a,b\n1,2\n"


def test_another_pin_than_the_locked_one_needs_update(bring: Bring, tmp_path: Path) -> None:
    bring()
    replace_in(tmp_path / "record" / "record.toml", "a/launch.py", "a/b/model.py")
    with pytest.raises(RecordError, match=r"'code' is locked as .*a/launch.py at 12d8b6f09f96.*fetch --update"):
        bring()
    old = read_artifacts(tmp_path / "record")["code"].path
    assert actions(bring(update=True))["code"] == "fetched"
    assert not (tmp_path / "record" / old).exists()


def test_a_table_that_changed_since_it_was_locked_is_not_locked_anew(bring: Bring, tmp_path: Path) -> None:
    (write_record(tmp_path / "record") / "notes.md").write_text("mine")
    bring()
    (tmp_path / "record" / "notes.md").write_text("changed")
    with pytest.raises(RecordError, match=r"notes.md has changed"):
        bring()
    bring(update=True)
    bring()


def test_what_was_closed_and_opened_is_brought_and_said(bring: Bring, public: World) -> None:
    bring()
    public.store.bucket, public.store.objects = "closed", {"store.json": b"{}"}
    result = bring()
    assert actions(result)["store"] == "fetched"
    assert why(result, "store") == "news: it was forbidden and is now open"


# The commit and the issue


@pytest.mark.parametrize(("name", "how"), [(COMMIT, "commit"), ("12d8b6f", "short commit"), ("main", "branch or tag")])
def test_a_commit_is_resolved_and_how_is_recorded(
    bring: Bring, public: World, tmp_path: Path, name: str, how: str
) -> None:
    public.github.names = {"main": COMMIT}
    bring(commit=name)
    said = read_resolved(tmp_path / "record")
    assert (said["name"], said["commit"], said["how"]) == (name, COMMIT, how)
    bring(commit=name)
    assert read_resolved(tmp_path / "record") == said


def test_a_branch_that_moved_needs_update(bring: Bring, public: World, tmp_path: Path) -> None:
    public.github.names = {"main": COMMIT}
    bring(commit="main")
    public.github.commit, public.github.names = OTHER, {"main": OTHER}
    with pytest.raises(RecordError, match="fetch --update"):
        bring(commit="main")
    bring(commit="main", update=True)
    record = load_record(tmp_path / "record")
    assert record.run.commit == OTHER
    assert {item.pin for item in record.artifacts if item.kind.startswith("github-f")} == {OTHER}
    assert {item.pin for item in record.artifacts if item.kind.startswith("hub")} != {OTHER}


def test_the_built_in_profile_keeps_pins_of_other_commits() -> None:
    profile = read_profile(Path("/nowhere"))
    before = {item.id: item.pin for item in profile.artifacts}
    after = {item.id: item.pin for item in with_commit(profile, OTHER).artifacts}
    moved = {id for id in before if before[id] != after[id]}
    assert moved == {id for id, pin in before.items() if pin == profile.run.commit}
    assert {"launcher", "mixture-weights"} <= moved
    assert not moved & {"fit-script", "mixture-weights-2", "ladder-grid", "tokenizer"}


def test_a_commit_that_is_none_and_a_dead_service_are_told_apart(bring: Bring, public: World) -> None:
    with pytest.raises(UsageError, match=r"--commit nonsense: .*'nonsense' is no commit, branch or tag"):
        bring(commit="nonsense")
    public.github.fault("status 500")
    with pytest.raises(NoAnswerError, match="--commit main could not be resolved") as caught:
        bring(commit="main")
    assert caught.value.exit_code == 3


def test_an_issue_becomes_the_runs_thread(bring: Bring, tmp_path: Path) -> None:
    assert actions(bring(issue="marin-community/marin#9162"))["issue"] == "fetched"
    assert load_record(tmp_path / "record").run.issue == "https://github.com/marin-community/marin/issues/9162"
    profile = read_profile(Path("/nowhere"))
    assert with_issue(profile, "https://github.com/marin-community/marin/issues/8435#issuecomment-1") == profile
    with pytest.raises(UsageError, match="'8435' is no issue"):
        with_issue(profile, "8435")


def test_a_profile_is_written_as_it_is_read() -> None:
    contents = read_contents((built_in_folder() / "record.toml").read_bytes())
    assert read_contents(as_toml(contents).encode()) == contents


def test_a_forked_run_is_read_for_its_own_steps(tmp_path: Path) -> None:
    steps = own_steps(read_profile(tmp_path), tmp_path)
    assert steps["wandb-hero-2"] == (58014, 81716)
    assert steps["wandb-hero-7"] == (146139, None)
    assert "wandb-ladder-d768" not in steps


# Without a network


def test_offline_makes_a_record_from_the_cache_and_asks_nobody(bring: Bring, public: World, tmp_path: Path) -> None:
    bring()
    public.forget()
    result = bring("second", offline=True)
    assert actions(result) == {**dict.fromkeys(OPEN, "from the cache"), "store": "not there"}
    assert not result.missing
    assert public.asked() == []
    first, second = (read_artifacts(tmp_path / name) for name in ("record", "second"))
    assert {id: entry.sha256 for id, entry in first.items()} == {id: entry.sha256 for id, entry in second.items()}


def test_offline_says_exactly_what_is_missing(bring: Bring) -> None:
    bring(only="object")
    result = bring("second", offline=True)
    assert [one.status.artifact.id for one in result.missing] == [id for id in OPEN if id != "results"]
    assert re.search(r"not in the cache .*cache\. Fetch once without --offline", why(result, "code"))


def test_offline_knows_whole_commits_and_the_profiles_own(bring: Bring) -> None:
    bring(commit="12d8b6f09")
    bring(commit=COMMIT, offline=True)
    bring(commit="12d8b6f09", offline=True)
    with pytest.raises(UsageError, match="only the network knows"):
        bring(commit="main", offline=True)


# Names and folders


def entry(path: str) -> LockedArtifact:
    return LockedArtifact(kind="page", address="https://a.test/", path=path, bytes=0, sha256="0" * 64, locked_at="")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("artifacts/a.py", "artifacts/a.py"),
        ("artifacts/A.py", "artifacts/a.PY"),
        ("artifacts/stra\u00dfe", "artifacts/STRASSE"),
        ("artifacts/e\u0301", "artifacts/\u00e9"),
        ("artifacts/a", "artifacts/A/b"),
        ("artifacts/a/b", "artifacts/A"),
    ],
)
def test_two_artifacts_never_share_a_place_on_any_disk(tmp_path: Path, first: str, second: str) -> None:
    with pytest.raises(RecordError, match=r"artifacts 'one' and 'two' would lie in one place"):
        check_names(tmp_path, {"one": first, "two": second})


def test_a_collision_writes_nothing(bring: Bring, public: World, tmp_path: Path) -> None:
    public.store.objects |= {"x/File.csv": b"1\n", "x/file.csv": b"2\n"}
    more = "".join(
        f'\n[[artifact]]\nid = "{name}"\nrole = "metrics"\nkind = "object"\ndigest = "crc32c"\n'
        f'address = "https://storage.googleapis.com/marin-public/x/{name}.csv"\n'
        for name in ("File", "file")
    )
    write_record(tmp_path / "record", TOML + more)
    with pytest.raises(RecordError, match="'File' and 'file' would lie in one place"):
        bring()
    assert sorted(path.name for path in (tmp_path / "record").iterdir()) == [".held", "record.toml"]


def test_a_folder_of_something_else_does_not_become_a_record(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with (
        open_cache(tmp_path / "elsewhere") as cache,
        pytest.raises(UsageError, match=r"is no record.*holds 'elsewhere'"),
    ):
        fetch(tmp_path, Wish(), cache, None)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_two_fetches_do_not_write_one_record(bring: Bring, tmp_path: Path) -> None:
    import fcntl

    folder = write_record(tmp_path / "record")
    with (folder / ".held").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="being written by another fetch"):
            bring()
    assert not bring().missing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lock: lock["artifacts"]["code"].update(sha256="12"), r"artifacts, code, sha256: '12'"),
        (lambda lock: lock["artifacts"]["code"].update(sha265="12"), r"unknown key 'sha265'; did you mean 'sha256'"),
        (lambda lock: lock["artifacts"]["code"].update(path="record.toml"), r"does not lie below artifacts/"),
        (lambda lock: lock["artifacts"]["code"].update(path="artifacts/../../x"), r"leads out of"),
        (lambda lock: lock["artifacts"].update(code=1), r"artifacts, code: must be an object"),
        (lambda lock: lock.update(artifacts=[]), r"at most resolved and artifacts"),
    ],
)
def test_a_malformed_lock_names_entry_and_field(
    bring: Bring, tmp_path: Path, change: Callable[[dict], None], words: str
) -> None:
    bring(only="github-file")
    path = tmp_path / "record" / LOCK
    lock = json.loads(path.read_bytes())
    change(lock)
    path.write_text(json.dumps(lock))
    with pytest.raises(RecordError, match=words):
        bring()
