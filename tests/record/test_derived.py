"""Bytes of a fetched record → tables and facts, over real HTTP from stand-ins that answer with the known record."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from audits.check import audit_record
from audits.claims import read_ledger
from repro.errors import RecordError
from repro.files import canonical_json, read_bounded
from repro.ladder.fit import fit_record
from repro.record.artifact_lock import read_artifacts, read_bytes
from repro.record.artifacts import DERIVED, Contents, read_contents
from repro.record.cache import open_cache
from repro.record.derived import FACTS, derive, derived_from, read_derived
from repro.record.facts import Record, load_record
from repro.record.fetch import Wish, fetch
from repro.record.lock import write_lock
from repro.record.material import Material
from repro.record.places import read_places
from repro.record.profile import as_toml
from repro.record.services.http import Client
from repro.record.stored import Absent
from tests.servers.github import COMMIT, GitHub, git_id
from tests.servers.wandb import Run, WandB

HERE = "experiments/grug/moe_hero_ep/"
SECOND = "d27dffe9c125e34b6f5a56a3a4006d196efb6575"  # the pin of the second mixture
LADDER = "7a19cc7f36b911111b656d5fb5eecbf061337553"  # the pin of the ladder's store
MIXTURE = f"{HERE}harrier_mix_2026_08_18.json"
LAUNCHER = '''"""Our own words about a ladder.

    size    racks   total   active   tokens   FLOPs
    d768    1       1.6B    61M      48B      5.5e19
    d1024   2       4.0B    162M     128B     2.7e20
    d1536   6       11.5B   481M     381B     1.8e21
    d2048   11      27.7B   1.2B     926B     9.2e21
    d6144   11      535B    23B      18T      2.7e24

That was the table.
"""
import jax
from dataclasses import replace
from experiments.grug.moe_hero_ep.small_scale_abl_launch import SMALL_SHAPES, SEQ_LEN as LENGTH

LADDER_RACKS = {"d768": 1, "d1024": 2, "d1536": 6, "d2048": 11, "d6144": 11}
TOKENS_PER_ACTIVE_PARAM = 790 + 1
QB_HIST_BINS = 10 ** 4
WATCH_INTERVAL = jax.devices()
'''
SHAPES = """
from typing import NamedTuple
class Shape(NamedTuple):
    hidden: int
    layers: int
    heads: int
