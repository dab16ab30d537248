"""Full-batch training of graph neural networks, sharded over a device mesh, in JAX.

Submodules are imported on first use: reading and partitioning a graph never imports jax, and the
command line handles an interrupt before NumPy is imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxgraph.other_names import ADVICE_ON_NAMES, no_attribute

if TYPE_CHECKING:
    from jaxgraph import (
        analysis,
        datasets,
        external,
        layers,
        metrics,
        nn,
        ops,
        parallel,
        partition,
        planner,
        process,
        saga,
        sampling,
        train,
        transforms,
    )
    from jaxgraph.graph import Graph
    from jaxgraph.typed_graph import TypedGraph

__version__ = "0.1.0.dev0"

__all__ = [
    "Graph",
    "TypedGraph",
    "__version__",
    "analysis",
    "datasets",
    "external",
    "layers",
    "metrics",
    "nn",
    "ops",
    "parallel",
    "partition",
    "planner",
    "process",
    "saga",
    "sampling",
    "train",
    "transforms",
]

if not TYPE_CHECKING:  # pyright sees the imports above and reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name == "Graph":
            return importlib.import_module(f"{__name__}.graph").Graph
        if name == "TypedGraph":
            return importlib.import_module(f"{__name__}.typed_graph").TypedGraph
        if name in __all__:
            return importlib.import_module(f"{__name__}.{name}")
        raise no_attribute(f"module {__name__!r}", name, ADVICE_ON_NAMES.get(name))

    def __dir__() -> list[str]:
        return sorted(__all__)
