"""`marin-repro fit`: the forecast from the record's grid or one's own runs, and how far it hangs on its choices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from repro.ladder.rerun import RerunStudy
    from repro.ladder.sensitivity import Study
    from repro.record.facts import Record

RESULT = "fit.json"


class Drawing(NamedTuple):
    """A figure: its name without ending, an <svg> element, and a caption that says in words what it shows."""

    name: str
    svg: str
    caption: str


def fit(
    record: Annotated[
        Path | None, typer.Option(help="Folder of the record to fit. Default: the built-in one.", show_default=False)
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN_DIR ...", help="Fit one's own runs instead, all of one scale.", show_default=False),
    ] = None,
    more_runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN_DIR", hidden=True)] = None,  # --runs A B C
    points: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Fit one's own points instead, by --form.", show_default=False)
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(help="Of --points: power (columns flops, loss) or chinchilla (params, tokens, loss)."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE", help="Forecast --points at flops=2.6e24, or params=70e9,tokens=1.4e12.", show_default=False
        ),
    ] = None,
    freeze: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write that forecast, dated, to a new file.", show_default=False),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the bootstrap of --points. Default: 20.")] = None,
    asymptote: Annotated[
        float | None,
        typer.Option(
            help="Fixed, for --runs (default: known entropy, else as published) or --form power (default: free)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for fit.json and the figures as SVG.", show_default=False)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out progress and notes.")] = False,
) -> None:
    """Repeat the published loss forecast.

    As published, and again with each of its choices made otherwise; or by the same procedure on one's own runs; or a
    law of another form on one's own points, frozen before the outcome if wanted.

    Example: marin-repro fit --out forecast
    """
    from repro.errors import UsageError
    from repro.files import canonical_json
    from repro.ladder.sensitivity import study_record
    from repro.record.facts import load_record

    say = _silent if quiet else _to_stderr
    _refuse_mixed(points=points, form=form, at=at, freeze=freeze, seed=seed, runs=runs or more_runs, record=record)
    if points is not None and form is not None:
        from repro.cli.points import fit_own_points

        result = fit_own_points(
            points,
            form,
            asymptote=asymptote,
            at=at or (),
            seed=seed,
            freeze_to=freeze,
            say=say,
            json_output=json_output,
        )
        if out is not None:
            _write(result, (), out)
        return
    facts = load_record(record)
    if runs:
        _fit_runs([*runs, *(more_runs or ())], facts, asymptote, out, say, json_output=json_output)
        return
    if more_runs:
        raise UsageError(f"what is {more_runs[0]} for? Folders of runs go after --runs.")
    if asymptote is not None:
        raise UsageError(
            "--asymptote goes with --runs or --points; that of a record stands in its record.toml, [forecast]."
        )
    study = study_record(facts)
    say(f"{facts.run.title}: one law at each of {len(study.fit.points)} marks, {len(study.variants)} other fits.")
    result = canonical_json(study.as_json())
    if out is not None:
        say("Drawing the figures.")
        _write(result, draw(facts, study), out)
    if json_output:
        typer.echo(result, nl=False)
    else:
        _print_tables(study)
    for note in (*study.notes, *(f"The bootstrap assumes: {words}" for words in study.bootstrap.assumes)):
        say(note)
    if out is not None:
        say(f"Written: {out}/{RESULT} and the figures.")


def _refuse_mixed(*, points: Path | None, runs: object, record: Path | None, **of_points: object) -> None:
    """UsageError where options of --points stand without it, or with those of another fit."""
    from repro.errors import UsageError

    if points is None:
        for name, value in of_points.items():
            if value is not None:
                raise UsageError(f"--{name} goes with --points, a CSV file of what is to be fitted.")
        return
    if runs or record:
        raise UsageError(f"--points and --{'runs' if runs else 'record'} are two different fits; ask for one.")
    if of_points["form"] is None:
        raise UsageError("--points needs --form: power (columns flops, loss) or chinchilla (params, tokens, loss).")


def draw(record: Record, study: Study | None = None) -> tuple[Drawing, ...]:
    """The figures of a record's forecast, in the order of the argument. Raises what `study_record` raises."""
    from repro.ladder import figures
    from repro.ladder.sensitivity import study_record

    study = study or study_record(record)
    return (
        Drawing("laws", figures.draw_laws(study.fit), figures.describe_laws(study.fit)),
        Drawing("forecast", figures.draw_forecast(study, record), figures.describe_forecast(study, record)),
    )


