"""What XLA's partitioner puts into a step: read off a program's text, and held against the closed formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_model import sharding
from repro.ladder import lowering, meshes, paper
from repro.ladder.partitioned import Collective, collectives, sent_elements
from repro.ladder.recipe import resolve_recipe
from repro.ladder.step import make_step

RECIPE = resolve_recipe("d1024", str(Path(__file__).with_name("toy_mesh.toml")))
# Shortened from what jaxlib 0.10 prints.
TEXT = """HloModule jit_step, is_scheduled=true

%body.1 (arg.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %ag = f32[8,16]{1,0} all-gather(%x), channel_id=1, replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}
  %loop.2 = (s32[]) while(%t), condition=%cond.2, body=%body.2
}

%body.2 (arg.2: (s32[])) -> (s32[]) {
  %ar = (f32[3]{0}, s32[]) all-reduce(%y, %z), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
}

%small (arg.3: (s32[])) -> (s32[]) {
  ROOT %rs = bf16[5]{0} reduce-scatter(%w), channel_id=3, replica_groups=[2,2]<=[4], dimensions={0}, to_apply=%add
}

%not_called (arg.4: (s32[])) -> (s32[]) {
  %ag.9 = f32[1000]{0} all-gather(%x), channel_id=9, replica_groups=[1,4]<=[4], dimensions={0}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %loop = (s32[], f32[4]) while(%t), condition=%cond, body=%body.1, backend_config={"known_trip_count":{"n":"6"}}
  %call = (s32[]) call(%t), to_apply=%small, metadata={op_name="a(b)/while"}
  %fused = f32[4] fusion(%u), kind=kLoop, calls=%not_called
  %a2a = (f32[1,3], f32[1,3]) all-to-all(%a, %b), replica_groups=mesh['axis_0'=2,'axis_1'=8] {'axis_0','axis_1':(1)2}
  ROOT %done = pred[7]{0} all-reduce-start(%w), replica_groups={{0,1,2,3}}, to_apply=%or
}
"""


def test_collectives_are_read_with_their_groups_and_loops() -> None:
    assert sorted(collectives(TEXT)) == [
        Collective("all-gather", ((8, 16),), group=4, times=6),
        Collective("all-reduce", ((3,), ()), group=2, times=6),  # a loop without a known count goes once
        Collective("all-reduce", ((7,),), group=4, times=1),
        Collective("all-to-all", ((1, 3), (1, 3)), group=4, times=1),
        Collective("reduce-scatter", ((5,),), group=2, times=1),
    ]
    assert sent_elements(TEXT) == {
        "all-gather": 6 * 128 * 3 // 4,
        "all-reduce": 6 * (2 * 4 // 2) + 2 * 7 * 3 // 4,
        "all-to-all": 6 * 3 // 4,
        "reduce-scatter": 5,
    }


def test_a_collective_whose_group_cannot_be_read_is_no_guess() -> None:
    with pytest.raises(ValueError, match="no replica groups in %x = f32"):
        collectives("ENTRY %main (p: f32[4]) -> f32[4] {\n  %x = f32[8]{0} all-gather(%p), dimensions={0}\n}\n")


@pytest.mark.parametrize(
    ("mesh", "remat"),
    [("2x1x4", True), pytest.param("2x1x4", False, marks=pytest.mark.slow), ("1x2x4", False)],
)
def test_xla_gathers_and_deals_what_the_formulas_say_and_nothing_else(mesh: str, remat: bool) -> None:
    """To the last element."""
    sizes = meshes.parse_mesh(mesh)
    placed = sharding.make_mesh(**sizes)
    step = make_step(RECIPE, mesh=placed, remat=remat).lower(*lowering.step_arguments(RECIPE, placed)).compile()
    found = collectives(step.as_text())
    said = paper.put_on_paper(RECIPE, sizes, remat=remat).communication.elements(RECIPE.compute_dtype)
    assert said == {kind: sum(one.sent for one in found if one.kind == kind) for kind in said}
