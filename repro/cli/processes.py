"""Options of the commands that run as one program of many processes: `train` and `eval`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Mesh = Annotated[
    str | None,
    typer.Option(
        metavar="RxE", help="Devices as replicas x (data x) expert shards. Default: one device.", show_default=False
    ),
]
Distributed = Annotated[
    bool, typer.Option("--distributed", help="One process of many, as SLURM, Open MPI or Kubernetes says.")
]
Coordinator = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Of process 0, where nothing says.", show_default=False)
]
Processes = Annotated[int | None, typer.Option(help="In all; with --coordinator.", show_default=False)]
Process = Annotated[int | None, typer.Option(help="Which this is, from 0 on.", show_default=False)]


@contextmanager
def joined(
    command: str, *, distributed: bool, coordinator: str | None, processes: int | None, process: int | None
) -> Iterator[None]:
    """Be one of the processes that the options name. Raises UsageError, and MissingExtraError without JAX."""
    from repro.cli.train import needs_training

    with needs_training(command):
        from repro.ladder.world import connected, join_arguments
    join = join_arguments(coordinator, processes, process)
    with connected({} if distributed and join is None else join):
        yield
