"""The process belongs to its owner: the library changes nothing of it unless asked by name."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxgraph.process import add_threads
from tests.interpreter import run_alone

UNTOUCHED = """
import os, sys
from pathlib import Path
import jax

def settings():
    return dict(os.environ), dict(jax.config.values)

before = settings()
import numpy as np
import optax
from flax import nnx
import jaxgraph as jg

rng = np.random.default_rng(0)
senders, receivers = rng.integers(0, 70_000, (2, 70_000))
nodes = rng.standard_normal((70_000, 64), np.float32)
graph = jg.Graph(senders, receivers, 70_000, nodes=nodes, labels=senders % 3,
                 train_mask=receivers % 2 == 0)
sharded = jg.parallel.shard(graph, None, jg.parallel.make_mesh(1))
model = jg.nn.GraphSAGE(64, 64, 3, rngs=nnx.Rngs(0))
jg.train.fit(model, sharded, optax.sgd(0.1), epochs=1)
assert settings() == before, [a.items() ^ b.items() for a, b in zip(before, settings())]
assert "jaxgraph.process" not in sys.modules
smaps = Path("/proc/self/smaps")
if smaps.exists():
    flags = [line.split() for line in smaps.read_text().splitlines() if line[:8] == "VmFlags:"]
    assert not any("hg" in words for words in flags), "large pages were asked for"
"""
"""A training step whose results take more than 8 MiB."""

ROUNDS = """
import resource
import numpy as np

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(1_500_000, np.uint8) for _ in range(3)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print([new_pages() for _ in range(6)])
"""
"""Prints the new pages of each of several rounds that allocate 4.5 MB and free it."""

ASKED = "from jaxgraph.process import keep_freed_memory; keep_freed_memory()"
TUNED = "import jaxgraph as jg; jg.process.tune_process()"
SHARDED = """
import numpy as np
import jaxgraph as jg
jg.parallel.shard(jg.Graph(np.arange(9), np.arange(9), 9), None, jg.parallel.make_mesh(1))
"""

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="what becomes of freed memory is told of glibc alone"
)


@pytest.mark.slow
def test_import_shard_and_fit_change_nothing_of_the_process() -> None:
    # NumPy requests large pages by default.
    done = run_alone(UNTOUCHED, NUMPY_MADVISE_HUGEPAGE="0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None])
def test_the_number_of_devices_is_checked(count) -> None:
    with pytest.raises(ValueError, match="num_devices is"):
        add_threads(count)


def new_pages(*lines: str, **variables: str) -> float:
    """The median over rounds in a process that starts with some lines."""
    own = ("MALLOC_", "GLIBC_TUNABLES")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    run = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, ROUNDS])],
        cwd=Path(__file__).parents[1],
        env=plain | {"JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return float(np.median(json.loads(run.stdout)))


@needs_glibc
@pytest.mark.slow
@pytest.mark.parametrize("lines", ["", SHARDED])
def test_by_itself_glibc_gives_it_back(lines: str) -> None:
    assert new_pages(lines) > 500


@needs_glibc
@pytest.mark.slow
@pytest.mark.parametrize("lines", [ASKED, TUNED])
def test_kept_pages_are_used_again(lines: str) -> None:
    assert new_pages(lines) < 50


@needs_glibc
@pytest.mark.slow
def test_a_setting_of_the_environment_stands() -> None:
    assert new_pages(ASKED, MALLOC_TRIM_THRESHOLD_="100000") > 500


def threads_of_xla(**environment: str) -> int:
    program = """
import os
import jax
import jaxgraph as jg
jg.process.tune_process(num_devices=3)
jg.parallel.emulate_devices(3)
jax.devices()
names = [open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")]
print(sum("XLAEigen" in name for name in names))
"""
    done = run_alone(program, **environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_each_device_that_waits_has_a_thread() -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_of_xla() == cores + 3
    assert threads_of_xla(NPROC=str(cores + 4)) == cores + 4
