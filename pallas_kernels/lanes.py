"""Kernels written lane by lane: reads, writes and exchanges of the 128 lanes of a warpgroup.

Mosaic GPU spreads arrays over the 128 lanes of a warpgroup. Every array of these kernels is int32
or float32 [..., lanes], one number per lane in the last axis, so that arithmetic on arrays is
arithmetic per lane, and every lane can gather another row. This module adds the operations that
Pallas lacks: reads and writes at addresses that differ by lane, and exchanges between the lanes of
a warp. Each has two bodies: code for the chip, and plain array code of the same meaning for Pallas'
interpreter, which does not run inlined code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.compatibility import (
    arith,
    element_type,
    exchange_with,
    ir,
    llvm,
    memory_pointer,
    mgpu,
    vector,
)

__all__ = ["LANES", "Lanes"]

LANES = 128
"""Lanes of a warpgroup."""

WARP = 32


def _layout(shape: tuple[int, ...]) -> Any:
    return plgpu.Layout.WG_STRIDED(shape, vec_size=1)


def _computed(dtype: Any) -> Any:
    """The type in which the lanes hold numbers of a type; unsigned ones as their 32 bits."""
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else jnp.int32


def _result(shape: tuple[int, ...], dtype: Any) -> Any:
    return plgpu.ShapeDtypeStruct(shape, dtype, layout=_layout(shape))


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The operations of a warpgroup's lanes, such as reads, other than arithmetic.

    Attributes:
      interpreted: whether the kernel runs in the interpreter.
    """

    interpreted: bool = False

    def ids(self) -> jax.Array:
        """int32 [lanes]: 0, 1, ..., 127."""
        if self.interpreted:
            return lax.iota(jnp.int32, LANES)
        return plgpu.inline_mgpu(return_type=_result((LANES,), jnp.int32))(_lane_ids)()

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any = jnp.float32) -> jax.Array:
        """[..., lanes] of one value, in the layout of reads, as loop carries must have it."""
        filled = jnp.full(shape, value, dtype)
        return filled if self.interpreted else plgpu.layout_cast(filled, _layout(shape))

    def spread(self, values: jax.Array, count: int) -> jax.Array:
        """[count, lanes] of values [lanes]."""
        return lax.broadcast_in_dim(values, (count, LANES), (1,))

    def split(self, values: jax.Array) -> list[jax.Array]:
        """The [lanes] of values [count, lanes], one by one."""
        count = values.shape[0]
        if self.interpreted:
            return [values[place] for place in range(count)]
        return plgpu.inline_mgpu(
            arg_types=(_layout(values.shape),),
            return_type=[_result((LANES,), values.dtype)] * count,
        )(_splitter)(values)

    def read(
        self,
        reference: Any,
        row: jax.Array,
        column: jax.Array | None = None,
        *,
        mask: jax.Array,
        count: int = 1,
        otherwise: float = 0,
        constant: bool = True,
    ) -> jax.Array:
        """x[row, column : column + count] of every lane.

        Args:
          reference: [rows, columns] or [rows], global memory, of 16 or 32 bits.
          row, column: int32 [lanes]; column is a multiple of `count`, as is the number of columns.
          mask: bool [lanes], True for lanes that read.
          count: 1, 2, 4 or 8, the numbers that a lane reads at once, at most 16 bytes.
          otherwise: the value for the other lanes.
          constant: whether no lane of the kernel writes to the reference.

        Returns:
          [count, lanes], float32 or int32.
        """
        if self.interpreted:
            return _interpreted_read(reference, row, column, mask, count, otherwise, constant)
        dtype = jnp.dtype(reference.dtype)
        kept = _computed(dtype)
        flat = _layout((LANES,))
        body = _reader(reference.shape, dtype, count, otherwise, constant)
        offsets = (row,) if column is None else (row, column)
        return plgpu.inline_mgpu(
            arg_types=(plgpu.RefType(), flat, *(flat,) * len(offsets)),
            return_type=_result((count, LANES), kept),
        )(body)(reference, mask.astype(jnp.int32), *offsets)

    def write(
        self,
        reference: Any,
        row: jax.Array,
        column: jax.Array | None,
        values: jax.Array,
        *,
        mask: jax.Array,
    ) -> None:
        """x[row, column : column + count] = values of every lane, rounded to the type of x.

        Args:
          reference: [rows, columns] or [rows], global memory.
          row, column: int32 [lanes], as for `read`; no two lanes write to one place.
          values: [count, lanes].
          mask: bool [lanes], True for lanes that write.
        """
        if self.interpreted:
            return _interpreted_write(reference, row, column, values, mask)
        flat = _layout((LANES,))
        body = _writer(reference.shape, jnp.dtype(reference.dtype), values.shape[0])
        offsets = (row,) if column is None else (row, column)
        plgpu.inline_mgpu(
            arg_types=(plgpu.RefType(), flat, _layout(values.shape), *(flat,) * len(offsets)),
        )(body)(reference, mask.astype(jnp.int32), values, *offsets)

    def exchange(self, values: jax.Array, distance: int) -> jax.Array:
        """[..., lanes]: every lane gets the number of lane XOR distance; distance < 32."""
        if self.interpreted:
            return jnp.take(values, lax.iota(jnp.int32, LANES) ^ distance, axis=-1)
        return plgpu.inline_mgpu(
            arg_types=(_layout(values.shape),), return_type=_result(values.shape, values.dtype)
        )(_exchanger(distance))(values)

    def meet(self, barrier: Any) -> None:
        """Waits for all lanes of a cluster, after which each sees the earlier writes of the others.

        Args:
          barrier: the argument of `run` in `meeting`.
        """
        if self.interpreted:
            plgpu.barrier_arrive(barrier)
            plgpu.barrier_wait(barrier)
        else:
            plgpu.inline_mgpu()(_meet)()

    def meeting(self, warpgroups: int, run: Callable[[Any], None]) -> None:
        """Runs a function that needs a barrier of a cluster; a chip has its own.

        Args:
          warpgroups: warpgroups of a block.
          run: a function of the barrier.
        """
        if self.interpreted:
            barrier = plgpu.ClusterBarrier(collective_axes=("member",), num_arrivals=warpgroups)
            pl.run_scoped(run, barrier, collective_axes="warpgroup")
        else:
            run(None)


