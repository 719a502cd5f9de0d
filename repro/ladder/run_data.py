"""Which data a run gets: a recipe and a word from the command line → batches, and their entropy where it is known.

    harrier-synthetic     made where it is not there yet; as large beside the scale's reference as the published store
    FOLDER                a token store of one's own

Cells are mixed by the scale's weights, at `full` by those that the record has of the published run. A store that has
none of these cells is mixed by its tokens, alike in both phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from repro.errors import RecordError, UsageError
from repro.ladder import mixture
from repro.ladder.batches import Batches, recipe_order
from repro.ladder.corpus import Store, StoreSpec, build_store, open_store
from repro.ladder.recipe import Recipe
from repro.ladder.scales import MAX_REMAINDER
from repro.ladder.synthetic import Entropy, harrier_synthetic
from repro.ladder.tokenizing import BYTES, load_tokenizer
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
    folder: Path,
    report: Callable[[str, int], None] = lambda cell, tokens: None,
    *,
    seed: int = 0,
) -> RunData:
    """The data of a run, in the order of a seed; a synthetic store lies in `folder` and is the same for all seeds.

    Raises UsageError where store and recipe do not go together, and what `build_store` and `open_store` raise.
    """
    store = build_store(synthetic_spec(recipe), folder, report) if spec == SYNTHETIC else open_store(Path(spec))
    vocabulary = recipe.model.vocab_size
    if store.tokenizer.vocab_size > vocabulary:
        raise UsageError(
            f"{store.folder} holds tokens of {store.tokenizer}, but the model of {recipe.rung} at scale {recipe.scale} "
            f"has a vocabulary of {vocabulary:,}. Set model.vocab_size in a scale of your own, or take another store."
        )
    weights = recipe.mixture_weights or _published_weights(recipe, record)
    if not any(cell in store.train for cell in weights[0]):
        weights = (_by_tokens(store, recipe.mixture_block_size),) * len(weights)
    batches = Batches(order=recipe_order(recipe, store, weights, seed=seed), store=store, seq_len=recipe.seq_len)
    return RunData(batches, store.entropy(_held_out_shares(batches, recipe.evaluation_tokens)))


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


def _by_tokens(store: Store, block_size: int) -> dict[str, float]:
    total = sum(stream.tokens for stream in store.train.values())
    weights = {cell: stream.tokens / total for cell, stream in store.train.items()}
    left = mixture.block_remainder(weights, block_size)
    if left > MAX_REMAINDER * block_size:
        raise UsageError(
            f"{store.folder}: its {len(weights)} cells, mixed by tokens, leave {left} of a block's {block_size} "
            f"sequences over; at most {MAX_REMAINDER:.0%} may be. Build a store of fewer cells, or set a larger "
            "mixture.block_size in a scale of your own."
        )
    return weights


def _held_out_shares(batches: Batches, tokens: int | None) -> dict[str, float]:
    """Share of each cell in what an evaluation reads: cells take turns, as `Batches.held_out` has it."""
    cells = batches.order.cells
    lengths = [batches.store.held_out[cell].tokens // batches.seq_len for cell in cells]
    turns = sorted((number, cell) for cell, length in enumerate(lengths) for number in range(length))
    counts = Counter(cell for _, cell in (turns if tokens is None else turns[: max(1, tokens // batches.seq_len)]))
    return {cells[cell]: float(count) for cell, count in counts.items()}
