from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from repro.record.artifacts import Artifact
from repro.record.services import github, http
from repro.record.services.errors import Gone, HashMismatch, Malformed, RateLimited, TooLarge
from repro.record.services.http import Client
from tests.servers.github import COMMIT, GitHub, comment, issue
from tests.servers.outcomes import OF_HASHED_FILE, OF_JSON

REPO = "marin-community/marin"
FOLDER = "experiments/grug/moe_hero_ep"
MODEL = b"GLOBAL_EVERY = 4\nHIDDEN = 6144\n" * 20
FILE = Artifact(
    id="model-code",
    role="launcher code",
    kind="github-file",
    address=f"{REPO}:{FOLDER}/model.py",
    pin=COMMIT,
    digest="git-sha1",
)
TREE = replace(FILE, id="code", kind="github-tree", address=f"{REPO}:{FOLDER}")
ISSUE = Artifact(id="hero-issue", role="discussion", kind="github-issue", address=f"{REPO}#8435", digest="canonical")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    with GitHub() as server:
        server.files = {
            f"{FOLDER}/model.py": MODEL,
            f"{FOLDER}/train.py": b"STEPS = 390_251\n",
            f"{FOLDER}/data/mix.json": b'{"available_tokens": 23106103007622}\n',
            f"{FOLDER}/data-order.py": b"",
            "README.md": b"# Marin\n",
        }
        server.names = {"main": COMMIT, "v1": "f" * 40}
        server.issues = {8435: issue(REPO, 8435, "The hero run.\n\n| num_heads | 48 · head_dim 128 |\n")}
        server.comments = {8435: [comment(REPO, 8435, 5335872267 + i, f"Comment {i} — 18.0T\n") for i in range(3)]}
        monkeypatch.setenv("MARIN_REPRO_GITHUB_API", server.url)
        monkeypatch.setenv("MARIN_REPRO_GITHUB_RAW", f"{server.url}/raw")
        yield server


def test_a_file_is_what_the_commits_tree_says(server: GitHub, client: Client) -> None:
    content = github.read(FILE, client)
    assert content.data == MODEL
    assert content.resolved == COMMIT
    assert content.name == f"github/{REPO}/{COMMIT[:12]}/{FOLDER}/model.py"
    # `printf 'GLOBAL_EVERY = 4\nHIDDEN = 6144\n' (20 times) | git hash-object --stdin`
    assert str(content.digest) == "git-sha1:dbf5f20a8d7c5a92df02d8fb45b527ac960bb498"


def test_files_of_one_folder_share_the_trees_they_lie_in(server: GitHub, client: Client) -> None:
    for name in ("model.py", "train.py", "data/mix.json"):
        github.read(replace(FILE, address=f"{REPO}:{FOLDER}/{name}"), client)
    assert len(server.asked("/git/commits/")) == 1
    assert len(server.asked("/git/trees/")) == 5  # root, experiments, grug, moe_hero_ep, data
    assert len(server.asked("/raw/")) == 3


def test_a_file_missing_from_the_tree_is_gone_and_not_asked_for(server: GitHub, client: Client) -> None:
    with pytest.raises(Gone, match=r"moe_hero_ep/optimizer.py is not in commit 12d8b6f09f96 \(no 'optimizer.py'\)"):
        github.read(replace(FILE, address=f"{REPO}:{FOLDER}/optimizer.py"), client)
    with pytest.raises(Gone, match="no 'deeper'"):
        github.read(replace(FILE, address=f"{REPO}:{FOLDER}/model.py/deeper"), client)
    assert not server.asked("/raw/")


@pytest.mark.parametrize(("mode", "word"), [("120000", "symbolic link"), ("160000", "submodule")])
def test_a_link_and_a_submodule_are_not_files(server: GitHub, client: Client, mode: str, word: str) -> None:
    server.modes[f"{FOLDER}/model.py"] = mode
    with pytest.raises(Malformed, match=word):
        github.read(FILE, client)
    assert not server.asked("/raw/")


