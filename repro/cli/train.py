"""`marin-repro train`: a rung of the ladder, trained at a scale into a run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.cli.processes import Coordinator, Distributed, Mesh, Process, Processes, joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from repro.ladder.corpus import Store
    from repro.ladder.recipe import Recipe
    from repro.ladder.train import Outcome
    from repro.ladder.world import World
    from repro.record.facts import Record

PACKAGES = {"jax", "jaxlib", "flax", "optax", "orbax", "jaxtyping"}  # of the extra [train]
RUNS = Path("runs")
SYNTHETIC = "harrier-synthetic"
SAY_EVERY = 10.0  # seconds, while a store is built


def train(
    rung: Annotated[
        str, typer.Argument(metavar="RUNG", help="d768, d1024, d1536, d2048 or d6144 (the hero).", show_default=False)
    ],
    scale: Annotated[str, typer.Option(help="full, mini (about an hour), smoke (minutes), or a TOML file.")] = "full",
    data: Annotated[
        str,
        typer.Option(
            metavar="SPEC", help="harrier-synthetic, a data file (docs/data.md), or the folder of a token store."
        ),
    ] = SYNTHETIC,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/RUNG-SCALE.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights and data order; the published is 0.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    steps: Annotated[
        int | None, typer.Option(help="Stop when so many steps are done. Default: the whole run.", show_default=False)
    ] = None,
    mesh: Mesh = None,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
    remat: Annotated[
        bool | None,
        typer.Option(
            "--remat/--no-remat",
            help="Compute each layer again in the backward pass, for memory. Default: at scale full.",
            show_default=False,
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write metrics as TensorBoard events, into OUT/tensorboard.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out the progress.")] = False,
) -> None:
    """Train a rung of the ladder, or go on with it.

    Metrics, held-out losses and checkpoints go into the run's folder; plan shows first what it will take. Ctrl-C saves,
    and --resume goes on to the same bits. On several machines every process runs this same command, in one folder that
    all see (docs/clusters.md).

    Example: marin-repro train d768 --scale smoke
    """
    from repro.files import canonical_json
    from repro.ladder.extras import require
    from repro.ladder.meshes import check_mesh, parse_mesh
    from repro.ladder.recipe import resolve_recipe
    from repro.record.facts import load_record

    if tensorboard:
        require("tensorboardX", "--tensorboard")
    recipe = resolve_recipe(rung, scale)
    sizes = parse_mesh(mesh) if mesh else None
    if sizes:
        check_mesh(recipe, sizes)
    out = out or RUNS / (f"{recipe.rung}-{Path(scale).stem}" + (f"-seed{seed}" if seed else ""))
    with joined("train", distributed=distributed, coordinator=coordinator, processes=processes, process=process):
        from repro.ladder.world import make_world

        world = make_world(recipe, sizes)
        outcome = train_rung(
            recipe,
            load_record(),
            out,
            data=data,
            seed=seed,
            resume=resume,
            steps=steps,
            quiet=quiet or not world.is_first,
            world=world,
            remat=remat,
            tensorboard=tensorboard and world.is_first,
        )
    if not world.is_first:
        return
    result = {"run": str(out), **outcome._asdict()}
    if json_output:
        typer.echo(canonical_json(result), nl=False)
    else:
        state = (
            "finished" if outcome.finished else f"stopped, as asked; {recipe.steps - outcome.steps_completed:,} left"
        )
        typer.echo(f"{out}: {outcome.steps_completed:,} of {recipe.steps:,} steps, {state}")


def train_rung(
    recipe: Recipe,
    record: Record,
    out: Path,
    *,
    data: str = SYNTHETIC,
    seed: int = 0,
    resume: bool = False,
    steps: int | None = None,
    quiet: bool = False,
    world: World | None = None,
    remat: bool | None = None,
    tensorboard: bool = False,
) -> Outcome:
    """Train a rung into a folder and say on the way how it goes. A store that is made lies beside the folder."""
    training = _training()
    world = world or training.ALONE
    world.first_does(lambda: training.check_call(recipe, out, resume=resume, steps=steps))
    from repro.ladder.run_data import open_data
    from repro.ladder.tensorboard import open_tensorboard

    say = _silent if quiet else _to_stderr
    say(f"{recipe.rung} at scale {recipe.scale}: {recipe.steps:,} steps, {recipe.tokens:,} tokens, into {out}.")
    if world.processes > 1:  # one of them makes the store where it is not there
        world.first_does(lambda: open_data(data, recipe, record, out.parent, _building(say), seed=seed))
    found = open_data(data, recipe, record, out.parent, _building(say), seed=seed)
    say(_data_line(found.batches.store))
    if found.entropy:
        rate, unigram = found.entropy
        say(f"Held-out data: entropy rate {rate:.4f} nats/token, {unigram:.4f} by letters alone.")
    say("Compiling: half a minute and more on a CPU.")
    with ExitStack() as held:
        on_step = held.enter_context(_progress(steps or recipe.steps, shown=not quiet))
        tracker = held.enter_context(open_tensorboard(out)) if tensorboard else None

        def on_row(row: Mapping[str, Any]) -> None:
            on_step(row)
            if tracker:
                tracker.on_step(row)

        def on_evaluation(result: Mapping[str, Any]) -> None:
            say(_evaluation_line(result))
            if tracker:
                tracker.on_evaluation(result)

        outcome: Outcome = training.train(
            recipe,
            found.batches,
            out,
            seed=seed,
            resume=resume,
            steps=steps,
            record=_record_identity(record.folder),
            entropy=found.entropy._asdict() if found.entropy else None,
            on_step=on_row,
            on_evaluation=on_evaluation,
            world=world,
            remat=remat,
        )
    return outcome


def _training() -> Any:
    """The training loop, with everything it needs. Raises MissingExtraError."""
    with needs_training("train"):
        from repro.ladder import train as training
    return training


@contextmanager
def needs_training(command: str) -> Iterator[None]:
    """Turn a missing package of the extra [train] into MissingExtraError, which says what to install."""
    from repro.errors import MissingExtraError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise MissingExtraError(
            f"{command} needs the package {error.name}, which is not installed. Run: pip install 'marin-repro[train]'"
        ) from error


def _record_identity(folder: Path) -> dict[str, str]:
    """The record that the recipe is of: its name, and the SHA-256 of its lock, which has every file's."""
    import hashlib

    from repro.files import read_bounded
    from repro.record.lock import LOCK

    return {"name": folder.name, "lock_sha256": hashlib.sha256(read_bounded(folder / LOCK)).hexdigest()}


