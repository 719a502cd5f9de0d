"""The ladder's tables and the mixture's, as rows: out of W&B runs, printed tables and JSON, by derive.toml's places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from repro.record.lineage import note_samples
from repro.record.material import Material, Origin, Table
from repro.record.places import Evaluation, Places, RungPlace
from repro.record.stored import Absent, Row, StoredRun, at_pointer, pointer, text_table

GRID, DOMAINS, RUNGS, TIMES = "ladder_grid.csv", "ladder_domains.csv", "ladder_rungs.csv", "ladder_eval_times.csv"
MIXTURE = "mixture_weights.csv"


def grid_tables(material: Material, places: Places, evaluation: Evaluation) -> dict[str, Table]:
    """The ladder's evaluations: their mean loss, when they were logged, and by domain."""
    tables = {name: Table() for name in (GRID, TIMES, DOMAINS)}
    for rung in places.rung:
        if not rung.grid:
            continue
        with material.looking_for(f"{GRID}, {rung.name}", rung.artifact):
            run = material.run(rung.artifact)
            rows = run.series(evaluation.loss)
            origin = Origin(rung.name, rung.artifact, pointer("history", evaluation.loss, "rows"))
            for row in rows:
                tables[GRID].rows.append({"rung": rung.name, "step": row.step, "loss": row.value})
                tables[TIMES].rows.append({"rung": rung.name, "step": row.step, "unix_time": row.time})
            for name in (GRID, TIMES):
                tables[name].origins.append(origin)
                note_samples(tables[name], run, [evaluation.loss])
            if odd := run.not_finite(evaluation.loss):
                why = f"the loss at {len(odd)} steps, first at {odd[0]}, is not finite"
                material.miss(f"{GRID}, {rung.name}", rung.artifact, origin.place, why)
        if evaluation.domain:
            with material.looking_for(f"{DOMAINS}, {rung.name}", rung.artifact):
                _by_domain(material, places, evaluation, rung, tables[DOMAINS])
    if places.cross_check is not None and tables[GRID].rows:
        with material.looking_for(f"{GRID}, cross-check", places.cross_check.artifact):
            copy = at_pointer(material.json(places.cross_check.artifact), places.cross_check.pointer)
            tables[GRID].checked.append(_compared(tables[GRID].rows, copy, places.cross_check.artifact))
    return tables


def domain_series(run: StoredRun, evaluation: Evaluation) -> dict[str, list[Row]]:
    """Each domain's losses of a run, by the domain's name."""
    before, _, after = evaluation.domain.partition("{domain}")
    result = {}
    for metric in run.metrics():
        inner = metric[len(before) : len(metric) - len(after)]
        if evaluation.domain and metric == f"{before}{inner}{after}" and inner and "/" not in inner:
            result[inner.removesuffix(evaluation.domain_suffix)] = run.series(metric)
    return result


def rung_table(material: Material, places: Places) -> Table:
    """ladder_rungs.csv: settings of each rung's run, and the digits that a source file prints."""
    table = Table()
    printed: dict[str, dict[str, str]] = {}
    if places.printed is not None:
        with material.looking_for(f"{RUNGS}, printed figures", places.printed.artifact):
            found = material.expression(places.printed.artifact, places.printed.expression)
            if not isinstance(found.value, str):
                raise Absent("it is no text", found.place)
            printed = text_table(found.value, places.printed.key, places.printed.columns.values())
            table.origins.append(Origin("printed figures", places.printed.artifact, found.place))
    for rung in places.rung:
        with material.looking_for(f"{RUNGS}, {rung.name}", rung.artifact):
            run = material.run(rung.artifact)
            row: dict[str, Any] = {"rung": rung.name, "run_id": run.id}
            row |= {column: run.number(paths) for column, paths in places.rung_columns.items()}
            if places.printed is not None and rung.name in printed:
                columns = places.printed.columns
                row |= {column: printed[rung.name][head] for column, head in columns.items()}
            elif printed:
                material.miss(
                    f"{RUNGS}, printed figures of {rung.name}", rung.artifact, "", "the table has no such row"
                )
            table.rows.append(row)
            table.origins.append(Origin(rung.name, rung.artifact, "/config"))
    return table