def test_a_file_of_which_the_tree_says_that_it_is_too_large_is_not_asked_for(
    server: GitHub, make_client: Callable[..., Client]
) -> None:
    with pytest.raises(TooLarge, match=r"has 620 bytes; at most 100 are read"):
        github.read(FILE, make_client(max_bytes=100))
    assert not server.asked("/raw/")


def test_a_pointer_that_lies_in_git_itself_is_told(server: GitHub, client: Client) -> None:
    server.files[f"{FOLDER}/model.py"] = (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"c" * 64 + b"\nsize 77\n"
    )
    with pytest.raises(Malformed, match=r"pointer to sha256:c{64} \(77 bytes\)"):
        github.read(FILE, client)


def test_a_listing_that_lies_about_its_entries_is_found_out(server: GitHub, client: Client) -> None:
    server.change(
        lambda request, answer: replace(answer, body=answer.body.replace(b"model.py", b"mode1.py")), where="/git/trees/"
    )
    with pytest.raises(Malformed, match=r"the entries given for tree \w{40} are tree \w{40}"):
        github.read(FILE, client)


def test_a_tree_is_listed_whole_also_where_the_service_cuts_it_short(server: GitHub, client: Client) -> None:
    whole = github.read(TREE, client)
    server.cut_trees_above = 3
    assert github.read(TREE, client).data == whole.data
    listing = json.loads(whole.data)
    assert [entry["path"] for entry in listing["entries"]] == [
        "data",
        "data-order.py",
        "data/mix.json",
        "model.py",
        "train.py",
    ]
    assert listing["tree"] == server.tree(FOLDER)
    root = github.read(replace(TREE, address=f"{REPO}:"), client)
    assert "README.md" in [entry["path"] for entry in json.loads(root.data)["entries"]]


def test_an_issue_is_what_its_people_wrote(server: GitHub, client: Client) -> None:
    content = github.read(ISSUE, client)
    thread = json.loads(content.data)
    assert list(content.canonical) == ["issue", *(f"comment {5335872267 + i}" for i in range(3))]
    assert [item["body"] for item in thread["comments"]] == [f"Comment {i} — 18.0T\n" for i in range(3)]
    assert thread["comments"][0]["updated_at"] == "2026-09-15T22:10:15Z"
    assert not re.search("avatar|reactions|eyes", content.data.decode())
    assert content.digest is None
    assert not content.notes


def test_only_an_edit_changes_a_comment(server: GitHub, client: Client) -> None:
    before = github.read(ISSUE, client).canonical
    server.issues[8435] |= {
        "reactions": {"total_count": 70},
        "updated_at": "2026-10-02T00:00:00Z",
        "labels": [{"name": "x"}],
    }
    server.comments[8435][0]["user"] |= {"avatar_url": "https://elsewhere.example", "login": "renamed"}
    server.comments[8435][0]["body"] = "Comment 0 — 18.0T\r\n"
    assert github.read(ISSUE, client).canonical == before
    server.comments[8435][1]["body"] = "Comment 1 — 18.75T\n"
    server.comments[8435].append(comment(REPO, 8435, 6000000000, "new"))
    after = github.read(ISSUE, client).canonical
    assert {part for part in after if after[part] != before.get(part)} == {"comment 5335872268", "comment 6000000000"}
    server.issues[8435]["body"] = "Another run."
    assert github.read(ISSUE, client).canonical["issue"] != before["issue"]


def test_all_pages_of_comments_are_read(server: GitHub, client: Client) -> None:
    server.comments[8435] = [comment(REPO, 8435, i, str(i)) for i in range(1, 251)]
    thread = json.loads(github.read(ISSUE, client).data)
    assert [item["id"] for item in thread["comments"]] == list(range(1, 251))
    assert [request.query["page"] for request in server.asked("/comments?")] == ["1", "2", "3"]


def test_pages_that_come_twice_are_read_again_and_then_told(server: GitHub, client: Client) -> None:
    server.comments[8435] = [comment(REPO, 8435, i, str(i)) for i in range(1, 151)]
    server.duplicate_pages = True
    with pytest.raises(Malformed, match="marin-community/marin#8435: 100 comments came twice, in two readings"):
        github.read(ISSUE, client)
    assert len(server.asked("/comments?")) == 4


