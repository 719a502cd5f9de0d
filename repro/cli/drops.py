"""`marin-repro drops`: what a transport drops at a rung's full routing geometry, by sequence length and capacity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repro.ladder.drops import Room
    from repro.ladder.recipe import Recipe
    from repro.record.facts import Record

SHORTEST = 128  # of the numbers after RUNG, those from here on are sequence lengths, others capacity factors
UNKNOWN_CELLS = 200  # as many as the published mixture has, of equal weight, where the record has no mixture
TRANSPORTS = ("pooled-wave", "ragged")


def drops(
    rung: Annotated[
        str, typer.Argument(metavar="RUNG", help="d768, d1024, d1536, d2048 or d6144 (the hero).", show_default=False)
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="N", hidden=True)] = None,  # --seq-len A B C
    seq_len: Annotated[
        list[str] | None,
        typer.Option(metavar="N ...", help="Tokens a sequence. Default: the rung's.", show_default=False),
    ] = None,
    capacity_factor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="X ...", help="Of both sides, or SENDER:RECEIVER. Default: the rung's.", show_default=False
        ),
    ] = None,
    transport: Annotated[str, typer.Option(help="pooled-wave, ragged or both.")] = "both",
    balance: Annotated[
        str, typer.Option(help="Quantile balancing on the previous batch, on the same one, or off.")
    ] = "previous",
    racks: Annotated[
        int | None, typer.Option(min=1, help="Whose tokens the balance is measured on. Default: the rung's.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Preferences as strong as this trained run's router's.")
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="SPEC", help="Held-out text for --run, as train takes it.")
    ] = "harrier-synthetic",
    draws: Annotated[int, typer.Option(min=1, max=100, help="Layers to draw; 2 or more give an interval.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Other draws.")] = 0,
    scale: Annotated[str, typer.Option(help="full, mini, smoke, or a TOML file.")] = "full",
    record: Annotated[
        Path | None, typer.Option(help="Record whose mixture is read. Default: the built-in one.", show_default=False)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out progress and notes.")] = False,
) -> None:
    """Simulate what the transport drops at full routing geometry.

    Experts are drawn from a stated model of a router; who is dropped is decided by the code that training runs. At full
    scale 25 processor seconds a draw of a sequence length, and 1.5 GB.

    Example: marin-repro drops d6144 --seq-len 4096 65536 --capacity-factor 1.15 1.3
    """
    from repro.cli.train import needs_training
    from repro.files import canonical_json
    from repro.ladder.recipe import resolve_recipe
    from repro.record.facts import load_record

    recipe, facts = resolve_recipe(rung, scale), load_record(record)
    lengths, factors = _numbers(more or (), seq_len or (), capacity_factor or ())
    with needs_training("drops"):
        found = simulate(
            recipe, facts, lengths or [recipe.seq_len], _rooms(recipe, factors, transport), balance,
            racks=racks, run=run, data=data, draws=draws, seed=seed, quiet=quiet,
        )  # fmt: skip
    if json_output:
        typer.echo(canonical_json(found), nl=False)
    else:
        _print_tables(found, quiet=quiet)


def simulate(
    recipe: Recipe,
    facts: Record,
    lengths: Sequence[int],
    rooms: Sequence[Room],
    balance: str,
    *,
    racks: int | None,
    run: Path | None,
    data: str,
    draws: int,
    seed: int,
    quiet: bool,
) -> dict[str, Any]:
    """The `drops` object of the command line."""
    from dataclasses import asdict, replace

    from repro.errors import UsageError
    from repro.ladder import drops as simulator
    from repro.ladder.router_scores import STATED, ScoreModel

    if balance not in simulator.BALANCES:
        raise UsageError(f"--balance {balance}: must be {', '.join(simulator.BALANCES)}.")
    geometry = simulator.geometry_of(recipe)
    geometry = replace(geometry, racks=racks or geometry.racks)
    spreads, source = STATED.spreads(draws), "stated: repro/ladder/router_scores.py"
    if run is not None:
        spreads, source = (
            _measured(run, data, facts, draws),
            f"measured in {run.name}, from its first layers to its last",
        )
    cells, mixture = _cells(recipe, facts)
    model = ScoreModel(
        experts=geometry.experts,
        chosen=geometry.chosen,
        spread=STATED.spread,
        shared=STATED.shared,
        document_tokens=STATED.document_tokens,
        document_sigma=STATED.document_sigma,
        cells=cells,
    )
    rows = []
    kind: simulator.Balance = balance  # type: ignore[assignment]
    for outcome in simulator.simulate(
        geometry, model, seq_lens=lengths, rooms=rooms, spreads=spreads, balanced=kind, seed=seed
    ):
        rows.append(outcome.as_json())
        if not quiet:
            typer.echo(f"Done: {outcome.seq_len:,} tokens, {outcome.room.transport}.", err=True)
    return {
        "rung": recipe.rung,
        "scale": recipe.scale,
        "geometry": asdict(geometry),
        "model": {
            "spreads": list(spreads),
            "spreads_source": source,
            "shared": model.shared,
            "document_tokens": model.document_tokens,
            "document_sigma": model.document_sigma,
            "cells": len(cells),
            "mixture": mixture,
        },
        "balance": balance,
        "seed": seed,
        "rows": rows,
        **_compare(recipe, facts, rows, geometry.racks),
    }


def _numbers(
    more: Sequence[str], lengths: Sequence[str], factors: Sequence[str]
) -> tuple[list[int], list[tuple[float, float]]]:
    """Sequence lengths and (sender, receiver) factors, those after the first of a list included."""
    from repro.errors import UsageError

    counts, pairs = list(lengths), list(factors)
    for text in more:
        (counts if text.isdecimal() and int(text) >= SHORTEST else pairs).append(text)
    try:
        whole = [int(text) for text in counts]
        split = [text.partition(":") for text in pairs]
        return whole, [(float(sender), float(receiver if colon else sender)) for sender, colon, receiver in split]
    except ValueError as error:
        raise UsageError(
            f"{error}. Write --seq-len 4096 8192 in tokens, and --capacity-factor 1.15 1.10:1.15 in numbers."
        ) from error


def _rooms(recipe: Recipe, factors: Sequence[tuple[float, float]], transport: str) -> list[Room]:
    from repro.errors import UsageError
    from repro.ladder.drops import Room

    if transport not in (*TRANSPORTS, "both"):
        raise UsageError(f"--transport {transport}: must be {', '.join(TRANSPORTS)} or both.")
    own = (recipe.model.sender_capacity_factor, recipe.model.capacity_factor)
    rooms = []
    for sender, receiver in factors or [own]:
        if transport != "ragged":
            rooms.append(Room("pooled_wave", sender, receiver))
        if transport != "pooled-wave":
            rooms.append(Room("ragged", None, receiver))
    return list(dict.fromkeys(rooms))


def _cells(recipe: Recipe, facts: Record) -> tuple[tuple[float, ...], str]:
    """Weights of the mixture's cells in the first phase of the rung, and where they are from."""
    from repro.ladder.router_scores import normalised

    if recipe.mixture_weights:
        return normalised(list(recipe.mixture_weights[0].values())), f"scale {recipe.scale}"
    for data in facts.training_data:
        if data.rung == recipe.rung and data.status == "ran" and facts.mixture_weights:
            stage = data.stages[0]
            weights = [row.weights[stage.weights][stage.phase] for row in facts.mixture_weights]
            return normalised(weights), f"record {facts.run.name}, {stage.weights}"
    return normalised(
        [1.0] * UNKNOWN_CELLS
    ), f"{UNKNOWN_CELLS} cells of equal weight: the record has none of {recipe.rung}"


