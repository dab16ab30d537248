"""The differences between the supported versions of jax, and nothing else.

Mosaic GPU is an experimental part of jax whose names move. Every import from it other than of
`jax.experimental.pallas.mosaic_gpu` is in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

__all__ = [
    "arith",
    "element_type",
    "exchange_with",
    "interpreter",
    "ir",
    "kernel",
    "llvm",
    "memory_pointer",
    "mgpu",
    "vector",
]


def interpreter(*, detect_races: bool = True) -> Any:
    """Settings under which `kernel(..., interpret=...)` runs on a CPU.

    Args:
      detect_races: whether to report accesses by a block's warpgroups that no barrier orders.

    Returns:
      The value of `interpret`.
    """
    if found := getattr(plgpu, "InterpretGPUParams", None):
        return found(detect_races=detect_races)
    # jax 0.10 has the class, and does not export it.
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    return InterpretGPUParams(detect_races=detect_races)


def kernel(
    body: Callable[..., None],
    results: Sequence[tuple[tuple[int, ...], Any]],
    *,
    programs: int,
    warpgroups: int,
    cluster: int,
    name: str,
    continued: Mapping[int, int],
    interpret: Any = None,
) -> Callable[..., list[jax.Array]]:
    """A Mosaic GPU kernel on a grid of one axis.

    Args:
      body: a function of the references of operands and results. `lax.axis_index` of "program", the
        cluster, of its "member", and of the "warpgroup" of a block identify the running warpgroup.
      results: shape and type of each result.
      programs: blocks of the grid, a multiple of `cluster`.
      warpgroups: warpgroups of a block.
      cluster: blocks that may wait for each other; with 1 there is no "member".
      name: name of the kernel.
      continued: the result that overwrites each operand, by operand; what the kernel does not write
        is unchanged.
      interpret: settings of the interpreter; None: compiled.

    Returns:
      A function of arrays, which also runs inside `jax.shard_map(check_vma=True)`.
    """
    # `plgpu.kernel` overwrites `jax.Ref`s only, which jax 0.12 refuses inside `shard_map`, and
    # `pallas_call` has no Mosaic GPU there any more; this is what `plgpu.kernel` itself calls.
    from jax._src.pallas.mpmd import _mpmd_map

    mesh = plgpu.Mesh(
        grid=(programs // cluster,),
        grid_names=("program",),
        cluster=(cluster,) if cluster > 1 else (),
        cluster_names=("member",) if cluster > 1 else (),
        num_threads=warpgroups,
        thread_name="warpgroup",
        kernel_name=name,
    )
    parameters = plgpu.CompilerParams(
        lowering_semantics=mgpu.LoweringSemantics.Lane,
        # Lanes read results of other lanes after a barrier of the kernel. The barriers that Pallas
        # puts around reads and writes order nothing.
        unsafe_no_auto_barriers=True,
    )

    def call(*operands: jax.Array) -> list[jax.Array]:
        kind = jax.typeof(operands[0]).manual_axis_type
        shapes = [
            jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=kind) for shape, dtype in results
        ]
        return list(
            _mpmd_map(
                [(mesh, body)],
                shapes,
                input_output_aliases=dict(continued),
                compiler_params=parameters,
                interpret=interpret if interpret is not None else False,
                name=name,
            )(*operands)
        )

    return call


def memory_pointer(reference: Any) -> Any:
    """The address, an LLVM value, of the first number of a reference to global memory."""
    return utils.memref_ptr(reference)


def exchange_with(number: Any, distance: int) -> Any:
    """The number, an MLIR value of 32 bits, of the lane whose id differs in the bits `distance`."""
    return utils.shfl_bfly(number, distance)


def element_type(dtype: Any) -> Any:
    """The MLIR type of a NumPy type."""
    return utils.dtype_to_ir_type(dtype)
