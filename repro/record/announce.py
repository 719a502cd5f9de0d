"""What a verification says to people and machines: findings (many losses with one cause are one), JUnit, annotations.

All are pure functions of the statuses; the command line prints and writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit
from xml.etree import ElementTree

from repro.record.history import Trend
from repro.record.verify import ArtifactStatus, Status, could_not_tell, fails

Level = Literal["error", "warning", "notice"]
NAMED = 8  # ids that a finding of many names


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to know. `ids`: the artifacts it is about, all with one status and one place, or a single one."""

    level: Level
    status: Status
    place: str  # what they share: a host, a repository, a project, a bucket
    ids: tuple[str, ...]
    text: str

    def as_json(self) -> dict[str, Any]:
        """One object."""
        return {
            "level": self.level,
            "status": self.status,
            "place": self.place,
            "ids": list(self.ids),
            "text": self.text,
        }


def findings(
    statuses: Sequence[ArtifactStatus], fail_on: Collection[str], trends: Mapping[str, Trend]
) -> list[Finding]:
    """What is not as it should be, gravest first. Losses of one status at one place are one finding, a change is one
    for each artifact; what was closed and has opened is news, and so is what is back."""
    groups: dict[tuple[Level, Status, str], list[ArtifactStatus]] = {}
    for one in statuses:
        level = _level(one, fail_on, trends.get(one.artifact.id))
        if level is not None:
            apart = one.status in ("changed", "ok")
            groups.setdefault((level, one.status, one.artifact.id if apart else _place(one)), []).append(one)
    levels = ("error", "warning", "notice")
    found = [_finding(level, status, group, trends) for (level, status, _), group in groups.items()]
    return sorted(found, key=lambda finding: levels.index(finding.level))


def junit(statuses: Sequence[ArtifactStatus], fail_on: Collection[str]) -> str:
    """JUnit XML: a test case an artifact; failures are what --fail-on names, errors what could not be told."""
    counts = {"failure": 0, "error": 0, "skipped": 0}
    suite = ElementTree.Element("testsuite", name="marin-repro verify", tests=str(len(statuses)))
    for one in statuses:
        case = ElementTree.SubElement(
            suite, "testcase", classname=one.artifact.kind, name=_xml_text(one.artifact.id), time=f"{one.seconds:.3f}"
        )
        tag = _junit_tag(one, fail_on)
        if tag is not None:
            counts[tag] += 1
            inner = ElementTree.SubElement(case, tag, message=_xml_text(f"{one.status}: {one.why}"), type=one.status)
            inner.text = _xml_text(one.artifact.url)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(counts[tag]))
    suite.set("time", f"{sum(one.seconds for one in statuses):.3f}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=False) + "\n"


def workflow_commands(found: Iterable[Finding]) -> list[str]:
    """Workflow commands that GitHub Actions shows beside a run (GitHub's documentation, "Workflow commands")."""
    return [
        f"::{one.level} title={_property(f'{one.status}: {_names(one.ids)}')}::{_command(one.text)}" for one in found
    ]


def _level(one: ArtifactStatus, fail_on: Collection[str], trend: Trend | None) -> Level | None:
    if fails(one, fail_on):
        return "error"
    if one.status in ("changed", "gone", "forbidden") and not one.as_expected:
        return "warning"
    if could_not_tell(one):
        return "warning"
    news = one.status == "ok" and (not one.as_expected or (trend is not None and trend.course == "back"))
    return "notice" if news else None


def _finding(level: Level, status: Status, group: list[ArtifactStatus], trends: Mapping[str, Trend]) -> Finding:
    first = group[0]
    text = first.why or "there again"
    if len(group) > 1:
        text = f"{len(group)} artifacts of {_place(first)} are {status}: {_names([one.artifact.id for one in group])}."
        text += f" The first: {first.why}"
    courses = {_course(trends[one.artifact.id]) for one in group if one.artifact.id in trends}
    if courses:
        text += f" ({'; '.join(sorted(courses))})"
    ids = tuple(one.artifact.id for one in group)
    return Finding(level=level, status=status, place=_place(first), ids=ids, text=text)


def _course(trend: Trend) -> str:
    """A trend in words."""
    since = f"since {trend.since:%Y-%m-%d}"
    return {
        "new": "new since the last time",
        "flaky": "flaky: it came and went before",
        "lasting": f"lasting {since}, {trend.times} times in a row",
        "long gone": f"long gone, {since}",
        "back": "back since the last time",
    }[trend.course]


def _place(one: ArtifactStatus) -> str:
    """What a loss has in common with its neighbours: the host where it is silent, else the host and two levels below
    it (a repository, a project) or one (a bucket)."""
    address = urlsplit(one.artifact.url)
    if one.status == "unreachable":
        return address.netloc
    parts = [part for part in address.path.split("/") if part]
    if one.artifact.kind.startswith("hub-"):
        depth = 3 if parts[:1] == ["datasets"] else 2
    else:
        depth = 1 if one.artifact.kind in ("object", "page") else 2
    return "/".join([address.netloc, *parts[:depth]])


def _names(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return ", ".join(ids[:NAMED]) + more


def _junit_tag(one: ArtifactStatus, fail_on: Collection[str]) -> str | None:
    if fails(one, fail_on):
        return "failure"
    if could_not_tell(one):
        return "error"
    return "skipped" if one.status in ("skipped", "unverifiable") else None


def _xml_text(text: str) -> str:
    """The text without what XML 1.0 cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


def _command(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _command(text).replace(":", "%3A").replace(",", "%2C")
