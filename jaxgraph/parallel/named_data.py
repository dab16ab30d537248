"""Named arrays of a graph in the types that devices hold."""

from __future__ import annotations

import jax
import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.schema import EDGE_PREFIX, NODE_PREFIX
from jaxgraph.typed_graph import EdgeSet


def storing_named(manifest: Manifest) -> Manifest:
    """The manifest with named arrays of the types that JAX holds, 32 bits unless told otherwise."""
    for name, (_, dtype) in manifest.array_shapes().items():
        held = jax.dtypes.canonicalize_dtype(dtype)
        if name.startswith((NODE_PREFIX, EDGE_PREFIX)) and held != dtype:
            manifest = manifest.storing(name, held)
    return manifest


def storing_given(manifest: Manifest, graph: Graph) -> Manifest:
    """Undoes `storing_named` for the types in which a graph has its arrays on the host."""
    shapes = manifest.array_shapes()
    for prefix, data in ((NODE_PREFIX, graph.node_data), (EDGE_PREFIX, graph.edge_data)):
        for name, values in data.items():
            held = shapes.get(prefix + name)
            if held is not None and held[1] == jax.dtypes.canonicalize_dtype(values.dtype):
                manifest = manifest.storing(prefix + name, values.dtype)
    return manifest


def check_held(graph: Graph | EdgeSet) -> None:
    """Checks that devices can hold the named arrays of a graph; computes nothing on them."""
    for field in ("node_data", "edge_data"):
        for name, values in getattr(graph, field, {}).items():
            held = jax.dtypes.canonicalize_dtype(values.dtype)
            if held == values.dtype or not values.size:
                continue
            limits = np.finfo(held) if held.kind == "f" else np.iinfo(held)
            least, most = np.nanmin(values), np.nanmax(values)
            if least < limits.min or most > limits.max:
                raise ValueError(
                    f"{field}[{name!r}]: values run from {least} to {most}, and JAX holds "
                    f"{values.dtype} as {held}; scale them, number ids through with np.unique(ids, "
                    "return_inverse=True), or call jax.config.update('jax_enable_x64', True) first"
                )
