"""The setting of every test: eight emulated devices, a compilation cache, the real data."""

import gc
import itertools
import os
import signal
import zlib
from pathlib import Path

import jax
import pytest
from hypothesis import settings

from tests.compilation import compile_quickly

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
    """One process with eight CPU devices serves every smaller mesh; programs are compiled once."""
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def listen_to_ctrl_c() -> None:
    """Restores SIGINT, which a shell's background process ignores, and its children too."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# At import: before any test module can start a backend, or a process.
configure_jax()
listen_to_ctrl_c()

# Deadlines measure the machine; an example that compiles is not at fault.
settings.register_profile("jaxgraph", deadline=None, max_examples=25, print_blob=True)
settings.register_profile("jaxgraph-ci", settings.get_profile("jaxgraph"), derandomize=True)
settings.load_profile("jaxgraph-ci" if os.environ.get("CI") else "jaxgraph")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="run the whole matrix of layers, modes, partitioners and device counts",
    )
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run at most N cases of every parametrised test",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The whole matrix is compiled as users compile."""
    if not config.getoption("--full"):
        compile_quickly()


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
    """Deselects what the options leave out, instead of skipping it."""
    chosen = items
    if not config.getoption("--full"):
        chosen = [item for item in chosen if not item.get_closest_marker("full")]
    if most := config.getoption("--cases"):
        chosen = some_of_each(chosen, most)
    kept = set(chosen)
    left_out = [item for item in items if item not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def some_of_each(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """At most some cases of every test, the same in every run: from the first to the last case."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen: list[pytest.Item] = []
    for name, each in cases.items():
        if most == 1:
            chosen.append(each[zlib.crc32(name.encode()) % len(each)])
            continue
        count = min(most, len(each))
        last = max(count - 1, 1)
        chosen += [each[at * (len(each) - 1) // last] for at in range(count)]
    return chosen


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data: $JAXGRAPH_DATA, or ../shared/data beside the repository."""
    named = os.environ.get("JAXGRAPH_DATA")
    folder = Path(named) if named else DEFAULT_DATA
    if not folder.is_dir():
        source = "JAXGRAPH_DATA" if named else "JAXGRAPH_DATA is not set and the default"
        pytest.skip(f"real data needed: {source} names no folder ({folder})")
    return folder
