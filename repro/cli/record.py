"""`marin-repro fetch`, `verify`, `diff`: make a record, ask whether it is still there, compare two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from repro.record.artifacts import Artifact
    from repro.record.fetch import Fetched
    from repro.record.services.content import Content
    from repro.record.services.http import Client
    from repro.record.verify import ArtifactStatus

DEFAULT_RECORD = Path("record")
BUILT_IN = "marin-535b"
FINDINGS, COULD_NOT_TELL = 1, 3

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
MaxBytes = Annotated[
    int | None,
    typer.Option("--max-bytes", min=1, help="Bytes of an artifact, instead of its kind's bound.", show_default=False),
]
Seconds = Annotated[float, typer.Option("--timeout", min=0.01, help="Seconds of silence after which to give up.")]


def fetch(
    commit: Annotated[
        str,
        typer.Option(metavar="SHA", help="The run's commit, or a branch or tag.", show_default=False),
    ] = "",
    issue: Annotated[
        str, typer.Option(metavar="OWNER/REPO#N", help="The run's own thread, or its link.", show_default=False)
    ] = "",
    record: Annotated[
        Path, typer.Option(help="Folder of the record; its record.toml, if it has one, says what to bring.")
    ] = DEFAULT_RECORD,
    offline: Annotated[bool, typer.Option("--offline", help="Use only the cache.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Bring what has changed since, and lock it.")] = False,
    linked: Annotated[
        bool, typer.Option("--linked", help="Also the issues and pull requests that the run's thread links.")
    ] = False,
    small_files: Annotated[
        bool, typer.Option("--small-files", help="Also the files of hub repositories of at most 1 MiB each.")
    ] = False,
    only: Annotated[
        str, typer.Option(metavar="KIND", help="Only artifacts of this kind, such as github-issue.", show_default=False)
    ] = "",
    cache: Annotated[
        Path | None, typer.Option(help="Folder of the cache. Default: MARIN_REPRO_CACHE.", show_default=False)
    ] = None,
    max_bytes: MaxBytes = None,
    timeout: Seconds = 30.0,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a record from its public sources, verified and locked; tables and claims are read out of it.

    The built-in record's artifacts, or those of the folder's own record.toml. What is there is kept; again brings only
    what is missing. Exits with 1 where something is changed or missing, with 3 where that could not be told.

    Example: marin-repro fetch --commit 12d8b6f0 --issue marin-community/marin#8435 --record record
    """
    from repro.cli.extraction import extracted_claims
    from repro.cli.record_tables import print_fetched
    from repro.files import canonical_json
    from repro.record.cache import open_cache
    from repro.record.fetch import Wish
    from repro.record.fetch import fetch as fetch_record

    wish = Wish(commit=commit, issue=issue, only=_kind(only), update=update, linked=linked, small_files=small_files)
    with (
        open_cache(cache) as place,
        _client(place.answers, max_bytes, timeout, offline=offline) as client,
        _progress("fetched", shown=not quiet) as (planned, seen),
    ):
        result = fetch_record(
            record,
            wish,
            place,
            client,
            extract=lambda folder: extracted_claims(
                folder, lambda why: _say(f"not read for claims: {why}", quiet=quiet)
            ),
            planned=planned,
            seen=lambda one: seen(_fetched_line(one)),
        )
    if json_output:
        typer.echo(canonical_json(result.as_json()), nl=False)
    elif not quiet:
        print_fetched(result)
    missing = result.missing
    if missing and (offline or any(one.status.status != "unreachable" for one in missing)):
        raise typer.Exit(FINDINGS)
    if missing:
        raise typer.Exit(COULD_NOT_TELL)


