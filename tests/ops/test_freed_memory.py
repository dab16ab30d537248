"""Memory that is freed and taken again: with its pages, once a graph lies on CPU devices."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
"""Prints the new pages of each of several rounds that take 4.5 MB and free it."""

ASKED = "from jaxgraph.ops.freed_memory import keep_freed_memory; keep_freed_memory()"
SHARDED = """
import numpy as np
import jaxgraph as jg
jg.parallel.shard(jg.Graph(np.arange(9), np.arange(9), 9), None, jg.parallel.make_mesh(1))
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="what becomes of freed memory is told of glibc alone"
)


def new_pages(*lines: str, **variables: str) -> float:
    """The median over rounds in a process that begins with some lines."""
    own = ("MALLOC_", "GLIBC_TUNABLES")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    run = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, ROUNDS])],
        cwd=Path(__file__).parents[2],
        env=plain | {"JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return float(np.median(json.loads(run.stdout)))


def test_by_itself_glibc_gives_it_back() -> None:
    assert new_pages() > 500


@pytest.mark.parametrize("lines", [ASKED, SHARDED])
def test_kept_pages_are_used_again(lines: str) -> None:
    assert new_pages(lines) < 50


def test_a_setting_of_the_environment_stands() -> None:
    assert new_pages(ASKED, MALLOC_TRIM_THRESHOLD_="100000") > 500
