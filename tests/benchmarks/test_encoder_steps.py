"""The cycles of a step add up from the estimates and bytes of a program's text."""

from plm_jax.planning import hlo
from plm_jax.training import flops

TEXT = """
%cond (c: (u32[])) -> pred[] {
  %limit = u32[] constant(3)
  %c = (u32[]) parameter(0)
  %i = u32[] get-tuple-element(%c), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%fused (p: f32[1000]) -> f32[1000] {
  %p = f32[1000] parameter(0)
  ROOT %q = f32[1000] negate(%p)
}

%body (b: (u32[], f32[1000])) -> (u32[], f32[1000]) {
  %b = (u32[], f32[1000]) parameter(0)
  %old = u32[] get-tuple-element(%b), index=0
  %x = f32[1000] get-tuple-element(%b), index=1
  %one = u32[] constant(1)
  %next = u32[] add(%old, %one)
  %slow = f32[1000] fusion(%x), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"70"}
  %fast = f32[1000] fusion(%slow), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"4"}
  %kernel = f32[1000] custom-call(%fast), custom_call_target="tpu_custom_call"
  ROOT %t = (u32[], f32[1000]) tuple(%next, %kernel)
}

ENTRY %main (p: (u32[], f32[1000])) -> f32[1000] {
  %p = (u32[], f32[1000]) parameter(0)
  %loop = (u32[], f32[1000]) while(%p), condition=%cond, body=%body
  %y = f32[1000] get-tuple-element(%loop), index=1
  ROOT %out = f32[1000] all-reduce(%y), channel_id=1, replica_groups={{0,1}}, to_apply=%sum
}
"""


def test_cycles_outside_of_kernels_add_up():
    # A cycle moves 160 bytes of memory or 100 of the network, so that 8,000 bytes of a fusion take 50 cycles.
    import encoder_steps

    chip = flops.Chip(1.0, hbm_bandwidth=160.0, network_bandwidth=100.0)
    cycles = encoder_steps.outside_of_kernels(hlo.HloModule(TEXT), chip, clock=1.0)
    assert cycles["products"] == 3 * (70 + 50)
    assert cycles["network"] == 40  # 2 · 1/2 of 4,000 bytes.
    assert abs(cycles["memory"] - 50) < 1  # Of the all-reduce, and of the loop's counter.


def test_bundles_of_a_tile_are_read_by_kernel(tmp_path):
    import encoder_steps

    for name, count in (
        ("1-flash_forward.1", 70),
        ("2-flash_forward.2", 90),
        ("3-flash_backward", 200),
        ("4-other", 5),
    ):
        path = tmp_path / f"{name}-schedule-analysis_final_bundles.txt"
        path.write_text(f"header\n total scheduled bundles:  {count}\n")
    assert encoder_steps.bundles_of_tiles(str(tmp_path)) == {"flash_forward": 90, "flash_backward": 200}