# ---------------------------------------------------------------- for the interpreter


def _interpreted_read(
    reference: Any,
    row: jax.Array,
    column: jax.Array | None,
    mask: jax.Array,
    count: int,
    otherwise: float,
    constant: bool,
) -> jax.Array:
    dtype = _computed(reference.dtype)
    places = jnp.zeros_like(row) if column is None else column
    shape = (count, LANES)
    if constant:
        table = reference[...].reshape(reference.shape[0], -1)
        columns = places + lax.broadcasted_iota(jnp.int32, shape, 0)
        # A wrong index reads NaN, or the largest integer, and not a neighbor.
        found = table.at[jnp.broadcast_to(row, shape), columns].get(
            mode="fill", wrap_negative_indices=False
        )
        return jnp.where(mask, found.astype(dtype), jnp.asarray(otherwise, dtype))

    # The race detector has to see exactly what is read.
    def lane(index: jax.Array, found: jax.Array) -> jax.Array:
        def one() -> jax.Array:
            if column is None:
                values = reference[row[index]].reshape(1)
            else:
                values = reference[row[index], pl.ds(places[index], count)]
            return lax.dynamic_update_slice_in_dim(
                found, values.astype(dtype).reshape(count, 1), index, 1
            )

        return lax.cond(mask[index], one, lambda: found)

    return lax.fori_loop(0, LANES, lane, jnp.full(shape, otherwise, dtype))


