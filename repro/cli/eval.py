"""`marin-repro eval`: a checkpoint of a run on Paloma's sets, the uncheatable ones, or lm-eval's tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.cli.processes import Coordinator, Distributed, Mesh, Process, Processes, joined

if TYPE_CHECKING:
    from collections.abc import Callable

LM_EVAL = "lm-eval"


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of the run, as train wrote it.", show_default=False)
    ],
    suite: Annotated[
        str, typer.Option(metavar="NAMES", help="paloma, uncheatable, lm-eval; several with commas between.")
    ] = "paloma",
    data: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Texts: miniature (built in, made up), hub (Paloma itself; gated), or a FOLDER that holds "
            "<source>/val/*.jsonl.gz.",
        ),
    ] = "miniature",
    tasks: Annotated[
        str, typer.Option(metavar="NAMES", help="Tasks of lm-eval, with commas between. Default: the packaged ones.")
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many windows a set, or documents a task; never comparable with all."),
    ] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, help="Examples before each document. Default: as the task says.", show_default=False),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Completed updates. Default: the newest checkpoint.", show_default=False),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="The tokenizers file that the run was trained with; bytes need none.", show_default=False),
    ] = None,
    router_bias: Annotated[
        str, typer.Option(help="saved: of the last update, as published. pending: of the next forward pass.")
    ] = "saved",
    mesh: Mesh = None,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
    log_samples: Annotated[bool, typer.Option("--log-samples", help="Keep each document's answer (lm-eval).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Evaluate again where the result is there.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out the progress.")] = False,
) -> None:
    """Evaluate a run at a checkpoint; results go into RUN/evals.

    Every value carries its definition: which sets and texts, averaged how, with drops or without. Those of the built-in
    miniature compare runs with one another, and with nothing published. On several machines every process runs this
    same command (docs/clusters.md).

    Example: marin-repro eval runs/d768-smoke --suite paloma
    """
    from repro.files import canonical_json

    texts, with_tasks = _suites(suite)
    done: list[tuple[Path, Mapping[str, Any], bool]] = []
    with joined("eval", distributed=distributed, coordinator=coordinator, processes=processes, process=process):
        import jax

        is_first = jax.process_index() == 0
        quiet = quiet or not is_first
        say = _silent if quiet else _to_stderr
        of_both = {"step": step, "tokenizer": tokenizer, "router_bias": router_bias, "limit": limit}
        of_both |= {"mesh": mesh, "force": force}
        if texts:
            paloma = _import("paloma")
            say(f"{run}: {' and '.join(texts)} on {data}. Compiling: half a minute and more on a CPU.")
            with _progress(shown=not quiet) as report:
                done.append(paloma.evaluate_run(run, texts, data=data, report=report, **of_both))
        if with_tasks:
            suite_of_tasks = _import("lm_eval_suite")
            names = [name.strip() for name in tasks.split(",") if name.strip()]
            shown = ", ".join(names) or "the packaged tasks"
            say(f"{run}: {shown} with lm-eval. Compiling: a minute and more on a CPU.")
            more = {"num_fewshot": num_fewshot, "log_samples": log_samples}
            done.append(suite_of_tasks.evaluate_run(run, names, **more, **of_both))
    if not is_first:
        return
    if json_output:
        evaluations = [{"path": str(path), "unchanged": same, "result": result} for path, result, same in done]
        typer.echo(canonical_json({"run": str(run), "evaluations": evaluations}), nl=False)
        return
    for path, result, same in done:
        for line in _lines(result) if "metrics" in result else _scores(result):
            typer.echo(line)
        typer.echo(f"{path}{', unchanged: of the same inputs (--force evaluates again)' if same else ''}")


def _suites(names: str) -> tuple[list[str], bool]:
    """Suites of texts, in one evaluation, and whether lm-eval is asked for too. Raises UsageError."""
    from evals.sources import SETS
    from repro.errors import UsageError

    wanted = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in wanted:
        if name not in (*SETS, LM_EVAL):
            raise UsageError(f"--suite {name}: no such suite. They are {', '.join((*SETS, LM_EVAL))}.")
    return [name for name in SETS if name in wanted], LM_EVAL in wanted


def _import(module: str) -> Any:
    """A module of `evals`, with all that it needs. Raises MissingExtraError."""
    from importlib import import_module

    from repro.cli.train import needs_training
    from repro.errors import MissingExtraError

    try:
        with needs_training("eval"):
            return import_module(f"evals.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise MissingExtraError(
            f"eval needs the package {error.name}, which is not installed. Run: pip install 'marin-repro[evals]'"
        ) from error


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What a reader wants first."""
    data = result["data"]
    yield (
        f"{result['rung']} at scale {result['scale']}, {result['steps_completed']:,} updates "
        f"({result['fraction']:.0%}); context {result['context']:,}, router bias {result['router_bias']}"
    )
    yield f"texts: {data['what']}" + (f" ({data['level']})" if data["level"] != data["kind"] else "")
    if not result["bytes"]["passed"]:
        yield f"no bits a byte: {result['bytes']['why']}"
    for way, prefix in (("dropless", "eval_dropless"), ("as trained", "eval")):
        for suite in result["suite"].split("+"):
            of_suite = {
                name.rpartition("/")[2]: metric["value"]
                for name, metric in result["metrics"].items()
                if name.rpartition("/")[0] == f"{prefix}/{suite}"
            }
            line = f"{suite}, {way}: macro {of_suite['macro_loss']:.4f}, micro {of_suite['micro_loss']:.4f} nats/token"
            if "micro_bits_per_byte" in of_suite:
                line += f"; {of_suite['macro_bits_per_byte']:.4f}, {of_suite['micro_bits_per_byte']:.4f} bits/byte"
            yield f"{line}; {result['drop_fraction'][way.replace(' ', '_')]:.1%} dropped"


def _scores(result: Mapping[str, Any]) -> Iterator[str]:
    """lm-eval's own table."""
    from lm_eval.utils import make_table

    done = f"{result['steps_completed']:,} updates ({result['fraction']:.0%})"
    yield f"{result['rung']} at scale {result['scale']}, {done}"
    yield make_table(dict(result))


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar of text done, with time left, on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda done, total: None
        return
    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _to_stderr(line: str) -> None:
    typer.echo(line, err=True)


def _silent(line: str) -> None:
    pass
