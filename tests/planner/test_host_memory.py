"""Inputs in the host's memory, as a compiler without a device counts them."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.analysis.traced import argument_bytes
from jaxgraph.planner.step_cost import _memory_of
from jaxgraph.planner.targets import find_target

NEEDS_CUDA = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None,
    reason="compiling for H200 needs the CUDA plugin of jax: pip install 'jaxgraph[cuda]'",
)


@NEEDS_CUDA
def test_inputs_on_the_host_count_as_such_only_where_the_program_says_so() -> None:
    """Compilation without a device drops the memory kind of inputs.

    They count as the device's arguments. Moved to the host by the first line of the program, they
    count as the host's memory as well; a plan counts them once.
    """
    mesh, rows = find_target("h200x8").mesh(emulate=False), 1 << 16
    placed = NamedSharding(mesh, PartitionSpec(None, "graph"), memory_kind="pinned_host")
    x = jax.ShapeDtypeStruct((16, rows, 256), jnp.float32, sharding=placed)
    size = 16 * rows * 256 * 4 // 8

    def total(x: jax.Array) -> jax.Array:
        def add(sums: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
            chunk = jax.lax.dynamic_index_in_dim(x, index, 0, keepdims=False)
            return sums + jax.device_put(chunk, jax.memory.Space.Device).sum(0), None

        return jax.lax.scan(add, jnp.zeros(256), jnp.arange(16))[0]

    def from_host(x: jax.Array) -> jax.Array:
        return total(jax.device_put(x, jax.memory.Space.Host))

    traced = jax.jit(from_host).trace(x)
    on_host = argument_bytes(traced, (x,), on_host=True)
    assert (on_host, argument_bytes(traced, (x,))) == (size, 0)
    compiled = jax.jit(total).lower(x).compile(), traced.lower().compile()
    dropped, kept = (each.memory_analysis() for each in compiled)
    assert dropped is not None and kept is not None
    assert dropped.argument_size_in_bytes == kept.argument_size_in_bytes == size
    assert not dropped.host_temp_size_in_bytes and not dropped.host_argument_size_in_bytes
    memory = _memory_of(compiled[1], on_host)
    assert (memory.host, memory.arguments) == (size, 256 * 4)  # of its results
    assert memory.temporary < size / 8
