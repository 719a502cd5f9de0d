"""Generation from what is kept is generation by whole passes, and a text is its prompt's alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evals.batching import Placed, place
from evals.generation import STEPS, Prompt, generate
from tests.evals.small_model import CONFIG, log_probabilities, params, random_tokens

EOS = 257
NEW = 20  # more than one block of STEPS
PROMPTS = [tuple(map(int, row[:length])) for row, length in zip(random_tokens(3, 30), (30, 17, 21), strict=True)]


@pytest.fixture(scope="module")
def placed() -> Placed:
    return place(params(), CONFIG)


def by_whole_passes(ids: tuple[int, ...], new_tokens: int) -> list[int]:
    """The likeliest token behind the whole text so far, again and again."""
    text = list(ids)
    for _ in range(new_tokens):
        row = np.zeros((1, 64), np.int32)
        row[0, : len(text)] = text
        text.append(int(log_probabilities(row)[0, len(text) - 1].argmax()))
    return text[len(ids) :]


def test_greedy_text_is_that_of_whole_passes(placed: Placed) -> None:
    assert NEW > STEPS
    texts = generate(placed, [Prompt(ids, NEW) for ids in PROMPTS], EOS)
    assert texts == [by_whole_passes(ids, NEW) for ids in PROMPTS]


@pytest.mark.slow
def test_a_text_does_not_depend_on_its_company(placed: Placed) -> None:
    prompts = [Prompt(ids, NEW, temperature, seed) for ids in PROMPTS for temperature, seed in ((0, 0), (1, 5), (1, 6))]
    texts = generate(placed, prompts, EOS)
    assert generate(placed, prompts[::-1], EOS) == texts[::-1]
    assert generate(replace(placed, rows=4), prompts, EOS) == texts
    assert texts[1] != texts[2], "two seeds gave one text"


@pytest.mark.slow
def test_drawn_tokens_follow_the_temperature(placed: Placed) -> None:
    ids = PROMPTS[0]
    row = np.zeros((1, 64), np.int32)
    row[0, : len(ids)] = ids
    log_p = log_probabilities(row)[0, len(ids) - 1] / 0.7
    expected = np.exp(log_p - log_p.max())
    expected /= expected.sum()
    count = 4096
    drawn = generate(placed, [Prompt(ids, 1, 0.7, seed) for seed in range(count)], EOS)
    found = np.bincount([one[0] if one else EOS for one in drawn], minlength=258) / count
    likely = np.argsort(expected)[-8:]
    deviation = np.abs(found - expected)[likely] / np.sqrt(expected[likely] / count)
    assert deviation.max() < 4.5  # standard deviations of a count, eight of them


def test_a_text_ends_at_eos_at_its_last_token_and_where_it_is_told_to(placed: Placed) -> None:
    greedy = generate(placed, [Prompt(PROMPTS[0], NEW)], EOS)[0]
    at = greedy.index(greedy[7])
    assert generate(placed, [Prompt(PROMPTS[0], NEW)], greedy[7])[0] == greedy[:at]
    assert generate(placed, [Prompt(PROMPTS[0], 3)], EOS)[0] == greedy[:3]
    stopped = generate(placed, [Prompt(PROMPTS[0], NEW)], EOS, lambda index, written: greedy[2] in written)[0]
    assert stopped == greedy[:STEPS]
