"""The data mixture on paper: when its phases start, what a block holds of each cell, how often a cell repeats.

Data comes in 200 cells, 40 topics by 5 quality buckets, named c00q0 … c39q4. Weights, counts and token counts are
mappings from cell to number, in cell order; the order settles ties. A *block* of 49,152 sequences holds the same count
of each cell throughout a phase. *Exposure* is how often a cell is read, in epochs, and comes in two conventions that
differ by the rounding inside a block: by weights (what was configured) and by block counts (what is drawn).

Sources: levanter's MixtureDataset (marin-levanter 0.2.227), experiments/grug/moe_hero_ep/harrier_mix_2026_08_18.py
and harrier_mix_schedule.py of marin-community/marin, pull request 9162 for the third phase; W&B configs of
hero-12d8b6f0-dee637 and rav-ladder-d1536.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from repro.errors import RecordError, UsageError

BLOCK_SIZE = 49_152  # sequences; W&B config of the hero, data.mixture_block_size
COOLDOWN_FRACTION = 0.8  # harrier_mix_2026_08_18.py
SWITCH_FRACTION = Fraction(108_000, 390_251)  # pull request 9162: the hero's mixture switch, as a share of its steps
REFERENCE_TOKENS = 18_750_000_000_000  # harrier_mix_2026_08_18.py: the horizon that shorter runs imitate
SIMULATED_EPOCHING_MAX_FLOPS = 1e23  # harrier_mix_2026_08_18.py; FLOPs of the run with the LM head


# When phases start


def step_multiple(batch_size: int, block_size: int = BLOCK_SIZE) -> int:
    """Smallest number of steps that fills whole blocks; every phase starts on a multiple of it."""
    return block_size // math.gcd(block_size, batch_size)


def phase_starts(
    steps: int, batch_size: int, block_size: int = BLOCK_SIZE, *, switched: bool = False
) -> tuple[int, ...]:
    """First step of each phase, ascending from 0.

    The cooldown starts at 80% of the steps, rounded down to whole blocks; with `switched`, the main mixture of pull
    request 9162 starts at 108,000/390,251 of them, rounded up. Where a short run makes the two coincide, the cooldown
    wins; one too short for whole blocks has a start at or beyond its end, which it never reaches.
    """
    multiple = step_multiple(batch_size, block_size)
    cooldown = max(multiple, max(1, int(COOLDOWN_FRACTION * steps)) // multiple * multiple)
    starts = {0, cooldown}
    if switched:
        starts.add(math.ceil(steps * SWITCH_FRACTION / multiple) * multiple)
    return tuple(sorted(starts))


def blocks_per_phase(starts: Sequence[int], steps: int, batch_size: int, block_size: int = BLOCK_SIZE) -> list[float]:
    """Blocks that each phase draws; all whole but the last, which ends with the run. 0 for a phase never reached."""
    ends = [*starts[1:], steps]
    return [max(0, min(end, steps) - start) * batch_size / block_size for start, end in zip(starts, ends, strict=True)]


# What a block holds


def block_counts(weights: Mapping[str, float], block_size: int = BLOCK_SIZE) -> dict[str, int]:
    """Sequences of each cell in one block; they sum to `block_size`.

    Weights are divided by their sum, multiplied by the block size and truncated; the whole remainder goes to the cell
    with the largest truncated count, the first on ties. A cell truncated to 0 is never drawn in that phase. Raises
    RecordError for a weight that is negative or not finite, and where no weight is positive.
    """
    for cell, weight in weights.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise RecordError(f"mixture: the weight of cell {cell} is {weight}; it must be finite and at least 0.")
    counts = _truncated_counts(weights, block_size)
    drawable = [cell for cell, weight in weights.items() if weight > 0]
    largest = max(drawable, key=lambda cell: counts[cell])  # max keeps the first on ties
    counts[largest] += block_size - sum(counts.values())
    return counts


def block_remainder(weights: Mapping[str, float], block_size: int = BLOCK_SIZE) -> int:
    """Sequences of a block that truncation leaves over, all of which go to one cell (`block_counts`)."""
    return block_size - sum(_truncated_counts(weights, block_size).values())


def _truncated_counts(weights: Mapping[str, float], block_size: int) -> dict[str, int]:
    # Exactly rounded on purpose: a running sum of the hero's cooldown weights ends one unit in the last place above 1
    # and would truncate 189 cells one sequence lower; the run's own counts leave no remainder there.
    total = math.fsum(weights.values())
    if not total > 0:
        raise RecordError("mixture: no cell has a weight above 0.")
    return {cell: int(weight / total * block_size) for cell, weight in weights.items()}


def effective_shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Share of the data that each cell has after rounding: its count over the block's."""
    block_size = sum(counts.values())
    return {cell: count / block_size for cell, count in counts.items()}


