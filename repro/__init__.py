"""Reproduce Marin 535B-A23B from its public record: the record, the recipe, the runs and the command line."""

__version__ = "0.1.0"
