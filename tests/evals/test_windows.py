"""Documents to windows: BOS … EOS in one stream, whole windows only, and bytes of the scored targets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from evals.byte_counts import Gate, token_bytes
from evals.sources import TextSet, survey
from evals.windows import Window, windows
from repro.errors import UsageError
from repro.ladder.batches import segment_ids
from repro.ladder.tokenizing import BOS, EOS, load_tokenizer

TOKENIZER = load_tokenizer("bytes")
TABLE = token_bytes(TOKENIZER.identity, None)
TEXTS = ["aé", "", "0123456789"]  # multi-byte, empty, longer than a window


def write_set(folder: Path, *files: Sequence[str]) -> TextSet:
    paths = []
    for number, texts in enumerate(files):
        lines = "".join(json.dumps({"text": text, "id": 7}) + "\n" for text in texts)
        paths.append(folder / f"val_{number}.jsonl.gz")
        paths[-1].write_bytes(gzip.compress(lines.encode()))
    return TextSet(suite="paloma", name="ptb", files=tuple(paths))


def cut(texts: TextSet, context: int, limit: int | None = None) -> tuple[list[Window], Gate]:
    gate = Gate()
    return list(windows(texts, TOKENIZER, TABLE, gate, context=context, limit=limit)), gate


def test_three_documents_in_windows_of_six(tmp_path: Path) -> None:
    found, gate = cut(write_set(tmp_path, TEXTS), 6)
    assert [window.tokens.tolist() for window in found] == [
        [BOS, *"aé".encode(), EOS, BOS],
        [EOS, BOS, *b"0123"],
        [*b"456789"],  # EOS is left over
    ]
    # Targets are all tokens of a window but its first: aé; 0123; 56789.
    assert [(window.text_bytes, window.logged_bytes) for window in found] == [(3, 3), (4, 4), (5, 5)]
    assert (gate.documents, gate.utf8_bytes, gate.token_bytes, gate.why) == (3, 13, 13, "")
    # A document ends with EOS; the next token begins another, in a window as in training.
    assert segment_ids(np.stack([found[1].tokens]), EOS).tolist() == [[0, 1, 1, 1, 1, 1]]


def test_the_cut_into_files_and_the_length_of_the_window_move_no_token(tmp_path: Path) -> None:
    stream = [256, *"aé".encode(), 257, 256, 257, 256, *b"0123456789", 257]
    for context in (1, 2, 5, 19):
        found, _ = cut(write_set(tmp_path, TEXTS[:1], TEXTS[1:]), context)
        assert (
            np.concatenate([window.tokens for window in found]).tolist() == stream[: len(stream) // context * context]
        )


def test_a_limit_keeps_the_first_windows(tmp_path: Path) -> None:
    texts = write_set(tmp_path, TEXTS)
    assert [window.tokens.tolist() for window in cut(texts, 6, limit=2)[0]] == [
        window.tokens.tolist() for window in cut(texts, 6)[0][:2]
    ]


def test_without_a_table_there_are_no_bytes(tmp_path: Path) -> None:
    gate = Gate()
    found = list(windows(write_set(tmp_path, TEXTS), TOKENIZER, "not known", gate, context=6))
    assert {(window.text_bytes, window.logged_bytes) for window in found} == {(0, 0)}
    assert gate.documents == 0


def test_a_set_that_fills_no_window_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"paloma/ptb does not fill one window of 20 tokens\."):
        cut(write_set(tmp_path, TEXTS), 20)


def test_a_survey_counts_documents_empty_ones_and_bytes(tmp_path: Path) -> None:
    found = survey(write_set(tmp_path, TEXTS))
    assert (found.documents, found.empty_documents, found.utf8_bytes) == (3, 1, 13)
    assert survey(write_set(tmp_path, TEXTS[:2], TEXTS[2:])) == found  # files are no part of what the texts are
    assert survey(write_set(tmp_path, ["aé", "0123456789", ""])).sha256 != found.sha256
    assert survey(write_set(tmp_path, ["aé0", "", "123456789"])).sha256 != found.sha256


def test_a_set_without_documents_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"paloma/ptb has no documents: .*val_0.jsonl.gz"):
        survey(write_set(tmp_path, []))


def test_a_truncated_file_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    texts = write_set(tmp_path, ["one", "two"], [f"a text {number}" for number in range(500)])
    texts.files[1].write_bytes(texts.files[1].read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"val_1.jsonl.gz cannot be read: .*end-of-stream"):
        survey(texts)


@pytest.mark.parametrize(
    ("line", "message"), [("{", "line 2: not JSON"), ('{"content": "x"}', "line 2: no field 'text'")]
)
def test_a_line_without_a_text_is_named(tmp_path: Path, line: str, message: str) -> None:
    texts = write_set(tmp_path, ["x"])
    texts.files[0].write_bytes(gzip.compress(f'{{"text": "x"}}\n{line}\n'.encode()))
    with pytest.raises(UsageError, match=message):
        survey(texts)
