"""The command `drops`: its numbers however they are written, its keys, and what is refused."""

from __future__ import annotations

import json

import pytest

from repro.cli.drops import _numbers
from repro.cli.main import exit_code


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = exit_code(["drops", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_lists_are_read_as_people_write_them() -> None:
    assert _numbers(["8192", "1.3", "1.1:1.2"], ["4096"], ["1"]) == ([4096, 8192], [(1, 1), (1.3, 1.3), (1.1, 1.2)])
    assert _numbers([], [], []) == ([], [])


def test_rows_for_every_length_and_factor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "d6144", "--scale", "smoke", "--seq-len", "128", "256", "--capacity-factor", "1.1:1.3", "--json"
    )
    found = json.loads(out)
    assert code == 0, err
    rooms = (("pooled_wave", 1.1, 1.3), ("ragged", None, 1.3))
    keys = ("seq_len", "transport", "sender_factor", "receiver_factor")
    assert [tuple(row[key] for key in keys) for row in found["rows"]] == [
        (length, *room) for length in (128, 256) for room in rooms
    ]
    for row in found["rows"]:
        low, high = row["interval_95"]
        assert low <= row["drop_fraction"] <= high
        assert len(row["by_draw"]) == 3
        assert row["drop_fraction"] == pytest.approx(row["sender_drop_fraction"] + row["receiver_drop_fraction"])
    assert found["geometry"]["experts"] == 96
    assert found["record"] == []  # of a scale nobody published anything
    assert "Done: 256 tokens, ragged." in err


def test_quiet_prints_the_table_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "d768", "--scale", "smoke", "--draws", "1", "--transport", "pooled-wave", "--quiet")
    assert (code, err) == (0, "")
    assert "pooled-wave" in out
    assert "Router:" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["d99"], "d99"),
        (["d6144", "--seq-len", "5000"], "--seq-len 5000: a shard has 65,536 tokens"),
        (["d6144", "--seq-len", "4k"], "Write --seq-len 4096 8192"),
        (["d6144", "--capacity-factor", "0"], "--capacity-factor 0:0: above 0, and at most 64"),
        (["d6144", "--capacity-factor", "1:2:3"], "--capacity-factor 1.15"),
        (["d6144", "--transport", "pigeon"], "--transport pigeon: must be pooled-wave, ragged or both"),
        (["d6144", "--balance", "perfect"], "--balance perfect"),
        (["d6144", "--run", "nowhere"], "nowhere"),
    ],
)
def test_what_is_refused_says_why(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