def _fit_runs(
    folders: list[Path],
    facts: Record,
    asymptote: float | None,
    out: Path | None,
    say: Callable[[str], None],
    *,
    json_output: bool,
) -> None:
    """The same on one's own runs, and the target's residuals where it was run."""
    from repro.files import canonical_json
    from repro.ladder.fit import fit_record
    from repro.ladder.rerun import study_runs

    published = fit_record(facts) if facts.forecast else None
    found = study_runs(folders, published=published, asymptote=asymptote)
    result = canonical_json(found.as_json())
    if out is not None:
        from repro.ladder import figures

        _write(result, (Drawing("rerun", figures.draw_rerun(found), figures.describe_rerun(found)),), out)
    if json_output:
        typer.echo(result, nl=False)
    else:
        _print_tables(found.study)
        _print_rerun(found)
    for note in (*found.study.notes, *(f"The bootstrap assumes: {words}" for words in found.study.bootstrap.assumes)):
        say(note)


def _print_rerun(found: RerunStudy) -> None:
    """The target against its forecast; the exponent against the published; the asymptote against the truth."""
    from rich.console import Console

    console, final = Console(highlight=False), found.study.fit.final
    if found.comparisons:
        table = _table("progress", "measured", "forecast", "difference")
        for one in found.comparisons:
            table.add_row(f"{one.fraction:.0%}", f"{one.measured:.4f}", f"{one.predicted:.4f}", f"{one.residual:+.4f}")
        console.print(table)
    table = _table("beside what is known", "here", "known")
    if found.published:
        table.add_row("alpha, published law", f"{final.alpha:.4f}", f"{found.published.final.alpha:.4f}")
    if found.entropy:
        free = found.study.free_asymptote
        low, high = free.interval_95
        here = f"{free.asymptote:.3f} ({low:.2f} to {high:.2f})"
        table.add_row("asymptote free, entropy rate", here, f"{found.entropy['rate']:.4f}")
    if table.row_count:
        console.print(table)


def _write(result: str, drawings: tuple[Drawing, ...], out: Path) -> None:
    """Each file whole or not at all; fit.json last, so that its presence means that all are there."""
    from repro.files import write_atomically

    for drawing in drawings:
        write_atomically(out / f"{drawing.name}.svg", drawing.svg)
    write_atomically(out / RESULT, result)


def _to_stderr(line: str) -> None:
    typer.echo(line, err=True)


def _silent(line: str) -> None:
    pass


def _print_tables(study: Study) -> None:
    """The forecast by mark, then by choice."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_by_mark(study))
    console.print(_by_choice(study))


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _by_mark(study: Study) -> Table:
    table = _table("progress", "A", "alpha", f"{study.fit.forecast.target}, nats/token", "other choices")
    for law, (low, high) in zip(study.fit.points, study.band(), strict=True):
        table.add_row(
            f"{law.fraction:.0%}",
            f"{law.coefficient:.3f}",
            f"{law.alpha:.6f}",
            f"{law.prediction:.6f}",
            f"{low:.4f} to {high:.4f}",
        )
    return table


def _by_choice(study: Study) -> Table:
    final, free, bootstrap = study.fit.final.prediction, study.free_asymptote, study.bootstrap
    published = (study.fit.forecast.asymptote, study.fit.tail.correction if study.fit.tail else None)
    table = _table("choice, at 100%", "nats/token", "difference, or 95%")
    table.add_row("as published", f"{final:.6f}", "")
    for variant in study.variants:
        label = {
            "asymptote": f"asymptote {variant.value}",
            "leave_one_out": f"without {variant.value}",
            "compute": f"FLOPs {variant.value}".replace("_", " ").replace("lm head", "the LM head"),
            "correction": f"correction {variant.value:.4g}" if isinstance(variant.value, float) else "",
        }[variant.choice]
        if variant.value in published and variant.choice in ("asymptote", "correction"):
            continue
        prediction = variant.fit.final.prediction
        table.add_row(label, f"{prediction:.6f}", f"{prediction - final:+.6f}")
    table.add_section()
    low, high = free.prediction_interval_95
    words = free.identification.partition(":")[0]
    table.add_row(
        f"asymptote free: {free.asymptote:.3f}, {words}", f"{free.prediction:.4f}", f"{low:.4f} to {high:.4f}"
    )
    low, high = bootstrap.interval_95
    label = f"bootstrap, standard deviation {bootstrap.standard_deviation:.4f}"
    table.add_row(label, f"{final:.4f}", f"{low:.4f} to {high:.4f}")
    return table
