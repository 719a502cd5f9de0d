"""What XLA's partitioner made of a step: the collectives of the compiled program, counted off its text.

Weights and dense gradients move by collectives that no line of the model names: XLA puts them in when it cuts the
program for a mesh, before it looks at the hardware. What it gathers that nobody meant it to gather shows here, and in
no count of the traced program (`repro.ladder.lowering`).

Numbers are elements, not bytes: a CPU's compiler widens bfloat16 before it sends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

COMPUTATION = re.compile(r"(?:ENTRY )?%?(\S+) \(.*\{$")
COLLECTIVE = re.compile(
    r" = (?P<result>.*?) (?P<kind>all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
SHAPE = re.compile(r"\b[a-z]+\d+\[([\d,]*)\]|\bpred\[([\d,]*)\]")
GROUPS = re.compile(
    r"replica_groups=(?:"
    r"\{\{(?P<listed>[\d,]*)\}"  # {{0,1},{2,3}}
    r"|\[(?:\d+,)*(?P<iota>\d+)\]<="  # [2,2]<=[4]
    r"|mesh\[(?P<axes>[^\]]*)\].*?\{(?P<over>'[^}]*)\})"  # mesh['a'=2,'b'=2] {'b'}
)
AXIS = re.compile(r"'(\w+)'(?:=|:\(\d+\))?(\d+)?")
LOOP = re.compile(r" while\(.*body=%?(?P<body>[^\s,]+).*?(?:known_trip_count\":\{\"n\":\"(?P<trips>\d+)\"|$)")
CALLED = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=%?([^\s,)]+)")


class Collective(NamedTuple):
    """One place of the program; `times` it is met in a step, loops whose trips depend on data once."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]  # of its results on one device
    group: int  # devices that take part
    times: int

    @property
    def sent(self) -> int:
        """Elements that leave a device in a step: of n members each sends (n − 1)/n of the whole, twice for a sum."""
        whole = sum(prod(shape) for shape in self.shapes)
        whole *= self.group if self.kind == "reduce-scatter" else 2 if self.kind == "all-reduce" else 1
        return self.times * whole * (self.group - 1) // self.group


def sent_elements(text: str) -> dict[str, int]:
    """Elements that leave a device in a step, by kind of collective."""
    found: Counter[str] = Counter()
    for one in collectives(text):
        found[one.kind] += one.sent
    return dict(sorted(found.items()))


def collectives(text: str) -> list[Collective]:
    """All of a compiled module, from its text."""
    lines: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if opened := COMPUTATION.match(line):
            name = opened[1]
            entry = name if line.startswith("ENTRY") else entry
            lines[name] = []
        elif name:
            lines[name].append(line)
    times: Counter[str] = Counter()

    def visit(name: str, count: int) -> None:
        times[name] += count
        for line in lines.get(name, ()):
            if loop := LOOP.search(line):
                visit(loop["body"], count * int(loop["trips"] or 1))
            elif " fusion(" not in line and not COLLECTIVE.search(line):
                for called in CALLED.findall(line):
                    visit(called, count)

    visit(entry, 1)
    return [found for name, count in times.items() for found in _in_lines(lines.get(name, []), count)]


def _in_lines(lines: list[str], times: int) -> Iterator[Collective]:
    for line in lines:
        if met := COLLECTIVE.search(line):
            shapes = [first or second for first, second in SHAPE.findall(met["result"])]
            yield Collective(
                met["kind"], tuple(tuple(map(int, filter(None, s.split(",")))) for s in shapes), _group(line), times
            )


def _group(line: str) -> int:
    """Devices that one device exchanges with, itself included."""
    found = GROUPS.search(line)
    if found is None:
        raise ValueError(f"no replica groups in {line.strip()[:200]}")
    if found["listed"] is not None:
        return len(found["listed"].split(","))
    if found["iota"]:
        return int(found["iota"])
    sizes = dict(AXIS.findall(found["axes"]))
    return prod(int(part or sizes[axis]) for axis, part in AXIS.findall(found["over"]))