def zero_quota_cells(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Cells that a block holds no sequence of, be their weight 0 or too small; they are never drawn in that phase."""
    return tuple(cell for cell, count in counts.items() if count == 0)


def half_l1(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Half the sum of absolute differences: the share of probability mass on which two mixtures disagree, 0 to 1.

    Raises RecordError where the two do not name the same cells.
    """
    _same_cells(first, second)
    return math.fsum(abs(weight - second[cell]) for cell, weight in first.items()) / 2


# How often a cell is read


def simulated_epoching_ratio(
    *, tokens: int, flops_with_lm_head: float, reference_tokens: int = REFERENCE_TOKENS
) -> float | None:
    """Share of each cell that a run may read, so that it repeats data as a run of 18.75T tokens would; None: all of it.

    Tokens of the run over 18.75T, up to 1e23 FLOPs with the LM head; above, the cells are left whole, so the hero's
    are. Raises UsageError where such a run is longer than the reference.
    """
    if flops_with_lm_head > SIMULATED_EPOCHING_MAX_FLOPS:
        return None
    if tokens > reference_tokens:
        raise UsageError(
            f"simulated epoching: {tokens:,} tokens exceed the reference of {reference_tokens:,}; shorten the run."
        )
    return tokens / reference_tokens


def truncated_sequences(sequences: int, ratio: float | None) -> int:
    """Sequences of a shuffled cell that simulated epoching keeps: int(sequences · ratio), or all where it is off."""
    return sequences if ratio is None else int(sequences * ratio)


def reference_phase_tokens(*, switched: bool = False) -> tuple[float, ...]:
    """Tokens of each phase of the 18.75T reference, on which upstream checks that no cell is read over 8 times.

    15T and 3.75T; with `switched`, the share 108,000/390,251 of the whole, the rest of the 15T, and 3.75T.
    """
    cooldown = REFERENCE_TOKENS // 5
    main = REFERENCE_TOKENS - cooldown
    if not switched:
        return main, cooldown
    before = float(REFERENCE_TOKENS * SWITCH_FRACTION)
    return before, main - before, cooldown


def exposure_by_weights(
    phases: Iterable[tuple[Mapping[str, float], float]], cell_tokens: Mapping[str, int]
) -> dict[str, float]:
    """Epochs of each cell as configured: the sum over phases of weight · phase tokens, over the cell's tokens.

    `phases` are pairs (weights, tokens of the phase). Raises RecordError where cells differ or a cell has no tokens.
    """
    return _exposure(phases, cell_tokens)


def exposure_by_block_counts(
    phases: Iterable[tuple[Mapping[str, int], float]], cell_tokens: Mapping[str, int], seq_len: int
) -> dict[str, float]:
    """Epochs of each cell as drawn: the sum over phases of count · blocks · sequence length, over the cell's tokens.

    `phases` are pairs (counts of a block, blocks of the phase), as from `block_counts` and `blocks_per_phase`; the last
    block counts by the part that is drawn. Raises RecordError where cells differ or a cell has no tokens.
    """
    return _exposure([(counts, blocks * seq_len) for counts, blocks in phases], cell_tokens)


def most_exposed(exposure: Mapping[str, float]) -> tuple[str, float]:
    """The cell read most often and its epochs; the first on ties."""
    cell = max(exposure, key=lambda name: exposure[name])
    return cell, exposure[cell]


def _exposure(phases: Iterable[tuple[Mapping[str, float], float]], cell_tokens: Mapping[str, int]) -> dict[str, float]:
    phases = list(phases)
    for shares, _ in phases:
        _same_cells(shares, cell_tokens)
    for cell, tokens in cell_tokens.items():
        if not tokens > 0:
            raise RecordError(f"mixture: cell {cell} has {tokens} tokens; exposure needs a count above 0.")
    return {
        cell: math.fsum(shares[cell] * amount for shares, amount in phases) / tokens
        for cell, tokens in cell_tokens.items()
    }


def _same_cells(first: Mapping[str, float], second: Mapping[str, float]) -> None:
    if odd := sorted(first.keys() ^ second.keys()):
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise RecordError(
            f"mixture: only one of two tables names {', '.join(odd[:3])}{more}; both must name all cells."
        )