def mixture_table(material: Material, places: Places) -> Table:
    """mixture_weights.csv: a row a cell, with every set of weights and every store that could be read whole."""
    table = Table()
    columns: dict[str, dict[str, Any]] = {}
    for one in places.weights:
        with material.looking_for(f"{MIXTURE}, weights {one.name}", one.artifact):
            phases = {}
            for phase, place in enumerate(one.phases):
                found = at_pointer(material.json(one.artifact), place)
                phases[f"weights.{one.name}.phase{phase}"] = dict(_cells(found, places, place))
                table.origins.append(Origin(f"weights.{one.name}.phase{phase}", one.artifact, place))
            columns |= phases
    for store in places.tokens:
        with material.looking_for(f"{MIXTURE}, tokens of a store", store.artifact):
            content = material.json(store.artifact)
            name = str(at_pointer(content, store.store)).rstrip("/").rpartition("/")[2]
            if not re.fullmatch(r"[\w-]{1,80}", name):
                raise Absent(f"{name[:80]!r} is no name of a store", store.store)
            tokens = dict(_cells(at_pointer(content, store.pointer), places, store.pointer))
            columns[f"tokens.{name}"] = {cell: int(value) for cell, value in tokens.items()}
            table.origins.append(Origin(f"tokens.{name}", store.artifact, store.pointer))
    cells = sorted({cell for values in columns.values() for cell in values})
    for name, values in list(columns.items()):
        if odd := [cell for cell in cells if cell not in values]:
            material.miss(f"{MIXTURE}, {name}", "", "", f"{len(odd)} cells are not in it, first {odd[0]}")
            del columns[name]
    if not any(name.startswith("weights.") for name in columns) or not any(
        name.startswith("tokens.") for name in columns
    ):
        return Table()
    assert places.cells is not None
    for cell in cells:
        cluster, quality = _cluster_and_quality(cell, places.cells.name)
        row = {"cell": cell, "cluster": cluster, "quality": quality}
        table.rows.append({**row, **{name: values[cell] for name, values in columns.items()}})
    for name, values in columns.items():
        table.checked.append(f"{name} sums to {sum(values.values())!r}")
    return table


def _by_domain(material: Material, places: Places, evaluation: Evaluation, rung: RungPlace, table: Table) -> None:
    """Add a rung's evaluations by domain; only steps at which all of its domains have a loss."""
    run = material.run(rung.artifact)
    domains = domain_series(run, evaluation)
    if not domains:
        raise Absent("no series of a domain", pointer("history", evaluation.domain))
    if "steps" not in places.rung_columns:
        raise Absent("derive.toml names no steps under [rung_columns]")
    steps = run.number(places.rung_columns["steps"])
    by_step = {name: {row.step: row.value for row in rows} for name, rows in domains.items()}
    for row in run.series(evaluation.loss):
        if all(row.step in values for values in by_step.values()):
            known = {"rung": rung.name, "step": row.step, "fraction": f"{(row.step + 1) / steps:.6f}"}
            losses = {f"losses.{name}": values[row.step] for name, values in by_step.items()}
            table.rows.append({**known, "macro_loss": row.value, **losses})
        else:
            material.miss(f"{DOMAINS}, {rung.name}", rung.artifact, row.place, f"step {row.step} lacks a domain")
    table.origins.append(Origin(rung.name, rung.artifact, pointer("history", evaluation.domain)))


def _compared(rows: list[dict[str, Any]], copy: Any, artifact: str) -> str:
    """In words, how the grid compares with another copy of it."""
    ours = {(row["rung"], row["step"]): row["loss"] for row in rows}
    theirs = dict(_copied(copy))
    both = ours.keys() & theirs.keys()
    differ = sorted(key for key in both if ours[key] != theirs[key])
    words = f"{len(both) - len(differ)} of {len(ours)} losses equal those of {artifact}"
    for keys, what in ((differ, "differ"), (sorted(ours.keys() - theirs.keys()), "are not in it")):
        words += f"; {len(keys)} {what}, first {keys[0][0]} at {keys[0][1]}" if keys else ""
    only = sorted(theirs.keys() - ours.keys())
    return words + (f"; it has {len(only)} more, first {only[0][0]} at {only[0][1]}" if only else "")


def _copied(copy: Any) -> Iterator[tuple[tuple[str, int], float]]:
    if not isinstance(copy, dict):
        raise Absent("the copy is not {rung: [[step, loss], …]}")
    for rung, points in copy.items():
        for point in points if isinstance(points, list) else [None]:
            match point:
                case [int(step), int() | float() as loss]:
                    yield (rung, step), loss
                case _:
                    raise Absent("the copy is not {rung: [[step, loss], …]}", pointer(rung))


def _cells(values: Any, places: Places, place: str) -> Iterator[tuple[str, float]]:
    """A cell's name and number. What is no cell may be there with weight 0: evaluation sets are."""
    assert places.cells is not None  # checked where derive.toml is read
    if not isinstance(values, dict):
        raise Absent("it is not {cell: number}", place)
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise Absent(f"{name[:40]} has {str(value)[:40]!r}", place)
        if _cluster_and_quality(name, places.cells.name) is not None:
            yield name, value
        elif value != 0:
            raise Absent(f"{name[:40]!r} is no cell and weighs {value}", place)


def _cluster_and_quality(name: str, template: str) -> Any:
    """(cluster, quality) of a cell's name; None where it is none."""
    parts = re.split(r"(\{cluster\}|\{quality\})", template)
    number = {"{cluster}": r"(?P<cluster>\d{1,6})", "{quality}": r"(?P<quality>\d{1,6})"}
    match = re.fullmatch("".join(number.get(part, re.escape(part)) for part in parts), name)
    return (int(match["cluster"]), int(match["quality"])) if match else None
