"""Findings, JUnit XML, annotations and the availability log: what a verification says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from repro.errors import RecordError
from repro.record.announce import findings, junit, workflow_commands
from repro.record.artifacts import Artifact
from repro.record.history import append_history, read_history, trends
from repro.record.verify import ArtifactStatus, Status, could_not_tell, fails, sample

FAIL_ON = frozenset({"changed", "gone"})
START = datetime(2026, 10, 1, 3, tzinfo=UTC)


def status(id: str, name: Status, why: str = "why", *, as_expected: bool = True, **artifact: str) -> ArtifactStatus:
    given = {"kind": "github-file", "address": f"o/r:{id}.py", "role": "config", "digest": "none", **artifact}
    return ArtifactStatus(
        artifact=Artifact(id=id, **given),  # type: ignore[arg-type]
        status=name,
        why=why,
        as_expected=as_expected,
    )


def test_many_losses_with_one_cause_are_one_finding() -> None:
    lost = [status(f"f{number}", "gone", as_expected=False) for number in range(12)]
    other = status("x", "gone", as_expected=False, address="o/other:x.py")
    (first, second) = findings([*lost, other], FAIL_ON, {})
    assert first.text.startswith("12 artifacts of github.com/o/r are gone: f0, f1, f2, f3, f4, f5, f6, f7 and 4 more.")
    assert (len(first.ids), second.ids, second.text) == (12, ("x",), "why")


def test_a_silent_host_is_one_finding_and_each_change_is_its_own() -> None:
    silent = [status(id, "unreachable", address=f"{id}/r:x.py") for id in ("a", "b")]
    changed = [status(id, "changed", as_expected=False) for id in ("c", "d")]
    found = findings([*silent, *changed], FAIL_ON, {})
    assert [(one.level, one.ids) for one in found] == [("error", ("c",)), ("error", ("d",)), ("warning", ("a", "b"))]


def test_what_is_known_to_be_closed_is_no_finding_and_its_opening_is_news() -> None:
    closed = status("store", "forbidden", expectation="forbidden")
    opened = status("store", "ok", "news: it was forbidden and is now open", as_expected=False, expectation="forbidden")
    assert findings([closed], FAIL_ON, {}) == []
    assert [one.level for one in findings([opened], FAIL_ON, {})] == ["notice"]


@pytest.mark.parametrize(
    ("one", "on", "failed", "untold"),
    [
        (status("a", "gone", as_expected=False), FAIL_ON, True, False),
        (status("a", "forbidden", as_expected=False), FAIL_ON, False, False),
        (status("a", "forbidden", as_expected=False), {"forbidden"}, True, False),
        (status("a", "forbidden"), {"forbidden"}, False, False),
        (status("a", "unreachable"), FAIL_ON, False, True),
        (status("a", "unreachable"), {"unreachable"}, True, True),
        (status("a", "unverifiable"), FAIL_ON, False, False),
        (status("a", "unverifiable", as_expected=False), FAIL_ON, False, True),
        (status("a", "skipped"), FAIL_ON, False, False),
        (status("a", "ok"), FAIL_ON, False, False),
    ],
)
def test_what_fails_and_what_could_not_be_told(one: ArtifactStatus, on: set[str], failed: bool, untold: bool) -> None:
    assert (fails(one, on), could_not_tell(one)) == (failed, untold)


def test_junit_counts_what_it_shows_and_holds_any_text() -> None:
    statuses = [
        status("a", "ok"),
        status("b", "changed", 'expected "<1>" & found \x00\ud800', as_expected=False),
        status("c", "unreachable"),
        status("d", "skipped"),
        status("e", "unverifiable", as_expected=False),
    ]
    suite = ElementTree.fromstring(junit(statuses, FAIL_ON))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        **{"tests": "5", "failures": "1", "errors": "2", "skipped": "1"}
    }
    inner = {case.get("name"): [(item.tag, item.get("type")) for item in case] for case in suite}
    assert inner == {
        **{"a": [], "b": [("failure", "changed")], "c": [("error", "unreachable")]},
        **{"d": [("skipped", "skipped")], "e": [("error", "unverifiable")]},
    }
    assert suite[1][0].get("message") == 'changed: expected "<1>" & found \ufffd\ufffd'


def test_annotations_cannot_be_broken_out_of() -> None:
    one = status("a:b,c", "changed", "100%\n::error::injected", as_expected=False, address="o/r:x.py")
    (line,) = workflow_commands(findings([one], FAIL_ON, {}))
    assert line == "::error title=changed%3A a%3Ab%2Cc::100%25%0A::error::injected"


def test_a_sample_is_random_and_the_same_again() -> None:
    artifacts = [status(str(number), "ok").artifact for number in range(200)]
    first = sample(artifacts, 20, 7)
    assert len(first) == 20
    assert first == sample(artifacts[::-1], 20, 7)
    assert first != sample(artifacts, 20, 8)
    assert sample(artifacts, 500, 7) == {str(number) for number in range(200)}


# The log


def course(path: Path, *names: Status, days: float = 1, **artifact: str) -> str | None:
    """What is said of an artifact after verifications with these statuses, `days` apart."""
    path.unlink(missing_ok=True)
    for number, name in enumerate(names):
        now = START + timedelta(days=number * days)
        one = status("a", name, **artifact)
        found = trends(read_history(path), [one], now).get("a")
        append_history(path, [one], now)
    return found.course if found else None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("gone",), None),
        (("ok", "ok", "gone"), "new"),
        (("ok", "unreachable", "ok"), "back"),
        (("ok", "unreachable", "ok", "ok"), None),
        (("ok", "unreachable", "ok", "unreachable"), "flaky"),
        (("ok", "gone", "gone", "gone"), "lasting"),
        (("ok", *["gone"] * 9), "long gone"),
        (("gone", "ok", *["gone"] * 12), "long gone"),
        (("ok", "ok"), None),
        (("unverifiable", "unverifiable"), None),
    ],
)
def test_the_log_tells_new_from_flaky_from_long_gone(
    names: tuple[Status, ...], said: str | None, tmp_path: Path
) -> None:
    assert course(tmp_path / "log", *names) == said


def test_what_is_known_to_be_closed_is_not_lost(tmp_path: Path) -> None:
    assert course(tmp_path / "log", *["forbidden"] * 12, expectation="forbidden") is None
    assert course(tmp_path / "log", *["forbidden"] * 12) == "long gone"


def test_a_trend_is_said_in_the_finding(tmp_path: Path) -> None:
    path = tmp_path / "log"
    course(path, "ok", *["gone"] * 9)
    one = status("a", "gone", as_expected=False)
    (finding,) = findings([one], FAIL_ON, trends(read_history(path), [one], START + timedelta(days=10)))
    assert finding.text == "why (long gone, since 2026-10-02)"


def test_a_line_that_was_cut_off_is_passed_over_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append_history(path, [status("a", "ok")], START)
    with path.open("ab") as file:
        file.write(b'{"at": "2026-10-02T03:00:00Z", "id": "a", "sta')
    assert len(read_history(path)) == 1
    append_history(path, [status("a", "gone"), status("b", "skipped")], START)
    assert [(seen.id, seen.status) for seen in read_history(path)] == [("a", "ok"), ("a", "gone")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"at": "soon", "id": "a", "status": "ok"}', "line 1, at: 'soon' is no date"),
        ('{"at": "2026-10-02T03:00:00", "id": "a", "status": "ok"}', "no time zone"),
        ('{"at": "2026-10-02T03:00:00Z", "id": "a", "status": "fine"}', "line 1: must have at, id and a known status"),
        ("[]", "line 1: must have at"),
        ("{", "line 1: not JSON"),
    ],
)
def test_a_log_that_is_none_names_the_line(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line + "\n")
    with pytest.raises(RecordError, match=words):
        read_history(tmp_path / "log")
