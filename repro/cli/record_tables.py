"""What `fetch`, `verify` and `diff` print for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.record.announce import Finding, findings

if TYPE_CHECKING:
    from repro.record.diff import Difference
    from repro.record.fetch import Result
    from repro.record.verify import ArtifactStatus

COLOURS = {
    **{"ok": "green", "changed": "bold red", "gone": "bold red", "forbidden": "yellow", "unreachable": "yellow"},
    **{"unverifiable": "dim", "skipped": "dim", "added": "green", "possible": "green", "not possible": "bold red"},
    **{"error": "bold red", "warning": "yellow", "notice": "green"},
}
MAX_FACTS = 60  # rows; --json has all


def print_fetched(result: Result) -> None:
    """What is not there and why, then what came and from where."""
    console = Console(highlight=False)
    found = findings([one.status for one in result.fetched], ("changed", "gone", "forbidden", "unverifiable"), {})
    if found:
        console.print(_findings(found))
    closed = [one for one in result.fetched if one.action == "not there" and one not in result.missing]
    if known := result.resolved:
        console.print(Text(f"commit: {known['name']} is {known['commit']}, asked for as {known['how']}"))
    counts = ", ".join(f"{number} {action}" for action, number in result.as_json()["summary"].items())
    console.print(Text(f"artifacts: {counts}"))
    if result.derived:
        console.print(Text(f"derived: {', '.join(result.derived)}"))
    missing = ", ".join(one.status.artifact.id for one in result.missing)
    console.print(Text(f"missing: {missing or 'nothing'}"))
    if closed:
        console.print(Text(f"not open, as known: {', '.join(one.status.artifact.id for one in closed)}"))
    console.print(Text(f"record: {result.folder}"))


def print_verified(
    statuses: Sequence[ArtifactStatus], found: Sequence[Finding], capabilities: Mapping[str, Mapping[str, Any]]
) -> None:
    """A row an artifact, the findings, and what an outsider can still do."""
    console = Console(highlight=False)
    table = _table("artifact", "kind", "status", "bytes", "seconds")
    for one in statuses:
        if one.status == "skipped":
            continue
        known = " (known)" if one.status == "forbidden" and one.as_expected else ""
        size = f"{one.bytes:,}" if one.bytes is not None else ""
        table.add_row(one.artifact.id, one.artifact.kind, _coloured(one.status, known), size, f"{one.seconds:.2f}")
    console.print(table)
    if found:
        console.print(_findings(found))
    for one in statuses:
        if one.text:
            console.print(Text(f"{one.artifact.id}, since it was locked", style="bold"))
            console.print(Text(one.text))
    table = _table("an outsider's", "is", "because of")
    for name, verdict in capabilities.items():
        login = f" with a login to {', '.join(verdict['with_login'])}" if verdict["with_login"] else ""
        more = login if verdict["verdict"] == "possible" else ""
        table.add_row(name, _coloured(verdict["verdict"], more), ", ".join(verdict["because_of"]))
    console.print(table)
    console.print(Text(", ".join(f"{n} {status}" for status, n in Counter(one.status for one in statuses).items())))


def print_difference(found: Difference) -> None:
    """Artifacts, comments, facts; texts below each."""
    console = Console(highlight=False)
    for note in found.notes:
        console.print(Text(note, style="dim"))
    if found.artifacts:
        table = _table("artifact", "is", "how")
        for artifact in found.artifacts:
            table.add_row(artifact.id, _coloured(artifact.what), Text(artifact.how))
        console.print(table)
    if found.comments:
        table = _table("thread", "comment", "is", "where")
        for comment in found.comments:
            table.add_row(comment.artifact, comment.comment, _coloured(comment.what), Text(comment.url))
        console.print(table)
    for name, text in (
        *((f"{item.artifact}, {_comment(item.comment)}", item.text) for item in found.comments),
        *((item.id, item.text) for item in found.artifacts),
    ):
        if text:
            console.print(Text(name, style="bold"))
            console.print(Text(text))
    if found.facts:
        table = _table("fact", "before", "now", "sources")
        for fact in found.facts[:MAX_FACTS]:
            place = ", ".join(filter(None, (fact.table, fact.key, fact.field)))
            sources = " → ".join(dict.fromkeys(filter(None, (fact.old_source, fact.new_source))))
            table.add_row(Text(place), _value(fact.old), _value(fact.new), Text(sources))
        console.print(table)
        if len(found.facts) > MAX_FACTS:
            console.print(Text(f"and {len(found.facts) - MAX_FACTS} more facts; --json has all"))
    counts = {"artifact": len(found.artifacts), "comment": len(found.comments), "fact": len(found.facts)}
    words = ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for name, number in counts.items() if number)
    console.print(Text(f"different: {words}" if found else "no difference"))


def _findings(found: Sequence[Finding]) -> Table:
    table = _table("finding", "status", "what")
    for finding in found:
        what = finding.text if len(finding.ids) > 1 else f"{finding.ids[0]}: {finding.text}"
        table.add_row(_coloured(finding.level), finding.status, Text(what))
    return table


def _comment(number: str) -> str:
    return number if number == "issue" else f"comment {number}"


def _value(value: Any) -> Text:
    return Text("none" if value is None else str(value))


def _coloured(word: str, more: str = "") -> Text:
    return Text(word + more, style=COLOURS.get(word, ""))


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        right = heading in ("bytes", "seconds")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    return table