def verify(
    record: Annotated[
        Path | None, typer.Option(help="Folder of the record. Default: the built-in one.", show_default=False)
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="STATUS,...", help="Exit with 1 on one of these, or never.")
    ] = "changed,gone",
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.", show_default=False)] = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the JSON object too.", show_default=False)
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Add to this log, and say what is new or long gone.", show_default=False),
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, help="Ask for N of them.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Which N: the same for the same seed.")] = 0,
    text: Annotated[bool, typer.Option("--text", help="Also how what changed reads now, line by line.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of the cache. Default: MARIN_REPRO_CACHE.", show_default=False)
    ] = None,
    max_bytes: MaxBytes = None,
    timeout: Seconds = 30.0,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask whether the record can still be downloaded, and is still the same.

    Statuses: ok, changed, gone, forbidden, unreachable, unverifiable, skipped. In GitHub Actions findings become
    annotations. Exits with 1 on a status of --fail-on, else with 3 where an artifact gave no usable answer.

    Example: marin-repro verify --record record --junit verify.xml --history availability.jsonl
    """
    import os
    from datetime import UTC, datetime

    from repro.cli.record_tables import print_verified
    from repro.files import canonical_json, write_atomically
    from repro.record import announce
    from repro.record.cache import open_cache
    from repro.record.history import append_history, read_history, trends
    from repro.record.verify import could_not_tell, fails, report

    statuses_to_fail_on = _statuses(fail_on)
    past = read_history(history) if history else []
    now = datetime.now(UTC)
    with (
        open_cache(cache) as place,
        _client(place.answers, max_bytes, timeout, offline=False) as client,
        _progress("asked", shown=not quiet) as (planned, seen),
    ):
        assert client is not None
        statuses = _ask_all(record, client, sample, seed, text, planned, lambda one: seen(_status_line(one)))
    courses = trends(past, statuses, now) if history else {}
    found = announce.findings(statuses, statuses_to_fail_on, courses)
    result = {**report(statuses), "findings": [one.as_json() for one in found]}
    if history is not None:
        append_history(history, statuses, now)
    if junit is not None:
        write_atomically(junit, announce.junit(statuses, statuses_to_fail_on))
    if report_file is not None:
        write_atomically(report_file, canonical_json(result))
    if json_output:
        typer.echo(canonical_json(result), nl=False)
    elif not quiet:
        print_verified(statuses, found, result["capabilities"])
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in announce.workflow_commands(found):
            typer.echo(line, err=True)
    if any(fails(one, statuses_to_fail_on) for one in statuses):
        raise typer.Exit(FINDINGS)
    if any(could_not_tell(one) for one in statuses):
        raise typer.Exit(COULD_NOT_TELL)


def diff(
    record_a: Annotated[Path, typer.Argument(metavar="RECORD_A", help="The record of before.", show_default=False)],
    record_b: Annotated[Path, typer.Argument(metavar="RECORD_B", help="The record of now.", show_default=False)],
    text: Annotated[bool, typer.Option("--text", help="Also how texts changed, line by line.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare two records: artifacts, comments, facts.

    A record is a folder; marin-535b is the built-in one. Exits with 1 where they differ.

    Example: marin-repro diff marin-535b marin-535b
    """
    from repro.cli.record_tables import print_difference
    from repro.files import canonical_json
    from repro.record import diff as difference
    from repro.record.facts import load_record

    before, after = (load_record(_folder(path)) for path in (record_a, record_b))
    found = difference.diff(before, after, text=text)
    if json_output:
        typer.echo(canonical_json(found.as_json()), nl=False)
    elif not quiet:
        print_difference(found)
    if found:
        raise typer.Exit(FINDINGS)


