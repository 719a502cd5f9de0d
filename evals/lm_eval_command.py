"""The console script `marin-lm-eval`: lm-eval's own command, with `marin_jax` and the packaged tasks known to it.

Batches are as large as is useful where nothing else is said; the packaged tasks are found where no other folder is
named. All else is lm-eval's, its options, output and exit codes.
"""

from __future__ import annotations

import os
import sys

from repro.errors import MarinReproError, MissingExtraError


def run() -> None:
    """Entry point. What a user can mend is one line on standard error, and exit code 2."""
    try:
        _run()
    except MarinReproError as error:
        print(f"marin-lm-eval: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


def _run() -> None:
    try:
        from lm_eval import utils
        from lm_eval._cli import HarnessCLI

        from evals.harness import NAME, TASKS
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("evals", "repro", "marin_model")):
            raise
        raise MissingExtraError(f"{error.name} is not installed. Run: pip install 'marin-repro[evals]'") from error
    utils.setup_logging()
    command = HarnessCLI()
    given = command.parse_args()
    if getattr(given, "config", None) is None:
        if getattr(given, "include_path", TASKS) is None:
            given.include_path = str(TASKS)
        if getattr(given, "model", None) == NAME and not hasattr(given, "batch_size"):
            given.batch_size = "auto"
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # lm-eval would fork, which JAX's threads may lock for ever
    command.execute(given)
