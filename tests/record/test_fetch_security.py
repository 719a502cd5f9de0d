"""Nothing that a service or a record says leads out of the record's folder, takes a token elsewhere, or is executed."""

from __future__ import annotations

import ast
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import repro.record
from repro.errors import RecordError
from repro.record.cache import download, open_cache
from repro.record.digests import sha256
from repro.record.fetch import Result, check_names
from repro.record.services.content import Content
from repro.record.services.errors import HashMismatch
from tests.record.test_fetch_faults import ENTRIES, HEAD
from tests.record.world import World, write_record
from tests.servers.base import Answer, Request, Server

Bring = Callable[..., Result]
TOKENS = {"GITHUB_TOKEN": "ghp_" + "a1" * 18, "HF_TOKEN": "hf_" + "b2" * 17, "WANDB_API_KEY": "c3" * 20}


def everything_below(folder: Path) -> bytes:
    return b"\n".join(str(path).encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file())


# Names


PATHS = {  # artifact: paths of its address
    "page": ["%2e%2e/x", "a/%2e%2e/%2e%2e/x", "C:/x", "a%5C..%5Cx", "a%00b", "x" * 300, "a/./b", "a//b"],
    "results": ["%2e%2e/%2e%2e/x", "C%3A/x", "a%0Ab"],
    "code": ["../x", "a/../../x", "/etc/passwd", "a\\..\\x", "x" * 300, "a/./b", "a//b"],
    "vocabulary": ["../x", "a/../../x", "/etc/passwd", "a\\..\\x", "a/./b"],
}


@pytest.mark.parametrize(("id", "path"), [(id, path) for id, paths in PATHS.items() for path in paths])
def test_a_path_that_could_lead_out_is_neither_written_nor_asked_for(
    id: str, path: str, public: World, bring: Bring, tmp_path: Path
) -> None:
    known = {"page": "note/index.html", "results": "final/results.csv", "code": "a/launch.py"}.get(id, "vocab.json")
    write_record(tmp_path / "record", HEAD + ENTRIES[id].replace(known, path.replace("\\", "\\\\")))
    public.forget()
    (missing,) = bring().missing
    assert missing.status.status == "unverifiable"
    assert "is no name for a file of a record" in missing.status.why
    assert public.asked() == []
    assert not (tmp_path / "record" / "artifacts").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "record"]


@pytest.mark.parametrize("name", ["artifacts/../../x", "/x", "artifacts/a\0b", "artifacts\\x", "artifacts/\u202ex"])
def test_a_name_that_leads_out_refuses_the_whole_fetch(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="leads out of"):
        check_names(tmp_path, {"one": name})