def _interpreted_write(
    reference: Any,
    row: jax.Array,
    column: jax.Array | None,
    values: jax.Array,
    mask: jax.Array,
) -> None:
    count, rounded = values.shape[0], values.astype(reference.dtype)

    def lane(index: jax.Array, carry: jax.Array) -> jax.Array:
        @pl.when(mask[index])
        def _() -> None:
            own = lax.dynamic_index_in_dim(rounded, index, 1, keepdims=False)
            if column is None:
                reference[row[index]] = own[0]
            else:
                reference[row[index], pl.ds(column[index], count)] = own

        return carry

    lax.fori_loop(0, LANES, lane, jnp.int32(0))


# ---------------------------------------------------------------- for the chip


def _array(registers: list[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """The array of one number per lane and register."""
    lane_values = np.empty(len(registers), object)
    for place, register in enumerate(registers):
        kind = ir.VectorType.get((1,), register.type)
        lane_values[place] = vector.from_elements(kind, [register])
    signed = True if jnp.issubdtype(dtype, jnp.signedinteger) else None
    return mgpu.FragmentedArray(
        _registers=lane_values, _layout=_layout(shape).to_mgpu(), _is_signed=signed
    )


def _numbers(array: Any) -> list[Any]:
    """The numbers of a lane."""
    return [
        vector.extract(register, dynamic_position=[], static_position=[0])
        for register in array.registers.flat
    ]


def _integer(bits: int) -> Any:
    return ir.IntegerType.get_signless(bits)


def _lane_ids(context: Any) -> Any:
    lane = arith.remui(mgpu.thread_idx(), mgpu.c(LANES, _integer(32)))
    return _array([lane], (LANES,), jnp.int32)


def _address(reference: Any, shape: tuple[int, ...], dtype: Any, offsets: tuple[Any, ...]) -> Any:
    """The address of a lane's first number; in 64 bits, since tables exceed 2 ** 31 numbers."""
    wide = _integer(64)
    places = [arith.extsi(wide, _numbers(each)[0]) for each in offsets]
    place = places[0]
    if len(shape) == 2:
        place = arith.muli(place, mgpu.c(shape[1], wide))
    if len(places) == 2:
        place = arith.addi(place, places[1])
    start = llvm.ptrtoint(wide, memory_pointer(reference))
    return arith.addi(start, arith.muli(place, mgpu.c(dtype.itemsize, wide)))


WIDEST = 16
"""Bytes that one instruction reads or writes."""


def _access(size: int) -> tuple[str, int, str, int]:
    """The suffix of an access of `size` bytes, its registers, their constraint and their bits."""
    if size == 2:
        return "b16", 1, "h", 16
    words = size // 4
    return ("b32" if words == 1 else f"v{words}.b32"), words, "r", 32


def _accesses(address: Any, dtype: Any, count: int) -> list[tuple[Any, int]]:
    """The address and the number count of every instruction that accesses `count` numbers."""
    at_once = min(count, WIDEST // dtype.itemsize)
    wide = _integer(64)
    return [
        (arith.addi(address, mgpu.c(place * dtype.itemsize, wide)), at_once)
        for place in range(0, count, at_once)
    ]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def _reader(
    shape: tuple[int, ...], dtype: Any, count: int, otherwise: float, constant: bool
) -> Callable[..., Any]:
    def body(context: Any, reference: Any, mask: Any, *offsets: Any) -> Any:
        address = _address(reference, shape, dtype, offsets)
        numbers = []
        for place, some in _accesses(address, dtype, count):
            words = _read_words(place, _numbers(mask)[0], some * dtype.itemsize, constant)
            numbers += _unpacked(words, dtype, some)
        return _array(_otherwise(numbers, mask, otherwise), (count, LANES), _computed(dtype))

    return body


def _read_words(address: Any, mask: Any, size: int, constant: bool) -> list[Any]:
    """The words of one read; lanes whose mask is 0 read nothing and get 0."""
    suffix, words, constraint, bits = _access(size)
    kind = _integer(bits)
    names = [f"${place}" for place in range(words)]
    clear = " ".join(f"mov.b{bits} {name}, 0;" for name in names)
    path = "global.nc" if constant else "global"
    found: Any = llvm.inline_asm(
        kind if words == 1 else llvm.StructType.get_literal([kind] * words),
        [address, mask],
        f"{{ .reg .pred reads; setp.ne.b32 reads, ${words + 1}, 0; {clear} "
        f"@reads ld.{path}.{suffix} {_listed(names)}, [${words}]; }}",
        ",".join([f"=&{constraint}"] * words + ["l", "r"]),
        has_side_effects=not constant,
    )
    return [found] if words == 1 else [llvm.extractvalue(kind, found, [i]) for i in range(words)]


def _unpacked(parts: list[Any], dtype: Any, count: int) -> list[Any]:
    """Numbers in the type of computation, from the words that were read."""
    element = element_type(dtype)
    per_word = max(1, count // len(parts))
    numbers = []
    for part in parts:
        if per_word == 1:
            numbers.append(part if part.type == element else arith.bitcast(element, part))
            continue
        packed = llvm.bitcast(ir.VectorType.get((per_word,), element), part)
        numbers += [
            vector.extract(packed, dynamic_position=[], static_position=[i])
            for i in range(per_word)
        ]
    if isinstance(element, ir.IntegerType) or dtype.itemsize == 4:
        return numbers
    return [arith.extf(ir.F32Type.get(), number) for number in numbers]


def _otherwise(numbers: list[Any], mask: Any, otherwise: float) -> list[Any]:
    if otherwise == 0:
        return numbers
    reads = arith.cmpi(arith.CmpIPredicate.ne, _numbers(mask)[0], mgpu.c(0, _integer(32)))
    return [arith.select(reads, number, mgpu.c(otherwise, number.type)) for number in numbers]


def _writer(shape: tuple[int, ...], dtype: Any, count: int) -> Callable[..., None]:
    def body(context: Any, reference: Any, mask: Any, values: Any, *offsets: Any) -> None:
        address = _address(reference, shape, dtype, offsets)
        numbers = _numbers(values)
        for number, (place, some) in enumerate(_accesses(address, dtype, count)):
            own = numbers[number * some : (number + 1) * some]
            _write_words(place, _numbers(mask)[0], own, dtype)

    return body


def _write_words(address: Any, mask: Any, numbers: list[Any], dtype: Any) -> None:
    suffix, words, constraint, bits = _access(len(numbers) * dtype.itemsize)
    names = [f"${place}" for place in range(2, 2 + words)]
    llvm.inline_asm(
        None,
        [address, mask, *_packed(numbers, dtype, words, bits)],
        "{ .reg .pred writes; setp.ne.b32 writes, $1, 0; "
        f"@writes st.global.{suffix} [$0], {_listed(names)}; }}",
        ",".join(["l", "r"] + [constraint] * words),
        has_side_effects=True,
    )


def _packed(numbers: list[Any], dtype: Any, words: int, bits: int) -> list[Any]:
    """The words that hold numbers rounded to a type."""
    element, kind = element_type(dtype), _integer(bits)
    rounded = [
        number if number.type == element else arith.truncf(element, number) for number in numbers
    ]
    per_word = len(rounded) // words
    if per_word == 1:
        return [part if part.type == kind else arith.bitcast(kind, part) for part in rounded]
    packed = ir.VectorType.get((per_word,), element)
    return [
        llvm.bitcast(kind, vector.from_elements(packed, rounded[place : place + per_word]))
        for place in range(0, len(rounded), per_word)
    ]


def _meet(context: Any) -> None:
    llvm.inline_asm(
        None,
        [],
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
        "~{memory}",
        has_side_effects=True,
    )


def _splitter(context: Any, values: Any) -> list[Any]:
    return [_array([number], (LANES,), _kind(values)) for number in _numbers(values)]


def _kind(values: Any) -> Any:
    return np.float32 if values.is_signed is None else np.int32


def _exchanger(distance: int) -> Callable[..., Any]:
    def body(context: Any, values: Any) -> Any:
        moved = [exchange_with(number, distance) for number in _numbers(values)]
        return _array(moved, values.shape, _kind(values))

    return body
