"""Errors that are a user's to mend, each with the exit code that the command line gives it.

    MarinReproError          2
    ├── UsageError           2   an argument that cannot be meant: an unknown rung, a scale that does not exist
    ├── RecordError          2   a record that is missing, malformed, or changed since it was locked
    ├── FitError             2   points from which no law can be fitted
    ├── OutputError          2   a folder or file that cannot be written
    ├── NoAnswerError        3   a service that must answer first gave no answer that could be used
    ├── TrainingError        2   a training run that cannot go on: a loss that is not finite, a norm that drifts
    └── MissingExtraError    2   a command whose optional packages are not installed

Findings (exit 1) are results, not errors. Anything else that escapes is a bug of ours: the command line shows its
traceback and exits 70, so that a crash is never read as a finding.
"""

from __future__ import annotations


class MarinReproError(Exception):
    """Something the user can mend. The message says what was wrong, where, and what to do next."""

    exit_code = 2


class UsageError(MarinReproError):
    """An argument that cannot be meant."""


class RecordError(MarinReproError):
    """A record that is missing, malformed, or changed since it was locked."""


class FitError(MarinReproError):
    """Points from which no law can be fitted; the message names the rung and the step."""


class OutputError(MarinReproError):
    """A folder or file that cannot be written."""


class NoAnswerError(MarinReproError):
    """A service that must answer before anything else can be done gave no answer that could be used."""

    exit_code = 3


class TrainingError(MarinReproError):
    """A training run that cannot go on; the message names the step, and what was kept."""


class MissingExtraError(MarinReproError):
    """A command whose optional packages are not installed."""
