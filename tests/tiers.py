"""The tiers of the suite: which test runs when. This file is the only place that says so.

host: nothing compiles: graphs, readers, partitions, layouts, options. Every case.
core: all other tests that are not slow. A test with many cases runs three of them. A law runs all
of its cases. A test that is marked `expensive`, a law too, runs one case.
slow: the tests of `SLOW`, those marked `slow`, and the other cases of core tests.

`make test` is `--tier core` (host and core), `make test-all` is `--tier all`; CI runs
`--tier interfaces` on the newest Python and jax.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

HOST = (
    "datasets",
    "external",
    "layout",
    "oracles",
    "partition",
    "planner/memory",
    "sampling/test_draw.py",
    "sampling/test_tables.py",
    "test_graph.py",
    "test_graph_batches.py",
    "test_links.py",
    "test_run_log.py",
    "test_seeds.py",
    "test_splits.py",
    "test_strategies.py",
    "test_tolerance.py",
    "test_transforms.py",
    "test_written_file.py",
)
"""Folders and files whose tests compile no program: `tests/conftest.py` fails one that does."""

COSTLY = (Path(__file__).parent / "costly.txt").read_text().split()
"""Tests above about 1.5 seconds that guard no law: they compile much, or start processes."""

SLOW: dict[str, str] = {
    "benchmarks_cpu": "benchmarks' own tests",
    "benchmarks_gpu": "benchmarks' own tests; CI rehearses them where their sources changed",
    "test_benchmarks.py": "benchmarks' own tests",
    "test_benchmarks_accuracy.py": "benchmarks' own tests",
    "test_benchmarks_large_edges.py": "benchmarks' own tests",
    "test_benchmarks_memory_manager.py": "benchmarks' own tests",
    "test_benchmarks_p3.py": "benchmarks' own tests",
    "test_benchmarks_saga.py": "benchmarks' own tests",
    "test_benchmarks_sparse_features.py": "benchmarks' own tests",
    "test_benchmarks_stream.py": "benchmarks' own tests",
    **dict.fromkeys(COSTLY, "compiles many programs, or starts processes"),
}
"""Folders, files and tests with the reason why `make test` can do without them."""


INTERFACES = (
    "analysis/test_traffic.py",
    "law",
    "nn/test_parameters.py",
    "nn/test_remat.py",
    "nn/test_stack.py",
    "ops/core/test_closures.py",
    "ops/core/test_derivatives.py",
    "ops/core/test_message_programs.py",
    "ops/core/test_propagation.py",
    "ops/core/test_stored.py",
    "ops/cpu",
    "ops/test_no_scatter.py",
    "ops/test_self_check.py",
    "parallel/checks",
    "parallel/streaming",
    "parallel/test_exchange.py",
    "parallel/test_mesh.py",
    "parallel/test_placement.py",
    "parallel/test_prefetch.py",
    "parallel/test_spmd_objects.py",
    "test_pytrees.py",
    "test_silent_differences.py::test_messages_and_their_gradients_are_those_of_all_edges_at_once",
    "train/checkpoints",
    "train/test_step.py",
)
"""Tests of the promises of jax and flax: CI runs a case of each on the newest of them."""


def name_of(item: pytest.Item) -> str:
    """The test's path below `tests/`, without its case."""
    return item.nodeid.partition("[")[0].removeprefix("tests/")


def is_in(name: str, places: tuple[str, ...] | dict[str, str]) -> bool:
    """Whether one of the places is the test, its file or a folder of it."""
    return any(name == place or name.startswith((f"{place}/", f"{place}::")) for place in places)


def is_host(item: pytest.Item) -> bool:
    return is_in(name_of(item), HOST)


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None or is_in(name_of(item), SLOW)


def in_core(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items of host and core, the same in every run."""
    fast = [item for item in items if not is_slow(item)]
    cases: dict[str, list[pytest.Item]] = {}
    for item in fast:
        cases.setdefault(name_of(item), []).append(item)
    kept = {item for name, each in cases.items() for item in some_of(name, each)}
    return [item for item in fast if item in kept]


def of_interfaces(items: list[pytest.Item]) -> list[pytest.Item]:
    """A case of every test of `INTERFACES` in core; of the matrix one of every mode."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for item in in_core(items):
        case = getattr(item, "callspec", None)
        mode = getattr(case.params.get("case"), "mode", "") if case else ""
        if is_in(name_of(item), INTERFACES) and (name_of(item), mode) not in seen:
            seen.add((name_of(item), mode))
            kept.append(item)
    return kept


def of_host(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items of the host tier."""
    return [item for item in in_core(items) if is_host(item)]


SELECTED = {"host": of_host, "interfaces": of_interfaces, "core": in_core}
"""The items of each tier but `all`."""


def some_of(name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """All cases of a law, one of an expensive test, else the first, the middle and the last."""
    first = cases[0]
    if is_host(first):
        return cases
    if first.get_closest_marker("expensive"):
        return [cases[zlib.crc32(name.encode()) % len(cases)]]
    if first.get_closest_marker("law"):
        return cases
    return [first, cases[(len(cases) - 1) // 2], cases[-1]]
