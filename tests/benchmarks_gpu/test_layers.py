from benchmarks.gpu_layers import Kernels, count_kernels

PROGRAM = """
%fused (a: f32[8]) -> f32[8] {
  ROOT %b = f32[8]{0} add(%a, %a)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %p = (f32[8]{0}, s8[4]{0}) custom-call(%y, %y), custom_call_target="__cublas$gemm"
  %s = (f32[8]{0}, f32[2]{0}) custom-call(%y), custom_call_target="mosaic_gpu_v2", \
backend_config="neighbor_sum"
  %j = f32[8]{0} custom-call(%s), custom_call_target="mosaic_gpu_v2", \
backend_config="neighbor_sum_join"
  ROOT %c = f32[8]{0} copy(%j)
}
"""


def test_kernels_are_counted_by_kind() -> None:
    assert count_kernels(PROGRAM) == Kernels(ours=1, joins=1, others=3)
