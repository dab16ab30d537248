"""Every kernel gives the same bits on 1, 2 and 4 threads of XLA's pool."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxgraph.ops.cpu.library import missing as missing_library

TASKS = Path("/proc/self/task")

pytestmark = [
    pytest.mark.skipif(bool(missing_library()), reason=missing_library()),
    pytest.mark.skipif(not TASKS.exists(), reason="threads cannot be counted here"),
]

# Reports how many threads the process has, and a hash of every result.
PROGRAM = """
import hashlib, json, os
from functools import partial
import jax
import jax.numpy as jnp
import numpy as np
from jaxgraph.ops.cpu.calls import (
    edge_products, neighbor_extremum, neighbor_sum, row_product, row_products,
    taken_rows, weight_gradient,
)
from jaxgraph.ops.cpu.library import library
from jaxgraph.ops.core.edges import EdgeGroup
from tests.ops.cpu.attention import KINDS, compute
from tests.ops.cpu.groups import group_edges, hub_edges

library()
edges = hub_edges()
groups = group_edges(edges)
x, z = (
    jnp.asarray(np.random.default_rng(seed).standard_normal((edges.num_nodes, 123)), jnp.float32)
    for seed in range(2)
)


@jax.jit
def reduce(groups, x, z):
    over = EdgeGroup(groups, 0)
    weights = edge_products(over, x, z)
    return (
        weights,
        *(neighbor_sum(over, side, x, edges.num_nodes, weights=weights)
          for side in ("receiver", "sender")),
        neighbor_extremum(over, x, edges.num_nodes, maximum=True),
        weight_gradient(x, z, x[:, :5]),
        row_product(x, z[:123]),
        row_product(x, z[:128, :70], beside=z[:, :5]),
        row_products(x, z[:123, :70], z[:123, 70:]),
        taken_rows(x, groups.by_receiver.neighbors),
    )


found = {"reductions": reduce(groups, x, z)}
for name, kind in KINDS.items():
    arrays = [jnp.asarray(array, jnp.float32) for array in kind.draw(edges.num_nodes, 3, 41)]
    found[name] = jax.jit(partial(compute, kind, rate=0.3))(groups, arrays[:-1], arrays[-1])
hashes = [
    (jax.tree_util.keystr(path), hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest())
    for path, leaf in jax.tree_util.tree_leaves_with_path(found)
]
print(json.dumps([len(os.listdir("/proc/self/task")), hashes]))
"""


def results_on(num_threads: int) -> tuple[int, Any]:
    """Threads of the process and hashes of the results, for a given size of XLA's pool."""
    root = Path(__file__).resolve().parents[3]
    # XLA makes a thread per processor, or NPROC threads.
    env = {
        **os.environ,
        "NPROC": str(num_threads),
        "PYTHONPATH": str(root),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
    }
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300)
    assert output.returncode == 0, output.stderr
    count, hashes = json.loads(output.stdout.splitlines()[-1])
    return count, hashes


@pytest.mark.slow
def test_the_same_bits_on_any_number_of_threads():
    counts, hashes = zip(*(results_on(num_threads) for num_threads in (1, 2, 4)), strict=True)
    assert counts[0] < counts[1] < counts[2], "NPROC does not set the threads of XLA's pool"
    assert len(hashes[0]) > 0
    assert hashes[1] == hashes[0]
    assert hashes[2] == hashes[0]
