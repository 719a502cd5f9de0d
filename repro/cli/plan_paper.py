"""What `marin-repro plan` prints of time, cost and the training step on paper, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from repro.ladder.hardware import Device, Estimate
    from repro.ladder.paper import Paper
    from repro.ladder.recipe import Recipe


def print_estimate(made: Estimate) -> None:
    """How long and how much, in a few lines."""
    days = f" ({made.hours / 24:,.1f} days)" if made.hours > 48 else ""
    lines = [
        f"On {made.count:,} x {made.device.name}, at {made.mfu:.1%} of the peak ({made.mfu_source}):",
        f"  {made.hours:,.1f} hours{days}, {made.device_hours:,.0f} device-hours, "
        f"{made.tokens_per_second:,.0f} tokens/s, {made.step_seconds:,.2f} s a step; "
        f"{made.hours_at_peak:,.1f} hours at the peak",
        f"  {made.state_bytes_per_device / 1e9:,.1f} GB a device for weights, momentum and gradients at the least, of "
        f"{made.device.memory / 1e9:,.0f} GB; activations come on top (--mesh)",
    ]
    if made.cost is not None:
        lines.append(f"  cost: {made.cost:,.0f}")
    typer.echo("\n".join([*lines, f"  {made.device.source}"]))


def print_paper(paper: Paper, devices: list[Device], *, quiet: bool) -> None:
    """Memory, bytes and bounds of a step as tables, the published run's measured steps beside them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from repro.ladder.meshes import show_mesh

    console = Console(highlight=False)
    memory, sent, times = paper.memory_json(), paper.communication_json(), paper.time_json(devices)

    def print_table(title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(Text(title, style="bold"))
        console.print(table)

    parts = ("parameters", "gradients", "optimizer_state", "compute_copy", "activations", "total")
    rows: list[tuple[str, ...]] = [
        (p.replace("_", " "), _gigabytes(memory[p]), _gigabytes(memory["per_host"][p])) for p in parts
    ]
    if paper.compiled:
        sizes = paper.compiled.memory.items()
        rows += [(f"CPU compiler's estimate: {name}", _gigabytes(size), "") for name, size in sizes]
    print_table(
        f"Memory on {show_mesh(paper.mesh)} = {paper.devices:,} devices", ("GB", "a device", "a host of 4"), rows
    )
    rows = [
        ("dispatch and combine, in the latent width", _gigabytes(sent["dispatch_combine"])),
        ("the same at full width", _gigabytes(sent["dispatch_combine_without_latent"])),
        ("weights gathered in a rack", _gigabytes(sent["weights"])),
        ("gradients summed in a rack", _gigabytes(sent["gradients"])),
        ("matrices made whole for Newton-Schulz", _gigabytes(sent["optimizer"] + sent["optimizer_experts"])),
        ("expert gradients between racks", _gigabytes(sent["expert_gradients"])),
        ("dense gradients between racks", _gigabytes(sent["gradients_between_racks"])),
    ]
    print_table("Bytes that leave a device in a step", ("what", "GB"), rows)
    if paper.compiled:
        print_table(
            "Elements that leave a device in a step: by these formulas, and in the compiled program",
            ("collective", "formulas", "program"),
            [
                (kind, f"{sent['elements'][kind]:,}" if kind in sent["elements"] else "", f"{count:,}")
                for kind, count in paper.compiled.sent.items()
            ],
        )
    print_table(
        "FLOPs of a device in a step",
        ("what", "FLOPs"),
        [(name, f"{flops:.4e}") for name, flops in times["flops_per_device"].items()],
    )
    kinds = ("compute", "memory", "links", "network", "overlapped", "in_turn")
    print_table(
        "Seconds of a step at the least",
        ("device", *(kind.replace("_", " ") for kind in kinds), "MFU at most", "fits"),
        [
            (
                name,
                *(f"{bound[f'{kind}_seconds']:.2f}" for kind in kinds),
                f"{bound['mfu_at_most']:.1%}",
                "yes" if bound["fits"] else "no",
            )
            for name, bound in times["bounds"].items()
        ],
    )
    for row in measured_steps(paper.recipe):
        console.print(
            Text(
                f"Measured on 704 GB200: step {row['step']:,} took {row['seconds']:.2f} s, "
                f"{row['tokens_per_second']:,.0f} tokens/s, MFU {row['mfu']:.2%} by our count, "
                f"{row['mfu_published']:.2%} as logged ({row['run']})."
            )
        )
    if not quiet:
        console.print(
            Text(
                f"The lowered step makes {times['executed_over_launcher']:.2f} times the launcher's FLOPs: layers made "
                "again, rows that fill capacities, Newton-Schulz. Bounds count nothing but products, bytes and data "
                "sheets."
            )
        )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f}"


def measured_steps(recipe: Recipe) -> list[dict[str, float | int | str]]:
    """Steps of the published run that the record has with their time: the first after start-up, and the last."""
    from repro.ladder.hardware import DEVICES, mfu
    from repro.ladder.scales import HERO
    from repro.record.facts import load_record

    if recipe.rung != HERO or recipe.scale != "full":
        return []
    timed = [row for row in load_record().hero_train if row.step_seconds and row.step > 0]
    return [
        {
            "step": row.step,
            "run": row.run,
            "seconds": row.step_seconds or 0.0,
            "tokens_per_second": row.tokens_per_second or 0.0,
            "mfu_published": (row.mfu_percent or 0.0) / 100,
            "mfu": mfu(recipe, DEVICES["GB200"], recipe.gpus, row.step_seconds or 0.0),
        }
        for row in (timed[0], timed[-1])
    ]