def _building(say: Callable[[str], None]) -> Callable[[str, int], None]:
    """Says from time to time how far a store is that is being made."""
    from time import monotonic

    last = monotonic()

    def report(cell: str, tokens: int) -> None:
        nonlocal last
        if monotonic() - last >= SAY_EVERY:
            last = monotonic()
            say(f"Building the token store: {tokens:,} tokens of cell {cell}.")

    return report


def _data_line(store: Store) -> str:
    trained, held_out = (sum(stream.tokens for stream in split.values()) for split in (store.train, store.held_out))
    return f"Token store {store.folder}: {trained:,} tokens to train on, {held_out:,} held out, of {store.tokenizer}."


def _evaluation_line(result: Mapping[str, Any]) -> str:
    as_trained, dropless = (result[way]["loss"] for way in ("as_trained", "dropless"))
    return (
        f"{result['fraction']:4.0%}  held-out loss {dropless:.4f} nats/token, {as_trained:.4f} as trained "
        f"({result['as_trained']['drop_fraction']:.1%} dropped)"
    )


@contextmanager
def _progress(steps: int, *, shown: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A bar with rate and time left on a terminal; nothing elsewhere, where each evaluation is a line."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda row: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps)
        yield lambda row: progress.update(
            task,
            completed=row["step"] + 1,
            description=f"loss {row['loss']:.3f}, {row['tokens_per_second']:,.0f} tokens/s",
        )


def _to_stderr(line: str) -> None:
    typer.echo(line, err=True)


def _silent(line: str) -> None:
    pass
