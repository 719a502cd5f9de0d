"""The figures are whole SVG elements that two of a page can share, equal for equal input, and described in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib
import pytest

from repro.ladder.figures import STYLE, describe_forecast, describe_laws, draw_forecast, draw_laws
from repro.ladder.sensitivity import Study, study_record
from repro.record.facts import Record, load_record

SVG = "{http://www.w3.org/2000/svg}"
RECORD = load_record()


@pytest.fixture(scope="module")
def study() -> Study:
    return study_record(RECORD)


@pytest.fixture(scope="module")
def svgs(study: Study) -> list[str]:
    return [draw_laws(study.fit), draw_forecast(study, RECORD)]


def hostile(record: Record) -> Record:
    """The record with its first rung called by what SVG, mathematics and patterns would trip over."""
    name, old = r"<b>&$\g<1>--></b>", "d768"
    assert record.forecast is not None
    return replace(
        record,
        ladder_grid={name if rung == old else rung: points for rung, points in record.ladder_grid.items()},
        ladder_rungs=tuple(replace(row, rung=name) if row.rung == old else row for row in record.ladder_rungs),
        forecast=replace(record.forecast, fitted_on=(name, *record.forecast.fitted_on[1:])),
    )


def test_a_figure_is_an_svg_element_with_a_title(study: Study, svgs: list[str]) -> None:
    for svg, words in zip(svgs, (describe_laws(study.fit), describe_forecast(study, RECORD)), strict=True):
        root = ElementTree.fromstring(svg)
        assert root.tag == f"{SVG}svg"
        assert svg.startswith("<svg ")
        title = root.find(f"{SVG}title")
        assert title is not None
        assert title.text == words
        assert root.get("aria-labelledby") == title.get("id")


def test_figures_share_no_id_and_refer_to_their_own(svgs: list[str]) -> None:
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in svgs]
    assert not ids[0] & ids[1]
    for svg, own in zip(svgs, ids, strict=True):
        used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
        assert used
        assert used <= own


def test_figures_load_nothing_and_hold_no_date(svgs: list[str]) -> None:
    for svg in svgs:
        addresses = set(re.findall(r'https?://[^"\s<]+', svg)) - set(re.findall(r'xmlns(?::\w+)?="([^"]+)"', svg))
        assert not {address for address in addresses if "purl.org" not in address and "w3.org" not in address}
        assert not re.search(r"<image|<script|@import|@font-face|dc:date", svg)


def test_equal_input_gives_equal_bytes_whatever_the_readers_own_style(study: Study, svgs: list[str]) -> None:
    with matplotlib.rc_context({"font.size": 5, "svg.hashsalt": "other", "axes.facecolor": "black"}):
        assert [draw_laws(study.fit), draw_forecast(study, RECORD)] == svgs
        assert matplotlib.rcParams["font.size"] == 5  # and leaves it as it was


def test_text_keeps_nine_pixels_on_a_phone(svgs: list[str]) -> None:
    for svg in svgs:
        width = float(re.search(r'width="([\d.]+)pt"', svg)[1])  # type: ignore[index]
        assert min(STYLE["font.size"], STYLE["legend.fontsize"]) * 390 / width > 9
        assert "fill: #ffffff" in svg  # readable on a dark page too


def test_labels_have_units_and_the_legend_names_what_is_drawn(svgs: list[str]) -> None:
    """Outlined text stays in the file as comments."""
    laws, forecast = (set(re.findall(r"<!-- (.*?) -->", svg)) for svg in svgs)
    assert {"compute (FLOPs without the LM head)", "loss − 1.5 (nats/token)", "d768", "d2048", "extrapolated"} <= laws
    assert {"progress (step ÷ planned steps)", "loss (nats/token)", "forecast", "measured, d6144"} <= forecast
    assert {"other choices in the fit", "its training data changed", "2.0388, 95% by bootstrap"} <= forecast


def test_the_words_hold_the_numbers(study: Study) -> None:
    words = describe_forecast(study, RECORD)
    assert "from 2.3921 nats a token at 5% of the run to 2.0388 at 100%" in words
    assert "2.0084 to 2.0782" in words
    assert words.endswith(
        "66 measured losses from 5.4% to 56.1% differ from it by -0.0819 to +0.0062, the last by -0.0012."
    )
    assert "337 times the compute of the largest rung" in describe_laws(study.fit)


def test_without_evaluations_the_forecast_stands_alone(study: Study) -> None:
    alone = replace(RECORD, hero_evaluations=(), training_data=())
    assert "measured" not in describe_forecast(study, alone)
    comments = re.findall(r"<!-- (.*?) -->", draw_forecast(study, alone))
    assert "forecast" in comments
    assert "measured, d6144" not in comments
    assert "its training data changed" not in comments


def test_a_hostile_name_stays_text() -> None:
    record = hostile(RECORD)
    study = study_record(record)
    for svg in (draw_laws(study.fit), draw_forecast(study, record)):
        root = ElementTree.fromstring(svg)
        assert not root.findall(f".//{SVG}b")
