"""`marin-repro plan`: the resolved recipe of a rung, for a person as a table, for a program as one JSON object."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Annotated

import typer

from repro.cli.plan_paper import measured_steps, print_estimate, print_paper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from repro.ladder.hardware import Device, Estimate
    from repro.ladder.paper import Paper
    from repro.ladder.recipe import Explanation, Recipe


def plan(
    rung: Annotated[
        str, typer.Argument(metavar="RUNG", help="d768, d1024, d1536, d2048 or d6144 (the hero).", show_default=False)
    ],
    scale: Annotated[
        str, typer.Option(help="full (as published), mini (about an hour), smoke (minutes), or a TOML file.")
    ] = "full",
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="RxE",
            help="Lower the training step over this mesh: replicas x (data x) expert shards; 11x64 is the hero's.",
            show_default=False,
        ),
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option("--compile/--no-compile", help="With --mesh: compile it for that many CPU devices, for memory."),
    ] = True,
    device: Annotated[
        str | None, typer.Option(help="How long and how much on H100, H200, B200 or GB200.", show_default=False)
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="So many of them. Default: the mesh's, or as published.", show_default=False)
    ] = None,
    mfu: Annotated[
        float | None, typer.Option(help="Share of the peak to reckon with. Default: published.", show_default=False)
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Of one device for an hour, in any currency.", show_default=False)
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Add the formula and the source of each number.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out the title and the notes.")] = False,
) -> None:
    """Show every resolved number of a rung's run.

    By closed formulas, and without JAX; --explain adds each formula and who published it. A scale other than full is
    listed with everything that it makes otherwise, the published value beside it. --device tells how long it takes on
    so many devices; --mesh puts the training step itself on paper: memory, bytes between devices, bounds on its time.

    Example: marin-repro plan d768 --device H200 --count 8
    """
    from repro.files import canonical_json
    from repro.ladder import recipe as recipes
    from repro.ladder.meshes import parse_mesh

    recipe = recipes.resolve_recipe(rung, scale)
    rows = recipes.explain(recipe)
    if mesh and count is None:
        count = prod(parse_mesh(mesh).values()) if device else None
    estimated = _estimate(recipe, device, count, mfu, price)
    paper = _paper(recipe, mesh, compiled=compiled, quiet=quiet or json_output) if mesh else None
    if json_output:
        result = recipe.as_json()
        if paper:
            result["memory_per_device"] = paper.memory_json()
            result["communication_per_step"] = paper.communication_json()
            result["time_per_step"] = paper.time_json(_devices(device))
            result["measured"] = measured_steps(recipe)
        if estimated:
            result["estimate"] = estimated.as_json()
        if explain:
            result["explain"] = [row._asdict() for row in rows]
            result["sources"] = dict(recipes.SOURCES)
        typer.echo(canonical_json(result), nl=False)
        return
    _print_table(recipe, rows, recipes.SOURCES if explain else None, quiet=quiet)
    if estimated:
        print_estimate(estimated)
    if paper:
        print_paper(paper, _devices(device), quiet=quiet)


def _estimate(
    recipe: Recipe, device: str | None, count: int | None, mfu: float | None, price: float | None
) -> Estimate | None:
    """How long and how much on a kind of device; None where none was named."""
    from repro.errors import UsageError
    from repro.ladder import hardware

    if device is None:
        for name, value in (("--count", count), ("--mfu", mfu), ("--price", price)):
            if value is not None:
                raise UsageError(f"{name} needs --device, one of {', '.join(hardware.DEVICES)}.")
        return None
    kind = hardware.get_device(device)
    return hardware.estimate(recipe, kind, recipe.gpus if count is None else count, share=mfu, price=price)


def _devices(device: str | None) -> list[Device]:
    from repro.ladder import hardware

    return [hardware.get_device(device)] if device else list(hardware.DEVICES.values())


def _paper(recipe: Recipe, mesh: str, *, compiled: bool, quiet: bool) -> Paper:
    """The training step over a mesh. Raises MissingExtraError where JAX is not installed."""
    from dataclasses import replace

    from repro.cli.train import needs_training
    from repro.ladder import compiled_step
    from repro.ladder.meshes import check_mesh, parse_mesh

    with needs_training("plan --mesh"):
        from repro.ladder.paper import put_on_paper
        from repro.ladder.step import recomputes
    sizes, remat = parse_mesh(mesh), recomputes(recipe)
    check_mesh(recipe, sizes)
    process = compiled_step.start(recipe, sizes, remat=remat) if compiled else None
    try:
        paper = put_on_paper(recipe, sizes, remat=remat)
        if process is None:
            return paper
        if not quiet:
            typer.echo("Compiling for CPU devices: about a minute for the hero. --no-compile leaves it out.", err=True)
        return replace(paper, compiled=compiled_step.finish(process))
    finally:
        if process is not None and process.poll() is None:
            process.kill()


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