def _ask_all(
    record: Path | None,
    client: Client,
    sample: int | None,
    seed: int,
    text: bool,
    planned: Callable[[int], None],
    seen: Callable[[ArtifactStatus], None],
) -> list[ArtifactStatus]:
    """The statuses of a record's artifacts, or of a part of them. Raises RecordError for a damaged record."""
    from repro.record.artifact_lock import check_artifacts, read_artifacts
    from repro.record.facts import read_watched
    from repro.record.profile import built_in_folder, own_steps
    from repro.record.services import readers
    from repro.record.verify import Known, verify_artifacts
    from repro.record.verify import sample as choose

    folder = record or built_in_folder()
    watched = read_watched(folder)
    locked = read_artifacts(folder)
    check_artifacts(folder, locked)
    own = own_steps(watched, folder)
    steps = {**own, **{id: entry.steps for id, entry in locked.items()}}
    known = {
        item.id: Known.of(locked[item.id])
        for item in watched.artifacts
        if item.id in locked and locked[item.id].is_of(item)
    }
    chosen = choose(watched.artifacts, sample or len(watched.artifacts), seed)
    planned(len(chosen))

    def explain(artifact: Artifact, content: Content) -> str:
        from repro.record.diff import text_since

        return text_since(folder, locked[artifact.id], content.data) if artifact.id in known else ""

    return verify_artifacts(
        watched.artifacts,
        client,
        lambda artifact, client: readers.read(artifact, client, steps.get(artifact.id)),
        known,
        chosen=lambda artifact: artifact.id in chosen,
        explain=explain if text else None,
        seen=lambda one: seen(one) if one.status != "skipped" else None,
    )


@contextmanager
def _client(answers: Path, max_bytes: int | None, timeout: float, *, offline: bool) -> Iterator[Client | None]:
    """The client that asks all services; none offline."""
    if offline:
        yield None
        return
    from repro.record.services.http import Client

    with Client(answers=answers, max_bytes=max_bytes, timeout=timeout) as client:
        yield client


def _kind(name: str) -> str:
    """The kind of artifacts that --only names. Raises UsageError for an unknown one."""
    from typing import get_args

    from repro.errors import UsageError
    from repro.record.artifacts import ArtifactKind

    kinds = get_args(ArtifactKind)
    if name and name not in kinds:
        raise UsageError(f"--only {name}: {_nearest(name, kinds)}")
    return name


def _statuses(text: str) -> frozenset[str]:
    """The statuses that --fail-on names. Raises UsageError for an unknown one."""
    from repro.errors import UsageError
    from repro.record.verify import STATUSES

    known = tuple(status for status in STATUSES if status not in ("ok", "skipped"))
    names = frozenset() if text == "never" else frozenset(part.strip() for part in text.split(","))
    for name in sorted(names):
        if name not in known:
            raise UsageError(f"--fail-on {name!r}: {_nearest(name, (*known, 'never'))}")
    return names


def _nearest(name: str, known: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."


def _folder(path: Path) -> Path | None:
    """A record's folder; None for the built-in record, which is meant by its name where no folder has it."""
    return None if str(path) == BUILT_IN and not path.exists() else path


def _say(line: str, *, quiet: bool) -> None:
    if not quiet:
        typer.echo(line, err=True)


def _fetched_line(one: Fetched) -> str:
    status = one.status
    size = f", {status.bytes:,} bytes" if status.bytes is not None and one.action != "skipped" else ""
    what = one.action if status.status in ("ok", "skipped") else f"{one.action}, {status.status}"
    return f"{status.artifact.id}: {what}{size}, {status.seconds:.2f} s"


def _status_line(one: ArtifactStatus) -> str:
    return f"{one.artifact.id}: {one.status}, {one.seconds:.2f} s"


@contextmanager
def _progress(verb: str, *, shown: bool) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """Two functions: how many there are, and the line of one that is done. A bar with rate and time left on a
    terminal, a line each elsewhere; several threads may call."""
    if not shown:
        yield lambda total: None, lambda line: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda total: None, lambda line: typer.echo(line, err=True)
        return
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(verb, total=None, rate="")

        def seen(line: str) -> None:
            progress.advance(task)
            speed = progress.tasks[0].speed
            progress.update(task, rate=f"{speed:.1f}/s" if speed else "")

        yield lambda total: progress.update(task, total=total), seen