def _measured(run: Path, data: str, facts: Record, draws: int) -> tuple[float, ...]:
    """Spreads of as many layers as are drawn, spread over the depth of a trained run."""
    import numpy as np

    from evals.loading import load_run, weights
    from repro.ladder.measured_routing import count_choices, measure_spreads
    from repro.ladder.run_data import open_data

    loaded = load_run(run)
    found = open_data(data, loaded.recipe, facts, run.parent)
    tokens, _, segments = found.batches.held_out(loaded.recipe.evaluation_tokens)
    counts, sizes = count_choices(weights(loaded), loaded.config, np.asarray(tokens), np.asarray(segments))
    layers = measure_spreads(counts, sizes, chosen=loaded.config.num_experts_per_token)
    return tuple(layers[int((draw + 0.5) * len(layers) / draws)] for draw in range(draws))


def _compare(recipe: Recipe, facts: Record, rows: Sequence[dict[str, Any]], racks: int) -> dict[str, Any]:
    """What the record reports beside the rows; nothing but for the run it is about."""
    from repro.cli.track import read_statements
    from repro.ladder import reported_drops as reports
    from repro.ladder.trends import DROP_FRACTION

    if facts.forecast is None or recipe.rung != facts.forecast.target or recipe.scale != "full":
        return {"record": [], "growth": [], "told": []}
    statements = [one for one in read_statements(facts) if one.quantity == DROP_FRACTION]
    own = recipe.model.sender_capacity_factor, recipe.model.capacity_factor
    simulated = [
        reports.Row(
            reports.Conditions(row["seq_len"], row["transport"], racks), row["drop_fraction"], *row["interval_95"]
        )
        for row in rows
        if (row["sender_factor"] or own[0], row["receiver_factor"]) == own
    ]
    compared = reports.compare(statements, simulated, seq_len=recipe.seq_len, racks=recipe.racks)
    growths = reports.grow(compared)
    return {
        "record": [one.as_json() for one in compared],
        "growth": [one.as_json() for one in growths],
        "told": list(reports.lines(compared, growths)),
    }


def _print_tables(found: dict[str, Any], *, quiet: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("tokens", "transport", "factor", "dropped", "95%", "sequence's ends"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found["rows"]:
        low, high = row["interval_95"]
        sender = row["sender_factor"]
        factor = f"{row['receiver_factor']:g}" if sender is None else f"{sender:g}:{row['receiver_factor']:g}"
        table.add_row(
            f"{row['seq_len']:,}",
            row["transport"].replace("_", "-"),
            factor,
            _share(row["drop_fraction"]),
            "" if low is None else f"{_share(low)} to {_share(high)}",
            f"{_share(row['by_position'][0])} to {_share(row['by_position'][-1])}",
        )
    console.print(table)
    if quiet:
        return
    for line in found["told"]:
        console.print(Text(f"The record: {line}."))
    model = found["model"]
    spreads = ", ".join(f"{spread:.2f}" for spread in model["spreads"])
    console.print(
        Text(
            f"Router: spreads {spreads} ({model['spreads_source']}); documents of {model['document_tokens']:g} tokens "
            f"on average; {model['cells']} cells ({model['mixture']}); balance {found['balance']}, over "
            f"{found['geometry']['racks']} racks. docs/drops.md says how far this goes."
        )
    )


def _share(value: float) -> str:
    return f"{value:.2%}" if value >= 0.001 or value == 0 else f"{value:.1e}"
