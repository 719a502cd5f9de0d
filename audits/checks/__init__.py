"""Checks: what a reader takes for granted, held against what the record holds. One function a check, one file a theme.

A relation finds two numbers that cannot both be right. A check finds a number that is right and misleads: counted in
another way than it seems, measured elsewhere, planned and never reported, resting on something that nobody can open.
No check knows a run, a claim or an expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from audits.checks import access, configuration, conventions, outcomes, transfer
from audits.checks.observation import Observation, View

CHECKS: tuple[Callable[[View], Iterator[Observation]], ...] = (
    access.closed_doors,
    access.closed_artifacts,
    access.lost_inputs,
    access.empty_fields,
    access.missing_licences,
    access.dead_references,
    configuration.idle_fields,
    configuration.empty_cells,
    configuration.edited_afterwards,
    configuration.still_metrics,
    conventions.two_ways_of_counting,
    conventions.bare_means,
    conventions.gains_without_floor,
    outcomes.announced_ends,
    outcomes.milestones,
    outcomes.residuals,
    outcomes.published_shares,
    outcomes.trained_twice,
    outcomes.checkpoint_sizes,
    transfer.unbound_figures,
    transfer.studies_that_do_not_transfer,
    transfer.sides_that_differ_beforehand,
    transfer.unequal_evaluation_batches,
    transfer.horizons_beside_the_run,
    transfer.directions_that_disagree,
)


def observations(view: View) -> list[Observation]:
    """Everything that the checks see in a record."""
    return [one for check in CHECKS for one in check(view)]
