import ast
from pathlib import Path

import pytest

import benchmarks
from benchmarks.cpu.worker import LIBRARIES

ROOT = Path(benchmarks.__file__).parent.parent
PEERS = [name for name in LIBRARIES if name != "jaxgraph"]


def imported(module: str) -> set[str]:
    """All modules that a module of this repository imports, directly or through others of it."""
    path = ROOT / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    own = {
        name
        for name in found
        if name.startswith("benchmarks.")
        and (ROOT / Path(*name.split("."))).with_suffix(".py").exists()
    }
    return found.union(*(imported(name) for name in own))


@pytest.mark.parametrize("name", ["worker", *PEERS])
def test_a_peers_worker_needs_no_jax(name: str):
    module = "benchmarks.cpu.worker" if name == "worker" else LIBRARIES[name][0]
    packages = {each.partition(".")[0] for each in imported(module)}
    assert "numpy" in packages
    assert packages.isdisjoint({"jax", "jaxlib", "flax", "optax", "jaxgraph", "rich"})


def test_ours_does():
    assert "jax" in imported(LIBRARIES["jaxgraph"][0])


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_is_where_the_worker_looks(library: str):
    module, name = LIBRARIES[library]
    tree = ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())
    assert name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