def test_a_symbolic_link_does_not_lead_a_file_out(bring: Bring, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    record = write_record(tmp_path / "record")
    (record / "artifacts").symlink_to(outside)
    with pytest.raises(RecordError, match="leads out of"):
        bring()
    assert list(outside.iterdir()) == []


def test_a_link_in_a_tree_is_not_followed(public: World, bring: Bring, tmp_path: Path) -> None:
    public.github.files["a/launch.py"], public.github.modes["a/launch.py"] = b"../../etc/passwd", "120000"
    write_record(tmp_path / "record", HEAD + ENTRIES["code"])
    (missing,) = bring().missing
    assert "is a symbolic link, not a file" in missing.status.why


def test_a_very_long_name_is_refused_before_it_is_asked_for(public: World, bring: Bring, tmp_path: Path) -> None:
    write_record(tmp_path / "record", HEAD + ENTRIES["results"].replace("results.csv", "x" * 256))
    public.forget()
    (missing,) = bring().missing
    assert "is no name for a file of a record" in missing.status.why
    assert public.asked() == []


def test_a_cache_entry_that_was_tampered_with_does_not_lead_out(bring: Bring, tmp_path: Path) -> None:
    write_record(tmp_path / "record", HEAD + ENTRIES["page"])
    bring()
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    entry.write_bytes(entry.read_bytes().replace(b'"pages/', b'"../../pages/', 1))
    write_record(tmp_path / "second", HEAD + ENTRIES["page"])
    with pytest.raises(RecordError, match="leads out of"):
        bring("second", offline=True)


# Redirects and tokens


class Elsewhere(Server):
    def answer(self, request: Request) -> Answer:
        return Answer(200, (("content-type", "text/plain"),), b"elsewhere")


@pytest.mark.parametrize("id", ["code", "thread", "vocabulary", "tokenizer", "run", "results", "page"])
def test_no_token_follows_a_redirect_to_another_host(
    id: str, public: World, bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    write_record(tmp_path / "record", HEAD + ENTRIES[id])
    with Elsewhere() as elsewhere:
        for server in public.servers:
            server.fault(f"redirect to {elsewhere.url}/x{{path}}")
        bring()
        sent = [value for request in elsewhere.requests for value in (*request.headers.values(), request.target)]
        bodies = b"".join(request.body for request in elsewhere.requests)
    assert not [value for value in sent for token in TOKENS.values() if token in value]
    assert not [token for token in TOKENS.values() if token.encode() in bodies]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x", "javascript:1"])
def test_redirects_stay_with_http(target: str, public: World, bring: Bring) -> None:
    for server in public.servers:
        server.fault(f"redirect to {target}")
    result = bring()
    assert {one.status.status for one in result.fetched} == {"unverifiable"}
    assert all(re.search("is followed|refused|to no address", one.status.why) for one in result.fetched)


def test_a_token_that_comes_back_is_nowhere_written(
    public: World, bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that repeats what it was sent: in a header that we keep, and in words that we would quote."""
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)

    def repeat(request: Request, answer: Answer) -> Answer:
        sent = request.headers.get("authorization", " ".join(TOKENS.values()))
        return answer.having(("etag", f'"{sent}"'))

    for server in public.servers:
        server.change(repeat)
    result = bring()
    assert not result.missing
    public.heal()
    public.store.change(
        lambda request, answer: Answer(500, (), f'{{"message": "bad {" ".join(TOKENS.values())}"}}'.encode())
    )
    said = " ".join(one.status.why for one in bring("second", update=True).missing)
    assert "•••" in said
    written = everything_below(tmp_path) + said.encode() + str(result.as_json()).encode()
    assert not [token for token in TOKENS.values() if token.encode() in written]


# Nothing is executed


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("trapped",)


def test_what_is_fetched_is_bytes_and_nothing_more(
    public: World, bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    public.github.files["a/launch.py"] = b"import os\nos.mkdir('trapped')\nraise SystemExit\n"
    public.hub.files["vocab.json"] = pickle.dumps(Trap())
    public.store.objects["final/results.csv"] = b"=cmd|'/c calc'!A1\n"
    assert not bring().missing
    assert not (tmp_path / "trapped").exists()


def test_the_code_of_the_record_has_no_way_to_execute_anything() -> None:
    """Its twin below shows that the search finds such a way."""
    sources = {path: path.read_text() for path in Path(repro.record.__path__[0]).rglob("*.py")}
    assert len(sources) > 20
    assert {str(path): ways for path, source in sources.items() if (ways := ways_to_execute(source))} == {}


def test_the_search_for_ways_to_execute_finds_them() -> None:
    source = "import pickle\nfrom subprocess import run\neval('1')\nimport yaml\n__import__('os').system('')"
    assert set(ways_to_execute(source)) == {"pickle", "subprocess", "eval", "yaml", "__import__", "system"}


def ways_to_execute(source: str) -> list[str]:
    modules = {"pickle", "marshal", "shelve", "subprocess", "runpy", "yaml", "ctypes", "code", "joblib", "dill"}
    names = {"eval", "exec", "compile", "__import__", "system", "popen", "execv", "spawnv", "exec_module"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [item.name for item in node.names if item.name.partition(".")[0] in modules]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in modules:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in names and not (called == "compile" and _is_re(node.func)):
                found.append(called)
    return found


def _is_re(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


# The quarantine


def test_wrong_bytes_go_to_quarantine_under_their_own_name(tmp_path: Path) -> None:
    wrong = b"wrong bytes of the right size"

    def read() -> Content:
        raise HashMismatch("wrong.", replace(sha256(wrong), value="0" * 64), sha256(wrong), wrong)

    with open_cache(tmp_path) as cache:
        with pytest.raises(HashMismatch, match=r"wrong\. \(The bytes lie in .*quarantine") as caught:
            download(cache, "0" * 64, "https://a.test/", read)
        place = cache.quarantine / str(sha256(wrong).value)
        assert place.read_bytes() == wrong
        assert str(place) in str(caught.value)
        assert list(cache.entries.iterdir()) == []
