"""`marin-repro plan`: the resolved recipe of a rung, for a person as a table, for a program as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from repro.ladder.recipe import Explanation, Recipe


def plan(
    rung: Annotated[
        str, typer.Argument(metavar="RUNG", help="d768, d1024, d1536, d2048 or d6144 (the hero).", show_default=False)
    ],
    scale: Annotated[
        str, typer.Option(help="full (as published), mini (hours on two cores), smoke (minutes), or a TOML file.")
    ] = "full",
    explain: Annotated[bool, typer.Option("--explain", help="Add the formula and the source of each number.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out the title and the notes.")] = False,
) -> None:
    """Show every resolved number of a rung's run.

    By closed formulas, and without JAX; --explain adds each formula and who published it. A scale other than full is
    listed with everything that it makes otherwise, the published value beside it.

    Example: marin-repro plan d6144 --explain
    """
    from repro.files import canonical_json
    from repro.ladder import recipe as recipes

    recipe = recipes.resolve_recipe(rung, scale)
    rows = recipes.explain(recipe)
    if json_output:
        result = recipe.as_json()
        if explain:
            result["explain"] = [row._asdict() for row in rows]
            result["sources"] = dict(recipes.SOURCES)
        typer.echo(canonical_json(result), nl=False)
        return
    _print_table(recipe, rows, recipes.SOURCES if explain else None, quiet=quiet)


def _print_table(recipe: Recipe, rows: list[Explanation], sources: Mapping[str, str] | None, *, quiet: bool) -> None:
    """Print one row a quantity; with `sources`, formula and source too, and below them where each source is found."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not quiet:
        console.print(Text(f"{recipe.rung} at scale {recipe.scale}", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("quantity", max_width=22 if sources else None)
    table.add_column("value", justify="right", no_wrap=True)
    if sources:
        table.add_column("formula, and its source")
    for row in rows:
        cells = [Text(row.quantity), Text(_shown(row.value))]
        if sources:
            cells.append(Text.assemble(row.formula, "\n", (row.source, "dim")))
        table.add_row(*cells)
    console.print(table)
    for name, address in (sources or {}).items():
        if any(name in row.source for row in rows):
            console.print(Text.assemble(f"{name}: ", (address, "dim")), soft_wrap=True)
    if quiet:
        return
    if recipe.departures:
        console.print(Text("Departures from the published run"))
        console.print(_departures(recipe))
    else:
        console.print(Text("Departures from the published run: none."))
    console.print(
        Text(
            "FLOPs come in two conventions: with the LM head, as the launcher publishes them, and without, as the "
            "forecast counts compute. Exact integers: --json."
        )
    )


def _departures(recipe: Recipe) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(("what", "published", "here")):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for departure in recipe.departures:
        table.add_row(departure.what, _shown(departure.published), _shown(departure.here))
    return table


def _shown(value: float | str) -> str:
    """Integers in full with separators, FLOPs in six digits, other floats in every digit."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:.5e}" if value > 10**15 else f"{value:,}"
    return repr(value)