SMALL_SHAPES = {"d768": Shape(768, 8, heads=768 // 128)}
SEQ_LEN = 4 * 1024
_EP_CAPACITY_FACTOR = 1.15
"""


@pytest.fixture(scope="module")
def known() -> Record:
    """The built-in record: what the stand-ins answer with, and what must come out."""
    return load_record()


def rung_run(known: Record, rung: str) -> Run:
    """The W&B run of a rung, as its tables describe it: restarted once, so that two steps stand twice."""
    row = next(row for row in known.ladder_rungs if row.rung == rung)
    shape = {name: getattr(row, name) for name in ("num_layers", "hidden_dim", "num_heads", "num_kv_heads")}
    model = {**shape, "local_kv_heads": row.local_kv_heads, "global_kv_heads": row.global_kv_heads}
    start = next(data for data in known.training_data if data.id == rung).stages[1].from_step
    weights = [
        [0, {**{cell.cell: cell.weights["ladder"].phase0 for cell in known.mixture_weights}, "paloma/ptb": 0}],
        [start, {cell.cell: cell.weights["ladder"].phase1 for cell in known.mixture_weights}],
    ]
    config = {
        "model": {**model, "max_seq_len": row.seq_len},
        "trainer": {
            "replica_axis_size": row.racks,
            "trainer": {"train_batch_size": row.batch_size, "num_train_steps": row.steps},
        },
        "resources": {"replicas": row.gpus // 4, "device": {"count": 4}},
        "data": {"train_weights": weights},
    }
    rows = []
    for number, point in enumerate(point for point in known.ladder_domains if point.rung == rung):
        losses = {f"eval_dropless/paloma/{name}-llama3/loss": loss for name, loss in point.losses.items()}
        rows.append(
            {
                "_step": point.step,
                "_timestamp": 1787113649.4416218 + 60 * number,
                "eval_dropless/paloma/macro_loss": point.macro_loss,
                **losses,
            }
        )
    before = [
        {**row, "_timestamp": row["_timestamp"] - 5000, "eval_dropless/paloma/macro_loss": 9.0} for row in rows[:2]
    ]
    return Run(row.run_id, config=config, summary={"_step": rows[-1]["_step"]}, rows=[*before, *rows])


def hero_run(known: Record, id: str, steps: range, config: dict[str, Any], summary: dict[str, Any]) -> Run:
    """A run of the hero with the record's evaluations in `steps`, its parent's rows included."""
    rows: list[dict[str, Any]] = []
    for one in known.hero_evaluations:
        if one.step in steps:
            row: dict[str, Any] = {"_step": one.step, "_timestamp": 1787191982.0 + one.step}
            row |= {f"eval_dropless/paloma/{name}-llama3/loss": loss for name, loss in one.domain_losses.items()}
            row["eval_dropless/paloma/macro_loss"] = one.dropless_macro_loss
            row["eval_dropless/paloma/micro_loss"] = one.dropless_micro_loss
            row["eval_dropless/paloma/macro_bpb"] = one.dropless_macro_bpb
            row["eval_dropless/paloma/bpb"] = one.dropless_micro_bpb
            if one.as_trained_macro_loss is not None:
                row["eval/paloma/macro_loss"] = one.as_trained_macro_loss
            rows.append(row)
    for step in range(steps.stop - 2000, steps.stop, 10):
        rows.append({"_step": step, "_timestamp": 1787191982.0 + step, "train/cross_entropy_loss": 2 + 1 / (step + 1)})
        if step % 20 == 0:
            rows[-1]["throughput/mfu"] = 25.0
    return Run(id, state="crashed", config=config, summary=summary, rows=sorted(rows, key=lambda row: row["_step"]))


def hero_config(known: Record, at: str) -> dict[str, Any]:
    """The configuration of the first or the latest run, as the record has it, with its weights."""
    assert known.run_configuration is not None
    leaves: dict[str, Any] = json.loads(json.dumps(known.run_configuration.resolved(at)))
    leaves["trainer"]["trainer"]["train_batch_size"] = 11264
    name = "hero_launch" if at == "first" else "hero_from_108000"
    stages = [
        [step, {cell.cell: cell.weights[name][phase] for cell in known.mixture_weights}]
        for phase, step in enumerate((0, 312192))
    ]
    leaves["data"] = {**leaves["data"], "train_weights": stages, "components": {"c00q0": {"cache_dir": "s3://x"}}}
    return leaves


def hero_runs(known: Record) -> list[Run]:
    """The seven runs of the hero, each with its parents' rows, as the lineage forked them."""
    assert known.run_configuration is not None
    runs: list[Run] = []
    for segment in known.hero_lineage:
        config = hero_config(known, "latest" if runs else "first")
        config["report_phase_start"] = segment.start_step
        config.pop("hero_wandb_fork_from", None)
        if runs:
            config["hero_wandb_fork_from"] = f"{runs[-1].id}?_step={segment.start_step - 1}"
        summary = {**known.run_configuration.summary, "_step": segment.summary_step}
        runs.append(hero_run(known, segment.run_id, range(0, segment.summary_step + 1), config, summary))
    del runs[-1].config["trainer"]["offload_opt_state"]
    return runs


def mixture(known: Record, name: str, store: str = "store_4d2e363d") -> bytes:
    phases = {
        f"phase{phase}_weights": {cell.cell: cell.weights[name][phase] for cell in known.mixture_weights}
        for phase in (0, 1)
    }
    tokens = {cell.cell: cell.tokens[store] for cell in known.mixture_weights}
    available = {"available_tokens": tokens, "candidate_store_uri": f"s3://bucket/datakit/{store}"}
    return json.dumps({**available, **phases}).encode()


@dataclass
class World:
    """The stand-ins, and what a fetch from them makes."""

    github: GitHub
    second: GitHub
    third: GitHub
    wandb: WandB
    client: Client
    folder: Path
    cache: Path

    def fetch(self, *, update: bool = False) -> tuple[str, ...]:
        with open_cache(self.cache) as cache:
            return fetch(self.folder, Wish(update=update), cache, self.client).derived


class Several(GitHub):
    """One host with the repositories of several stand-ins, told apart by repository and commit."""

    others: tuple[GitHub, ...] = ()

    def answer(self, request: Any) -> Any:
        for other in self.others:
            if f"{other.repo}/" in request.target:
                known = {git_id("blob", data) for data in other.files.values()} | {other.commit}
                folders = {
                    "/".join(path.split("/")[:depth]) for path in other.files for depth in range(path.count("/") + 1)
                }
                known |= {other.tree(folder) for folder in folders}
                if any(id in request.target for id in known):
                    return other.answer(request)
        return super().answer(request)


@pytest.fixture
def world(known: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    files = {
        f"{HERE}launch_scaling_ladder.py": LAUNCHER.encode(),
        f"{HERE}small_scale_abl_launch.py": SHAPES.encode(),
        MIXTURE: mixture(known, "ladder"),
    }
    grid = {rung: [[point.step, point.loss] for point in points] for rung, points in known.ladder_grid.items()}
    second = GitHub(
        commit=SECOND, files={f"{HERE}best_mixture_996f489106c7b922.json": mixture(known, "hero_from_108000")}
    )
    third = GitHub(repo="fudan-chen/pretrain", commit="9c3e6cb20f5509829a5a52ccb833f268498b6606")
    third.files = {"data/ladder_eval_grid.json": json.dumps(grid).encode()}
    ladder = GitHub(commit=LADDER, files={MIXTURE: mixture(known, "ladder", "store_81e7e39a")})
    github = Several(commit=COMMIT, files=files)
    github.others = (second, third, ladder)
    with github, WandB() as wandb, Client() as client:
        wandb.runs = [rung_run(known, rung) for rung in ("d768", "d1024", "d1536", "d2048")]
        wandb.runs += hero_runs(known)
        for name, server in (("GITHUB_API", github), ("GITHUB_RAW", github), ("WANDB_API", wandb)):
            monkeypatch.setenv(f"MARIN_REPRO_{name}", server.url + ("/raw" if name == "GITHUB_RAW" else ""))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        folder = tmp_path / "record"
        folder.mkdir()
        (folder / "record.toml").write_text(as_toml(profile(known)))
        yield World(github, second, third, wandb, client, folder, tmp_path / "cache")


def profile(known: Record) -> Contents:
    """The built-in profile, of what the stand-ins have."""
    ids = {"launcher", "small-shapes", "heuristic-code", "mixture-weights", "ladder-grid"}
    ids |= {"mixture-weights-2", "mixture-weights-ladder"}
    contents = read_contents(read_bounded(known.folder / "record.toml"))
    ladder = {f"wandb-ladder-{rung}" for rung in ("d768", "d1024", "d1536", "d2048")}
    chosen = ids | ladder | {f"wandb-hero-{number}" for number in range(1, 8)}
    artifacts = tuple(one for one in contents.artifacts if one.id in chosen)
    return replace(contents, artifacts=artifacts, files=())


def facts_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / FACTS).read_text())
    return content


def test_fit_reads_a_record_that_was_fetched(world: World, known: Record) -> None:
    names = world.fetch()
    record = load_record(world.folder)
    assert set(names) >= {"ladder_grid.csv", "ladder_rungs.csv", "ladder_domains.csv", "mixture_weights.csv", FACTS}
    assert record.lock is not None
    assert record.ladder_grid == known.ladder_grid
    assert record.ladder_domains == known.ladder_domains
    assert [replace(row, run_id="") for row in record.ladder_rungs] == [
        replace(row, run_id="") for row in known.ladder_rungs
    ]
    ours, published = fit_record(record), fit_record(known)
    assert ours.points == published.points
    assert math.isclose(ours.final.prediction, 2.0387845986743045, rel_tol=1e-12)


def test_tables_of_a_fetched_record_are_those_of_the_built_in_one(world: World, known: Record) -> None:
    world.fetch()
    record = load_record(world.folder)
    of = {cell.cell: cell for cell in known.mixture_weights}
    assert len(record.mixture_weights) == 200
    for cell in record.mixture_weights:
        assert cell.weights == of[cell.cell].weights
        assert cell.tokens == of[cell.cell].tokens
        assert (cell.cluster, cell.quality) == (of[cell.cell].cluster, of[cell.cell].quality)
    kept = {one.step: one for one in known.hero_evaluations}
    assert {one.step for one in record.hero_evaluations} == set(kept)
    for one in record.hero_evaluations:
        assert one.domain_losses == kept[one.step].domain_losses
        assert (one.tokens, one.run) == (kept[one.step].tokens, kept[one.step].run)
        assert one.dropless_micro_bpb == kept[one.step].dropless_micro_bpb
        assert one.as_trained_macro_loss == kept[one.step].as_trained_macro_loss
    ends = [(one.run_id, one.start_step, one.end_step_exclusive, one.summary_step) for one in record.hero_lineage]
    assert ends == [
        (one.run_id, one.start_step, one.end_step_exclusive, one.summary_step) for one in known.hero_lineage
    ]
    assert [one.archived_evaluations for one in record.hero_lineage] == [
        sum(row.run == one.run_id for row in known.hero_evaluations) for one in known.hero_lineage
    ]
    owner = {one.run_id: one for one in record.hero_lineage}
    for sample in record.hero_train:
        one = owner[sample.run]
        assert one.start_step <= sample.step < (one.end_step_exclusive or 10**9)
        assert sample.train_loss == 2 + 1 / (sample.step + 1)
    assert record.run_configuration is not None
    assert known.run_configuration is not None
    assert record.run_configuration.value("model.attention_implementation") == "gpu_fa4_cute_sm100"
    assert record.run_configuration.value("optimizer.epsilon") == known.run_configuration.value("optimizer.epsilon")
    assert record.run_configuration.value("trainer.offload_opt_state") is None  # the latest run has no such leaf
    assert record.run_configuration.value("trainer.offload_opt_state", at="first") is True
    assert "components" not in record.run_configuration.value("data")


def test_metrics_that_share_no_step_are_all_kept(world: World) -> None:
    run = world.wandb.runs[-1]  # its losses: every 10 steps from 217,519
    norms = [
        {"_step": step, "_timestamp": 1787191982.0 + step, "grad/norm/total": step / 1e6, "throughput/mfu": 25.0}
        for step in range(217_524, 219_519, 10)
    ]
    run.rows = sorted([*run.rows, *norms], key=lambda row: row["_step"])
    world.fetch()
    record = load_record(world.folder)
    rows = [row for row in record.hero_train if row.run == run.id]
    losses = [row.step for row in rows if row.train_loss is not None]
    assert losses == [217_519, 218_009, 218_509, 219_009, 219_509]
    kept = {row.step: (row.grad_norm, row.mfu_percent) for row in rows if row.grad_norm is not None}
    assert kept == {step: (step / 1e6, 25.0) for step in (217_524, 218_004, 218_504, 219_004, 219_504)}
    assert [row.step for row in rows] == sorted({*losses, *kept})
    assert all(row.tokens == (row.step + 1) * 46_137_344 for row in rows)
    assert "all but the first value of each metric" in record.file("hero_train.csv").left_out


def test_every_run_of_the_lineage_says_its_context_and_horizon(world: World) -> None:
    world.wandb.runs[-1].config["model"]["max_seq_len"] = 16_384
    world.wandb.runs[-2].config["trainer"]["trainer"]["num_train_steps"] = 400_000
    del world.wandb.runs[-3].config["model"]["max_seq_len"]
    world.fetch()
    lineage = load_record(world.folder).hero_lineage
    assert [one.seq_len for one in lineage] == [4096, 4096, 4096, 4096, None, 4096, 16_384]
    assert [one.planned_steps for one in lineage] == [390_251] * 5 + [400_000, 390_251]


def test_every_fact_says_where_it_stands_and_what_is_not_shown_is_listed(world: World) -> None:
    world.fetch()
    content = facts_of(world.folder)
    facts = {fact["name"]: (fact["value"], fact["artifact"], fact["place"]) for fact in content["facts"]}
    lines = LAUNCHER.splitlines()
    per_parameter = lines.index("TOKENS_PER_ACTIVE_PARAM = 790 + 1") + 1
    assert facts["ladder.tokens_per_active_parameter"] == (
        791,
        "launcher",
        f"{HERE}launch_scaling_ladder.py:{per_parameter}",
    )
    assert facts["router.histogram_bins"][0] == 10_000
    assert facts["ladder.racks"][0]["d2048"] == 11
    assert facts["ladder.shapes"][0] == {"d768": {"hidden": 768, "layers": 8, "heads": 6}}
    assert facts["ladder.sequence_length"] == (4096, "small-shapes", f"{HERE}small_scale_abl_launch.py:8")
    assert facts["optimizer.epsilon"] == (6.044604247506697e-15, "wandb-hero-1", "/config/optimizer/epsilon")
    missing = {one["what"]: one for one in content["not_derived"]}
    watch = missing["logging.watch_interval"]
    assert watch["place"] == f"{HERE}launch_scaling_ladder.py:{len(lines)}"
    assert "`jax.devices`: it comes from jax, of which no file is among those read" in watch["why"]
    assert missing["hero.hidden_dim"]["why"] == "it was not fetched"


def test_the_third_party_copy_is_held_against_the_grid(world: World) -> None:
    world.third.files["data/ladder_eval_grid.json"] = world.third.files["data/ladder_eval_grid.json"].replace(
        b"3.786311388015747", b"3.786311388015749"
    )
    world.fetch()
    checked = load_record(world.folder).file("ladder_grid.csv").checked
    assert checked == f"{DERIVED}; 76 of 77 losses equal those of ladder-grid; 1 differ, first d768 at 570"


def test_equal_bytes_are_derived_to_equal_files(world: World) -> None:
    names = world.fetch()
    before = {name: (world.folder / name).read_bytes() for name in (*names, "record.toml", "record.lock.json")}
    derive(world.folder)
    write_lock(world.folder)
    assert {name: (world.folder / name).read_bytes() for name in before} == before
    assert derive(world.folder) == names


def test_a_run_that_is_gone_costs_its_segment_and_the_one_before_and_hides_no_other(world: World) -> None:
    world.wandb.runs = [run for run in world.wandb.runs if "step81k" not in run.id]
    world.fetch()
    record = load_record(world.folder)
    assert [one.start_step for one in record.hero_lineage] == [0, 108000, 108778, 121638, 146139]
    missing = {one["what"]: one["why"] for one in facts_of(world.folder)["not_derived"]}
    assert missing["segment of wandb-hero-3"] == "it was not fetched"
    assert missing["segment of wandb-hero-2"] == "it ends where wandb-hero-3 begins, which is not known"
    assert len(record.ladder_grid) == 4


def test_a_derived_lineage_does_not_change_what_a_later_fetch_asks_for(world: World) -> None:
    world.fetch()
    lock = (world.folder / "record.lock.json").read_bytes()
    world.fetch(update=True)
    assert (world.folder / "record.lock.json").read_bytes() == lock
    lost = [run for run in world.wandb.runs if "step81k" in run.id]
    world.wandb.runs = [run for run in world.wandb.runs if run not in lost]
    world.fetch(update=True)
    world.wandb.runs += lost
    world.fetch(update=True)
    assert (world.folder / "record.lock.json").read_bytes() == lock


def test_runs_that_contradict_one_another_give_no_lineage(world: World) -> None:
    world.wandb.runs[-1].config["report_phase_start"] = 146000
    world.wandb.runs[-2].config["hero_wandb_fork_from"] = "another-run?_step=121637"
    world.fetch()
    missing = {one["what"]: one["why"] for one in facts_of(world.folder)["not_derived"]}
    last = "it begins at 146139 (/config/hero_wandb_fork_from) and 146000 (/config/report_phase_start)"
    assert missing["segment of wandb-hero-7"] == last
    why = missing["hero_lineage.csv and what depends on it"]
    assert why == "wandb-hero-6 is forked from another-run, not from hero-nopdl-step108k"
    assert load_record(world.folder).hero_lineage == ()


def test_losses_that_are_no_numbers_are_listed_and_left_out(world: World) -> None:
    rung = next(run for run in world.wandb.runs if run.id == "rav-ladder-d1024")
    rung.rows[-1]["eval_dropless/paloma/macro_loss"] = math.nan
    del rung.rows[-2]["eval_dropless/paloma/ptb-llama3/loss"]
    world.fetch()
    record = load_record(world.folder)
    assert [point.step for point in record.ladder_grid["d1024"]][-2:] == [13751, 14515]
    assert max(one.step for one in record.ladder_domains if one.rung == "d1024") == 13751
    missing = [(one["what"], one["why"]) for one in facts_of(world.folder)["not_derived"]]
    assert ("ladder_grid.csv, d1024", "the loss at 1 steps, first at 15275, is not finite") in missing
    assert ("ladder_domains.csv, d1024", "step 14515 lacks a domain") in missing


def test_a_table_that_people_wrote_is_kept_and_comments_stay(world: World) -> None:
    text = "# My own record.\n\n" + (world.folder / "record.toml").read_text().partition("\n")[2]
    entry = """
[[file]]
name = "ladder_grid.csv"
what = "my own"
sources = ["https://example.org/grid"]
date = "today"
left_out = "nothing"
checked = "by eye"
"""
    (world.folder / "record.toml").write_text(text + entry)
    (world.folder / "ladder_grid.csv").write_text("rung,step,loss\nd768,570,3.5\n")
    names = world.fetch()
    assert "ladder_grid.csv" not in names
    assert "ladder_rungs.csv" in names
    assert (world.folder / "ladder_grid.csv").read_text() == "rung,step,loss\nd768,570,3.5\n"
    written = (world.folder / "record.toml").read_text()
    assert written.startswith("# My own record.\n")
    assert written.count('name = "ladder_rungs.csv"') == 1
    assert len(load_record(world.folder).ladder_grid) == 1
    whys = {one["what"]: one["why"] for one in facts_of(world.folder)["not_derived"]}
    assert whys["ladder_grid.csv"] == "the record has its own"
    derive(world.folder)
    assert (world.folder / "record.toml").read_text() == written


OWN = """
[evaluation]
loss = "eval/loss"

[[rung]]
name = "w64"
artifact = "small"

[rung_columns]
steps = "train.steps"
batch_size = ["train.devices", "train.per_device"]

[[fact]]
name = "seed"
artifact = "code"
expression = "SEED"

[[fact]]
name = "nothing"
artifact = "small"
pointer = "/config/none"
"""


def test_another_run_is_derived_by_its_own_data_alone(world: World) -> None:
    world.github.files = {"train.py": b"SEED = 6 * 7\n"}
    world.wandb.runs = [
        Run(
            "small-run",
            config={"train": {"steps": 100, "devices": 2, "per_device": 8}},
            rows=[
                {"_step": step, "_timestamp": 5.0 + step, "eval/paloma/macro_loss": 4 - step / 99} for step in (49, 99)
            ],
        )
    ]
    head = 'name = "own"\ntitle = "Own"\nsnapshot = 2026-01-31\n'
    common = 'role = "metrics"\n'
    (world.folder / "record.toml").write_text(
        f"[run]\n{head}"
        f'[[artifact]]\nid = "small"\nkind = "wandb-run"\naddress = "marin-community/marin_moe/small-run"\n'
        f'digest = "canonical"\n{common}'
        f'[[artifact]]\nid = "code"\nkind = "github-file"\naddress = "marin-community/marin:train.py"\n'
        f'pin = "{COMMIT}"\ndigest = "git-sha1"\n{common}'
    )
    (world.folder / "derive.toml").write_text(OWN.replace("eval/loss", "eval/paloma/macro_loss"))
    names = world.fetch()
    assert names == ("ladder_eval_times.csv", "ladder_grid.csv", FACTS)
    assert load_record(world.folder).ladder_grid == {"w64": ((49, 4 - 49 / 99), (99, 3.0))}
    content = facts_of(world.folder)
    assert content["facts"] == [{"name": "seed", "value": 42, "artifact": "code", "place": "train.py:1"}]
    whys = {one["what"]: one["why"] for one in content["not_derived"]}
    assert whys["nothing"] == "there is no 'none'"
    assert "ladder_rungs.csv" in whys  # a table that lacks columns of its form is not written


def test_without_a_derive_toml_or_bytes_nothing_is_written(small: Path) -> None:
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    assert derive(small) == ()
    assert {path.name: path.read_bytes() for path in small.iterdir()} == before
    derived = read_derived(small)
    assert (derived.tables, derived.facts, derived.not_derived) == ({}, (), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[evaluaton]\n", r"derive.toml: unknown key 'evaluaton'; did you mean 'evaluation'"),
        ("[evaluation]\nloss = 3\n", r"derive.toml, evaluation.loss"),
        ('[evaluation]\nloss = "a"\ndomain = "b"\n', "has {domain} in it once"),
        ('[[fact]]\nname = "a"\nartifact = "b"\n', "fact.. a: has exactly one of expression and pointer"),
        ('[[tokens]]\nartifact = "a"\npointer = "/"\nstore = "/"\n', "need .cells."),
        ('[cells]\nname = "c{cluster}"\n', "has {cluster} and {quality} in it"),
        ("[train]\nevery = 0\ncolumns = {}\n", "derive.toml, train.every"),
        ("x = ", "derive.toml: not TOML"),
    ],
)
def test_a_mistake_in_derive_toml_is_named(small: Path, text: str, message: str) -> None:
    (small / "derive.toml").write_text(text)
    with pytest.raises(RecordError, match=message):
        read_derived(small)


