"""Points read from a CSV file: numbers that can be fitted, or the line and column of what cannot."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from repro.errors import FitError
from repro.ladder.points import read_points

CHINCHILLA = ("params", "tokens")


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "points.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_columns_in_any_order_and_case_with_a_byte_order_mark(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfLoss, Tokens ,PARAMETERS\r\n2.5,1e9,4e8\r\n\r\n2.4,2e9,4e8\r\n"
    points = read_points(write(tmp_path, data), CHINCHILLA)
    assert points.columns == {"params": (4e8, 4e8), "tokens": (1e9, 2e9)}
    assert points.losses == (2.5, 2.4)
    assert points.lines == (2, 4)
    assert points.where(1).endswith("points.csv, line 4")
    assert points.sha256 == hashlib.sha256(data).hexdigest()
    assert points.notes == ()


def test_columns_that_are_not_used_and_rows_that_repeat_are_noted(tmp_path: Path) -> None:
    text = "compute,loss,name\n1e18,3.5,a\n1e19,3.2,b\n1e18,3.5,c\n1e18,3.6,another seed\n"
    points = read_points(write(tmp_path, text), ("flops",))
    assert len(points) == 4
    unused, repeated = points.notes
    assert unused.endswith("not used: 'name'.")
    assert "line 4 repeats line 2 in every digit;" in repeated


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "points.csv: empty"),
        ("params,tokens,loss\n", "a header and no rows. Add a line a point: params,tokens,loss."),
        ("params,tokens\n1,2\n", "line 1: no column loss among 'params', 'tokens'"),
        ("params;tokens;loss\n1;2;3\n", "Separate the columns by commas."),
        ("flops,loss\n1e18,3\n", "Points of flops are fitted with --form power"),
        ("params,parameters,tokens,loss\n1,1,1,1\n", "line 1: two columns of params; keep one."),
        ("params,tokens,loss\n1e8,2e9,2.5\n1e8,2e9\n", "line 3: 2 cells under 3 columns"),
        ("params,tokens,loss\n1e8,2e9,nan\n", "line 2, loss: 'nan' is not a positive number"),
        ("params,tokens,loss\n1e8,1e999,2.5\n", "line 2, tokens: '1e999' is not a positive number"),
        ("params,tokens,loss\n-1e8,2e9,2.5\n", "line 2, params: '-1e8' is not a positive number"),
        ("params,tokens,loss\n70B,2e9,2.5\n", "'70B' is not a positive number. Write it plainly, as 70e9"),
        ("params,tokens,loss\n1e8,,2.5\n", "line 2, tokens: an empty cell is not a positive number"),
        ('params,tokens,loss\n"1e8,2e9,2.5\n', "Mend the quotes of this line."),
        (b"params,tokens,loss\n\xff\xfe,1,1\n", "not UTF-8 at byte 19"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(FitError) as caught:
        read_points(write(tmp_path, text), CHINCHILLA)
    assert words in str(caught.value)
    assert "points.csv" in str(caught.value)


def test_points_of_models_asked_for_as_points_of_compute(tmp_path: Path) -> None:
    with pytest.raises(FitError, match="--form chinchilla; or add a column of flops"):
        read_points(write(tmp_path, "params,tokens,loss\n1e8,2e9,2.5\n"), ("flops",))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FitError, match="No such file"):
        read_points(tmp_path / "none.csv", CHINCHILLA)
