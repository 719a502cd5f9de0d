"""Simulated drops beside the record's: what is compared with what, and what is said where nothing is."""

from __future__ import annotations

from repro.cli.track import read_statements
from repro.ladder.reported_drops import Conditions, Growth, Row, compare, conditions_of, grow, lines
from repro.ladder.trends import DROP_FRACTION
from repro.record.facts import load_record

STATEMENTS = [one for one in read_statements(load_record(None)) if one.quantity == DROP_FRACTION]


def row(seq_len: int, transport: str, racks: int, fraction: float) -> Row:
    return Row(Conditions(seq_len, transport, racks), fraction, 0.5 * fraction, 1.5 * fraction)


def test_each_claim_is_held_against_its_own_conditions() -> None:
    found = {one.id: conditions_of(one, seq_len=4096, racks=11) for one in STATEMENTS}
    assert found["DROP-1.pooled_wave"] == Conditions(4096, "pooled_wave", 11)
    assert found["DROP-2"] == Conditions(65_536, "earlier", 11)
    assert found["DROP-6"] == found["DROP-7.pooled_wave"] == Conditions(4096, "pooled_wave", 11)  # step 58,020
    assert found["DROP-7.ragged"] == found["DROP-10"] == Conditions(4096, "ragged", 11)
    assert found["DROP-8.ragged"] == found["DROP-9.at_4K"] == Conditions(4096, "ragged", 1)
    assert found["DROP-9.at_16K"] == Conditions(16_384, "ragged", 1)
    for other in ("DROP-4.total", "DROP-5"):
        assert "another shape" in str(found[other])
    assert found["DROP-3"] == "a prediction, not a measurement"


def test_the_verdict_is_a_factor_of_two() -> None:
    rows = [row(4096, "pooled_wave", 11, 0.031), row(4096, "ragged", 1, 5e-5), row(8192, "ragged", 1, 2e-3)]
    found = {one.statement.id: one for one in compare(STATEMENTS, rows, seq_len=4096, racks=11)}
    assert found["DROP-1.pooled_wave"].verdict == "agrees"
    assert found["DROP-1.pooled_wave"].why == "the reported one lies inside the interval over layers"
    assert found["DROP-9.at_4K"].verdict == "too low"
    assert "outside" in found["DROP-9.at_4K"].why
    assert found["DROP-9.at_8K"].verdict == "too high"
    assert found["DROP-9.at_16K"].verdict == "not simulated"
    assert found["DROP-9.at_16K"].why == "--seq-len 16384 --transport ragged --racks 1 would be it"
    assert found["DROP-1.earlier"].verdict == "not compared"  # level; its growth is
    assert found["DROP-9.at_8K"].as_json()["address"] == "https://github.com/marin-community/marin/issues/9615"


def test_growth_with_length_is_held_study_by_study() -> None:
    rows = [
        *(row(length, "pooled_wave", 11, drop) for length, drop in ((4096, 0.03), (65_536, 0.16))),
        *(row(length, "ragged", 1, drop) for length, drop in ((4096, 0.0), (8192, 3e-4), (16_384, 2e-4))),
    ]
    compared = compare(STATEMENTS, rows, seq_len=4096, racks=11)
    earlier, short, long = sorted(grow(compared), key=lambda one: one.seq_lens[::-1], reverse=True)
    assert earlier.claims == ("DROP-1.earlier", "DROP-2")
    assert (earlier.same_direction, earlier.agrees) == (True, True)  # 5.3 times for 40/7
    assert long == Growth(
        claims=("DROP-9.at_4K", "DROP-9.at_8K"), seq_lens=(4096, 8192), reported=8.29e-4 / 1.86e-4, simulated=None,
        same_direction=True, agrees=False, citation=long.citation, address=long.address,
    )  # fmt: skip
    assert (short.seq_lens, short.same_direction, short.agrees) == ((8192, 16_384), False, False)
    told = "\n".join(lines(compared, [earlier, short, long]))
    assert "reported 3% [DROP-1.pooled_wave] at 4,096 tokens, pooled wave, 11 racks; simulated 3.00%, 1 times" in told
    assert "reported 4.5 times [DROP-9.at_4K, DROP-9.at_8K], simulated out of nothing: the same direction" in told
