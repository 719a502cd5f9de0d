from __future__ import annotations

from pathlib import Path

import pytest

from repro.errors import RecordError
from repro.record.artifacts import read_contents
from repro.record.facts import load_record

TOML = Path(__file__).with_name("small_record.toml").read_text()


def refused(content: str) -> str:
    with pytest.raises(RecordError) as caught:
        read_contents(content.encode())
    return str(caught.value)


def changed(old: str, new: str) -> str:
    assert old in TOML
    return TOML.replace(old, new, 1)


def test_a_role_that_no_capability_knows_is_refused(small: Path) -> None:
    text = (small / "record.toml").read_text().replace('"discussion"', '"discusion"')
    with pytest.raises(RecordError, match=r"thread, role.*discussion"):
        read_contents(text.encode())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (changed("address =", "adress ="), ["[[artifact]] thread: unknown key 'adress'; did you mean 'address'?"]),
        (changed("[[artifact]]", "[[artefact]]"), ["unknown key 'artefact'; did you mean 'artifact'?"]),
        (changed('title = "A small run"\n', ""), ["record.toml, [run]: title is missing."]),
        (changed('"A small run"', "7"), ["record.toml, [run], title: 7: should be a valid string"]),
        (changed("2026-01-31", '"soon"'), ["[run], snapshot: 'soon'", "date"]),
        (changed('name = "small"', 'name = "../small"'), ["[run], name: '../small'"]),
        (changed('"github-issue"', '"github-isue"'), ["[[artifact]] thread, kind: 'github-isue'"]),
        (changed("someone/model#7", "someone/model"), ["thread, address: 'someone/model' has not the form of a"]),
        (
            changed('"canonical"', f'"sha256:{"a" * 40}"'),
            ["thread, digest", "is not a sha256: its form is that of git-"],
        ),
        (changed('digest = "canonical"', 'digest = "none"\npin = "abc"'), ["thread, pin: 'abc': a commit", "40 hex"]),
        (changed('"github-issue"', '"github-file"').replace("model#7", "model:x.py"), ["pin: a github-file needs the"]),
        (changed('id = "thread"\n', ""), ["[[artifact]] number 1: id is missing."]),
        (
            changed("someone/model:grid.csv@", "someone/model:grid.csv#"),
            ["[[file]] ladder_grid.csv, sources", "neither"],
        ),
        (changed('sources = ["', 'sources = [] # ["'), ["every file has at least one source"]),
        (TOML[:-30], ["record.toml: not TOML"]),
        ("", ["record.toml: run is missing."]),
    ],
)
def test_a_malformed_record_names_entry_and_field(content: str, words: list[str]) -> None:
    message = refused(content)
    for word in words:
        assert word in message, message


FORECAST = """
[forecast]
fitted_on = ["w64", "w128"]
target = "w256"
target_steps = 100
asymptote = 1.5
mark = 0.05
compute = "without_lm_head"
source = "https://example.org"
extrapolated = { rung = "w128", window = [0.6, 0.8], correction = 0.005 }
"""


def test_a_forecast_is_read() -> None:
    forecast = read_contents((TOML + FORECAST).encode()).forecast
    assert forecast is not None
    assert forecast.extrapolated is not None
    assert (forecast.fitted_on, forecast.extrapolated.window) == (("w64", "w128"), (0.6, 0.8))


def test_an_unknown_key_deep_in_an_entry_is_answered_with_the_nearest() -> None:
    message = refused(TOML + FORECAST.replace("correction", "corection"))
    assert "[forecast]: unknown key 'extrapolated.corection'; did you mean 'correction'?" in message


def test_a_nan_in_the_forecast_is_refused() -> None:
    assert "[forecast], asymptote" in refused(TOML + FORECAST.replace("asymptote = 1.5", "asymptote = nan"))


def test_a_text_is_not_taken_for_a_number() -> None:
    assert "[forecast], target_steps: '100'" in refused(TOML + FORECAST.replace("= 100", '= "100"'))


def test_two_artifacts_may_not_share_an_id() -> None:
    artifact = TOML[TOML.index("[[artifact]]") : TOML.index("[[file]]")]
    assert "[[artifact]]: id 'thread' stands twice" in refused(TOML + artifact)


def test_every_artifact_of_the_built_in_record_has_a_link_and_an_expectation() -> None:
    artifacts = load_record().artifacts
    assert all(artifact.url.startswith("https://") for artifact in artifacts)
    assert {artifact.expectation for artifact in artifacts} == {"available", "forbidden", "gated"}
    by_id = {artifact.id: artifact for artifact in artifacts}
    assert by_id["hero-issue"].url == "https://github.com/marin-community/marin/issues/8435"
    assert by_id["token-store"].expectation == "forbidden"


def test_code_of_the_built_in_record_is_compared_by_git_blob_ids() -> None:
    code = [artifact for artifact in load_record().artifacts if artifact.kind == "github-file"]
    assert len(code) == 14
    assert {artifact.digest for artifact in code} == {"git-sha1"}


def test_a_file_that_is_listed_but_absent_is_an_error(small: Path) -> None:
    (small / "ladder_grid.csv").unlink()
    with pytest.raises(RecordError, match=r"\[\[file\]\] ladder_grid.csv: the record has no such file"):
        load_record(small)


def test_a_listed_name_may_not_lead_out(small: Path) -> None:
    (small / "record.toml").write_text(changed('name = "ladder_grid.csv"', 'name = "../ladder_grid.csv"'))
    with pytest.raises(RecordError, match="leads out of"):
        load_record(small)