def test_a_lost_store_leaves_an_audit_that_says_so(world: World, known: Record) -> None:
    chosen = profile(known)
    artifacts = tuple(one for one in chosen.artifacts if one.id != "mixture-weights-ladder")
    (world.folder / "record.toml").write_text(as_toml(replace(chosen, artifacts=artifacts)))
    world.fetch()
    record = replace(load_record(world.folder), claims=known.claims)
    assert known.claims is not None
    audit = audit_record(record, read_ledger(known.claims))
    reasons = {one.subject: one.reason for one in audit.unverifiable}
    assert reasons["training_data:d768"] == "mixture_weights.csv has no tokens of 'store_81e7e39a'"
    assert "training_data:d6144" not in reasons


JUNK: list[Any] = [None, True, -1, 10**30, 1e300, "NaN", "", "x" * 300, [], {}, [[1]], {"a": {"b": []}}, "../etc", "\0"]


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of everything below a value, at most three of a list or a large object."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, inner in items[:3] if isinstance(value, list) or len(items) > 40 else items:
        yield (*place, key)
        yield from leaves(inner, (*place, key))


def loading(stored: Mapping[str, bytes]) -> Callable[[str], bytes]:
    def load(id: str) -> bytes:
        if id not in stored:
            raise Absent("it was not fetched")
        return stored[id]

    return load