def test_a_count_that_differs_from_what_was_given_is_noted(server: GitHub, client: Client) -> None:
    server.comments[8435] = server.comments[8435][:2]
    server.change(lambda request, answer: replace(answer, body=b"[]"), where="/comments")
    assert github.read(ISSUE, client).notes == ("the issue counts 2 comments, 0 were given",)


def test_a_renamed_repository_is_followed_and_noted(server: GitHub, client: Client) -> None:
    server.moved_to = "marin-ai/marin"
    server.issues[8435]["html_url"] = "https://github.com/marin-ai/marin/issues/8435"
    content = github.read(ISSUE, client)
    assert content.notes == ("moved: marin-community/marin#8435 is now marin-ai/marin#8435",)


def test_a_deleted_repository_is_gone(server: GitHub, client: Client) -> None:
    server.repo = "someone/else"
    for artifact in (FILE, TREE, ISSUE):
        with pytest.raises(Gone, match="status 404, Not Found"):
            github.read(artifact, client)


def test_a_deleted_comment_of_a_deleted_author_still_reads(server: GitHub, client: Client) -> None:
    server.comments[8435][0]["user"] = None
    assert json.loads(github.read(ISSUE, client).data)["comments"][0]["author"] == "ghost"


def test_linked_issues_are_found_in_all_texts(server: GitHub, client: Client) -> None:
    server.comments[8435][0]["body"] = (
        "\n#8506, marin-community/levanter#12; https://github.com/marin-community/marin/pull/9162/files"
    )
    server.comments[8435][1]["body"] = "itself #8435, a colour a#11 and a heading\n# 5"
    assert github.linked_issues(github.read(ISSUE, client)) == (
        "marin-community/levanter#12",
        "marin-community/marin#8506",
        "marin-community/marin#9162",
    )


@pytest.mark.parametrize(
    ("ref", "how"),
    [(COMMIT, "commit"), ("12d8b6f0", "short commit"), ("12D8B6F0", "short commit"), ("main", "branch or tag")],
)
def test_names_resolve_to_commits(server: GitHub, client: Client, ref: str, how: str) -> None:
    if ref.isupper():
        server.names[ref] = COMMIT
    assert github.resolve_commit(REPO, ref, client) == github.Resolved(ref, COMMIT, how)


def test_a_branch_with_a_slash_is_one_name(server: GitHub, client: Client) -> None:
    server.names["rav%2Fladder"] = COMMIT
    assert github.resolve_commit(REPO, "rav/ladder", client).commit == COMMIT


def test_a_name_that_stands_for_no_commit_is_gone(server: GitHub, client: Client) -> None:
    with pytest.raises(Gone, match="'0000000' is no commit, branch or tag of marin-community/marin"):
        github.resolve_commit(REPO, "0000000", client)


def test_another_commit_than_the_one_asked_for_is_refused(server: GitHub, client: Client) -> None:
    server.names["a" * 40] = COMMIT
    with pytest.raises(Malformed, match=r"asked for commit a{40}, was given 12d8b6f0"):
        github.resolve_commit(REPO, "a" * 40, client)


@pytest.mark.parametrize("skew", [0.0, 86_400.0, -86_400.0])
def test_a_spent_hour_says_when_to_come_back_by_our_clock(server: GitHub, client: Client, skew: float) -> None:
    server.remaining, server.skew = 0, skew
    with pytest.raises(
        RateLimited, match=r"API rate limit exceeded .*Come back at .* UTC, or set GITHUB_TOKEN\.$"
    ) as caught:
        github.read(ISSUE, client)
    assert caught.value.retry_at is not None
    assert abs(caught.value.retry_at - datetime.now(UTC) - timedelta(seconds=1500)) < timedelta(seconds=5)


def test_a_spent_budget_is_not_asked_again(server: GitHub, client: Client) -> None:
    server.remaining = 0
    for _ in range(3):
        with pytest.raises(RateLimited, match="or set GITHUB_TOKEN"):
            github.read(ISSUE, client)
    assert len(server.requests) == 1


