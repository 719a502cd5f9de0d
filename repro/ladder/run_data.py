"""Which data a run gets: a recipe and a word from the command line → batches, and their entropy where it is known.

    harrier-synthetic     made where it is not there yet; as large beside the scale's reference as the published store
    FILE.toml             made where it is not there yet, from what the data file names
    FOLDER                a token store of one's own

Cells are mixed by the scale's weights, at `full` by those that the record has of the published run. A store that has
none of these cells is mixed by its tokens, in whole sequences of a block, alike in both phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from repro.errors import RecordError, UsageError
from repro.ladder import mixture
from repro.ladder.batches import Batches, recipe_order
from repro.ladder.corpus import Store, StoreSpec, build_store, open_store
from repro.ladder.data_file import ENDING, read_data_file
from repro.ladder.recipe import Recipe
from repro.ladder.synthetic import Entropy, harrier_synthetic
from repro.ladder.tokenizing import BYTES, TokenizerIdentity, load_tokenizer
from repro.record.facts import Record

SYNTHETIC = "harrier-synthetic"
STORE_TO_REFERENCE = 23_014_297_198_129 / mixture.REFERENCE_TOKENS  # mixture_weights.csv, store_81e7e39a
HELD_OUT = 0.05  # of the synthetic documents: a small store has few


class RunData(NamedTuple):
    """Batches, and what a model that knows everything loses on the held-out part; None where that is not known."""

    batches: Batches
    entropy: Entropy | None  # nats a token


def open_data(
    spec: str,
    recipe: Recipe,
    record: Record,
    beside: Path,
    report: Callable[[str, int], None] = lambda cell, tokens: None,
    *,
    seed: int = 0,
) -> RunData:
    """The data of a run, in the order of a seed; a store that is made lies in the folder `beside`, for all seeds.

    Raises UsageError where store and recipe do not go together, and what `read_data_file`, `build_store` and
    `open_store` raise.
    """
    if (made := store_spec(spec, recipe)) is not None:
        _check_vocabulary(made.tokenizer.identity, spec, recipe)
        store = build_store(made, beside / store_name(spec, recipe), report)
    else:
        store = open_store(Path(spec))
        _check_vocabulary(store.tokenizer, str(store.folder), recipe)
    weights = recipe.mixture_weights or _published_weights(recipe, record)
    if not any(cell in store.train for cell in weights[0]):
        weights = (_by_tokens(store, recipe),) * len(weights)
    batches = Batches(order=recipe_order(recipe, store, weights, seed=seed), store=store, seq_len=recipe.seq_len)
    return RunData(batches, store.entropy(_held_out_shares(batches, recipe.evaluation_tokens)))


def store_spec(spec: str, recipe: Recipe) -> StoreSpec | None:
    """What the store is made from; None for the folder of a finished one."""
    if spec == SYNTHETIC:
        return synthetic_spec(recipe)
    return read_data_file(Path(spec)) if spec.endswith(ENDING) else None


def store_name(spec: str, recipe: Recipe) -> str:
    """The name of the folder of a store that is made: of a data file for all scales, of the synthetic one for one."""
    return f"{SYNTHETIC}-{Path(recipe.scale).stem}" if spec == SYNTHETIC else f"store-{Path(spec).stem}"


def _check_vocabulary(tokenizer: TokenizerIdentity, where: str, recipe: Recipe) -> None:
    vocabulary = recipe.model.vocab_size
    if tokenizer.vocab_size > vocabulary:
        raise UsageError(
            f"{where} holds tokens of {tokenizer}, but the model of {recipe.rung} at scale {recipe.scale} has a "
            f"vocabulary of {vocabulary:,}. Set model.vocab_size in a scale of your own, or take another tokenizer."
        )


def synthetic_spec(recipe: Recipe) -> StoreSpec:
    """The synthetic store of a scale; all its rungs share it."""
    if recipe.mixture_weights is None:
        raise UsageError(
            f"--data {SYNTHETIC} needs a scale with a [mixture]; at {recipe.scale} the cells are the published ones. "
            "Name the folder of a token store with --data."
        )
    cells = list(recipe.mixture_weights[0])
    topics = len({cell.partition("q")[0] for cell in cells})
    tokens = recipe.simulated_epoching_reference * STORE_TO_REFERENCE / (1 - HELD_OUT)
    sources = harrier_synthetic(
        tokens_per_cell=round(tokens / len(cells)), topics=topics, qualities=len(cells) // topics
    )
    return StoreSpec(sources=sources, tokenizer=load_tokenizer(BYTES), held_out=HELD_OUT)


def _published_weights(recipe: Recipe, record: Record) -> tuple[Mapping[str, float], ...]:
    """Weights of the published run's phases, as it was launched."""
    starts = list(recipe.mixture_phase_starts)
    for data in record.training_data:
        if data.rung == recipe.rung and [stage.from_step for stage in data.stages] == starts:
            return tuple(
                {row.cell: row.weights[stage.weights][stage.phase] for row in record.mixture_weights}
                for stage in data.stages
            )
    raise RecordError(
        f"record {record.run.name}, [[training_data]]: no run of {recipe.rung} whose phases start at steps {starts}."
    )


def _by_tokens(store: Store, recipe: Recipe) -> dict[str, float]:
    """A block's sequences dealt out to the cells by their tokens, what rounding leaves to the largest fractions."""
    block = recipe.mixture_block_size
    sequences = store.sequences(recipe.seq_len)
    total = sum(sequences.values())
    exact = {cell: Fraction(number * block, total or 1) for cell, number in sequences.items()}
    counts = {cell: int(share) for cell, share in exact.items()}
    by_fraction = sorted(exact, key=lambda cell: counts[cell] - exact[cell])
    for cell in by_fraction[: block - sum(counts.values())] if total else []:
        counts[cell] += 1
    if none := [cell for cell, count in counts.items() if not count]:
        more = f" (and {len(none) - 1} more cells)" if len(none) > 1 else ""
        raise UsageError(
            f"{store.folder}: cell {none[0]} has {sequences[none[0]]:,} of {total:,} sequences of {recipe.seq_len} "
            f"tokens, less than one of a block's {block}{more}. Give it more text, make one cell of several, or set a "
            "larger mixture.block_size in a scale of your own."
        )
    return {cell: count / block for cell, count in counts.items()}


def _held_out_shares(batches: Batches, tokens: int | None) -> dict[str, float]:
    """Share of each cell in what an evaluation reads: cells take turns, as `Batches.held_out` has it."""
    cells = batches.order.cells
    lengths = [batches.store.held_out[cell].tokens // batches.seq_len for cell in cells]
    turns = sorted((number, cell) for cell, length in enumerate(lengths) for number in range(length))
    counts = Counter(cell for _, cell in (turns if tokens is None else turns[: max(1, tokens // batches.seq_len)]))
    return {cells[cell]: float(count) for cell, count in counts.items()}