def test_whatever_a_file_holds_costs_facts_and_nothing_else(world: World, known: Record) -> None:
    world.fetch()
    places = read_places(world.folder, "marin-535b")
    artifacts = {one.id: one for one in profile(known).artifacts}
    stored = {id: read_bytes(world.folder, locked) for id, locked in read_artifacts(world.folder).items()}
    names = ("wandb-ladder-d768", "wandb-hero-7", "mixture-weights", "mixture-weights-2", "ladder-grid")
    chance = random.Random(5)
    tried = 0
    for name in names:
        whole = json.loads(stored[name])
        for place in chance.sample(found := list(leaves(whole)), min(len(found), 9)):
            content = json.loads(stored[name])
            owner = content
            for key in place[:-1]:
                owner = owner[key]
            owner[place[-1]] = chance.choice(JUNK)
            changed = {**stored, name: json.dumps(content).encode()}
            derived = derived_from(Material(artifacts, loading(changed)), places)
            assert "ladder_grid.csv" in derived.tables
            canonical_json(derived.as_json())
            tried += 1
    assert tried > 40
    for data in (b"", b"null", b"[]", b"\xff", b"[" * 10_000, b'{"id": 1}', b'{"id": "a", "history": {"b": 1}}'):
        derived = derived_from(Material(artifacts, loading(dict.fromkeys(stored, data))), places)
        assert derived.tables == {}
        assert len(derived.not_derived) > 20
