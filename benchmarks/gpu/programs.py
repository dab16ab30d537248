"""jaxgraph's program for every task: a function of a block of edges and of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxgraph as jg
from benchmarks.cpu.tasks import SpMM
from benchmarks.gpu.graphs import Placed
from benchmarks.gpu.plan import Check, Layer, Message, Task
from jaxgraph.ops.core.blocks import Block

Program = Callable[..., tuple[jax.Array, ...]]
"""From a block and arrays, the results of a task, the first with a row per row of the block."""

Shapes = tuple[tuple[int, ...], ...]


def program(task: Task, placed: Placed, implementation: str) -> tuple[Program, Shapes]:
    """The function of a task, and the shapes of its arguments after the block.

    Args:
      task: the task.
      placed: the graph.
      implementation: implementation of the ops.

    Returns:
      The function, not jitted, and the shapes; the gradient of the result comes last where the task
      has gradients.
    """
    rows, slots = placed.num_rows, placed.block.edge_slots
    if isinstance(task, SpMM):
        name = "weighted" if task.weighted else "sum"
        function, shapes, _ = _op(name, 0, task.features, rows, slots)
        return _forward(partial(function, implementation=implementation)), shapes
    if isinstance(task, Layer):
        function, shapes, result = _layer(task, jnp.asarray(placed.normalisation))
        shapes = ((rows, task.in_features), *shapes)
        result = (rows, *result)
        backward = task.backward
    else:
        assert isinstance(task, Check | Message)
        function, shapes, result = _op(task.op, task.heads, task.features, rows, slots)
        backward = True
    function = partial(function, implementation=implementation)
    if not backward:
        return _forward(function), shapes
    return _with_gradients(function), (*shapes, result)


def draw(shapes: Sequence[tuple[int, ...]], seed: int, dtype: str = "float32") -> list[jax.Array]:
    """Fresh normal numbers on the device.

    Args:
      shapes: shapes of the arrays.
      seed: different seeds give different numbers.
      dtype: dtype of all.

    Returns:
      The arrays.
    """
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    found = [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]
    return jax.block_until_ready(found)


def _forward(function: Callable[..., jax.Array]) -> Program:
    return lambda block, *arrays: (function(block, *arrays),)


def _with_gradients(function: Callable[..., jax.Array]) -> Program:
    def both(block: Block, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        *primals, gradient = arrays
        y, pull = jax.vjp(partial(function, block), *primals)
        return y, *pull(gradient.astype(y.dtype))

    return both


def _op(
    name: str, heads: int, features: int, rows: int, slots: int
) -> tuple[Callable[..., jax.Array], Shapes, tuple[int, ...]]:
    """An op, the shapes of its arguments and of its result; no heads: rows without that axis."""
    table = (rows, heads, features) if heads else (rows, features)
    numbers = (rows, heads)
    if name == "weighted":
        return jg.ops.aggregate, (table, (slots, heads) if heads else (slots,)), table
    if name == "sddmm":
        return jg.ops.sddmm, (table, table), (slots, heads)
    if name == "add":
        return partial(jg.ops.sddmm, op="add"), (table, table), (slots, *table[1:])
    if name == "gat":
        return jg.ops.gat_attention, (table, numbers, numbers), table
    if name == "gatv2":
        return jg.ops.gatv2_attention, (table, table, (heads, features)), table
    if name == "dot":
        return jg.ops.dot_attention, (table, table, table), table

    def reduce(block: Block, x: jax.Array, **options: Any) -> jax.Array:
        return jg.ops.aggregate(block, x, None, name, **options)

    return reduce, (table,), table


def _layer(
    task: Layer, normalisation: jax.Array
) -> tuple[Callable[..., jax.Array], Shapes, tuple[int, ...]]:
    width, heads = task.heads * task.features, task.heads
    kernel, bias = (task.in_features, width), (width,)
    if task.kind == "gcn":
        scale = normalisation[:, None]

        def gcn(block: Block, x: jax.Array, kernel: jax.Array, bias: jax.Array, **options: Any):
            return scale * jg.ops.aggregate(block, scale * (x @ kernel), **options) + bias

        return gcn, (kernel, bias), (width,)

    def gat(
        block: Block,
        x: jax.Array,
        kernel: jax.Array,
        bias: jax.Array,
        sender: jax.Array,
        receiver: jax.Array,
        **options: Any,
    ) -> jax.Array:
        z = (x @ kernel).reshape(-1, heads, task.features)
        logits = [(z * end).sum(-1) for end in (sender, receiver)]
        y = jg.ops.gat_attention(block, z, *logits, **options)
        return y.reshape(-1, width) + bias

    ends = (heads, task.features)
    return gat, (kernel, bias, ends, ends), (width,)