def test_whoever_has_a_token_is_not_told_to_set_one(
    server: GitHub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_TOKEN", "ghp_0123456789abcdefghij")
    server.remaining = 0
    with pytest.raises(RateLimited, match=r"Come back at [^,]* UTC\.$"):
        github.read(ISSUE, client)
    assert server.requests[0].headers["authorization"] == "Bearer ghp_0123456789abcdefghij"


def test_unchanged_answers_are_not_sent_again(
    server: GitHub, make_client: Callable[..., Client], tmp_path: Path
) -> None:
    first = github.read(ISSUE, make_client(answers=tmp_path))
    server.requests.clear()
    again = github.read(ISSUE, make_client(answers=tmp_path))
    assert again == first
    assert all("if-none-match" in request.headers for request in server.requests)
    server.comments[8435][0]["body"] = "edited"
    assert "edited" in github.read(ISSUE, make_client(answers=tmp_path)).data.decode()


def test_a_damaged_answer_is_asked_for_anew(server: GitHub, make_client: Callable[..., Client], tmp_path: Path) -> None:
    first = github.read(ISSUE, make_client(answers=tmp_path))
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    server.requests.clear()
    assert github.read(ISSUE, make_client(answers=tmp_path)) == first
    assert not any("if-none-match" in request.headers for request in server.requests)


@pytest.mark.parametrize("fault", OF_HASHED_FILE)
def test_a_fault_of_the_raw_host_is_told_and_a_later_good_run_succeeds(
    server: GitHub, make_client: Callable[..., Client], fault: str
) -> None:
    kind, words = OF_HASHED_FILE[fault]
    server.fault(fault, where="/raw/")
    with pytest.raises(kind, match=words) as caught:
        github.read(FILE, make_client(max_bytes=10_000, timeout=0.1))
    assert "127.0.0.1" in str(caught.value)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, HashMismatch):
        assert caught.value.found != caught.value.expected
        assert len(caught.value.data) <= len(MODEL) * 2
    server.faults.clear()
    assert github.read(FILE, make_client()).data == MODEL


@pytest.mark.parametrize("fault", OF_JSON)
@pytest.mark.parametrize("where", ["/git/trees/", "/comments"])
def test_a_fault_of_the_api_is_told_and_a_later_good_run_succeeds(
    server: GitHub, make_client: Callable[..., Client], fault: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER", 10_000)
    kind, words = OF_JSON[fault]
    artifact = FILE if where == "/git/trees/" else ISSUE
    server.fault(fault, where=where)
    with pytest.raises(kind, match=words):
        github.read(artifact, make_client(timeout=0.1))
    server.faults.clear()
    assert github.read(artifact, make_client()).data


def test_passing_faults_are_overcome(server: GitHub, client: Client, slept: list[float]) -> None:
    for fault in ("status 500", "truncated body"):
        server.fault(fault, where="/issues/8435", times=1)
    server.fault("short rate limit", where="/raw/", times=2)
    assert github.read(ISSUE, client).data
    assert github.read(FILE, client).data == MODEL
    assert [pause >= 1 for pause in slept[-2:]] == [True, True]  # Retry-After: 1


def test_a_token_is_sent_to_the_api_alone(
    server: GitHub, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = "github_pat_11ABCDEFG0123456789_abcdefghij"
    monkeypatch.setenv("GITHUB_TOKEN", token)
    content = github.read(FILE, client)
    assert all(request.headers["authorization"] == f"Bearer {token}" for request in server.asked("/repos/"))
    assert "authorization" not in server.asked("/raw/")[0].headers
    with GitHub() as other:
        server.fault(f"redirect to {other.url}/elsewhere", where="/issues/")
        with pytest.raises(Gone) as caught:
            github.read(ISSUE, client)
        assert other.requests
        assert not any(token in f"{request.headers} {request.target}" for request in other.requests)
    assert token not in f"{caught.value} {content} {caplog.text}"
