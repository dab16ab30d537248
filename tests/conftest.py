"""The setting of every test: eight emulated devices, tiers, the real data."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import settings

from jaxgraph.analysis import compilations
from tests import tiers
from tests.compilation import compile_quickly
from tests.times import RecordTimes

NUM_DEVICES = 8
MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000
"""Memory mappings: Linux allows a process 65,530 by default, and every compiled loop needs three.
Beyond that nothing compiles, and the process crashes."""
CHECK_EVERY = 20
"""Tests after which mappings are counted again, which takes milliseconds."""
TESTS = itertools.count()
ROOT = Path(__file__).resolve().parent.parent
DEFAULT_DATA = ROOT.parent / "shared" / "data"


def configure_jax() -> None:
    """One process with eight CPU devices serves every smaller mesh.

    No cache of programs on disk: from there a CPU program of several devices comes back without
    the order of collectives in a loop and those outside of it, and devices wait for each other.
    """
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    jax.config.update("jax_enable_compilation_cache", False)


def listen_to_ctrl_c() -> None:
    """Restores SIGINT, which a shell's background process ignores, and its children too."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# At import: before any test module can start a backend, or a process.
configure_jax()
compile_quickly()
listen_to_ctrl_c()

# Deadlines measure the machine; an example that compiles is not at fault.
settings.register_profile("jaxgraph", deadline=None, max_examples=25, print_blob=True)
settings.register_profile("jaxgraph-ci", settings.get_profile("jaxgraph"), derandomize=True)
settings.load_profile("jaxgraph-ci" if os.environ.get("CI") else "jaxgraph")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["host", "interfaces", "core", "all"],
        help="run a tier of tests/tiers.py; core and all fail where a law did not run",
    )
    parser.addoption(
        "--slow", action="store_true", help="run slow tests and cases of the given paths, too"
    )
    parser.addoption(
        "--times",
        action="store_true",
        help="show the slowest tests, with the seconds of compiling and of tracing",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("times"):
        config.pluginmanager.register(RecordTimes())
    if not hasattr(config, "workerinput"):
        from tests.law.ran import RanLaws

        config.pluginmanager.register(RanLaws(config.getoption("tier") in ("core", "all")))


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from imported objects and most rounds: tracing makes many."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Drops programs before there are too many: the whole matrix has tens of thousands."""
    if next(TESTS) % CHECK_EVERY or not MAPPINGS.exists():
        return
    if MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what the tier leaves out, instead of skipping it."""
    for item in items:
        for mark in item.iter_markers("law"):
            item.user_properties += [("law", number) for number in mark.args]
    tier = config.getoption("tier")
    named = tier is None and any("::" in name for name in config.args)
    if tier == "all" or config.getoption("slow") or named:
        return
    kept = tiers.SELECTED[tier or "core"](items)
    chosen = set(kept)
    left_out = [item for item in items if item not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(autouse=True)
def host_tests_compile_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test of the host tier that compiles a program."""
    if not tiers.is_host(request.node):
        yield
        return
    with compilations() as compiled:
        yield
    assert not compiled, f"{request.node.nodeid} compiles: it is no test of the host"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data: $JAXGRAPH_DATA, or ../shared/data beside the repository."""
    named = os.environ.get("JAXGRAPH_DATA")
    folder = Path(named) if named else DEFAULT_DATA
    if not folder.is_dir():
        source = "JAXGRAPH_DATA" if named else "JAXGRAPH_DATA is not set and the default"
        pytest.skip(f"real data needed: {source} names no folder ({folder})")
    return folder
