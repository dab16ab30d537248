"""A whole graph as a neighbourhood: one part, on one device, without a mesh.

Rows are the graph's nodes in their order. So a layer may be called on a `Graph` itself.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from jaxgraph.graph import Graph
from jaxgraph.kinds import kind_of
from jaxgraph.layout.placed import placed_part
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.ops.core.edges import varying_axes
from jaxgraph.ops.usable import usable_implementation
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.edge_order import InEdgeOrder, edge_order
from jaxgraph.parallel.named_data import check_held
from jaxgraph.parallel.neighborhood import check_neighborhood, check_nodes
from jaxgraph.parallel.placement import shard as shard_graph
from jaxgraph.parallel.shard import Shard
from jaxgraph.parallel.sharded_graph import ShardedGraph
from jaxgraph.parallel.sparse_features import SparseFeatures
from jaxgraph.partition.assignment import Partition
from jaxgraph.typed_graph import TypedGraph

Pytree = Any
N = TypeVar("N")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class WholeGraph(InEdgeOrder):
    """A graph on one device.

    Attributes:
      shard: its only part, [nodes] rows in the graph's order, with no axis of a mesh.
      edge_of_slot: int32 [slots], the edge that each slot holds; 0 where none.
      slot_of_edge: int32 [edges], its inverse.
    """

    shard: Shard
    edge_of_slot: jax.Array
    slot_of_edge: jax.Array


_HELD: weakref.WeakKeyDictionary[Graph | TypedGraph, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""By function, device, and the type of JAX's floating numbers, which degrees are held in."""


def sharded_on_one(graph: Graph | TypedGraph) -> ShardedGraph:
    """Shards a graph over a mesh of JAX's default device; once, for as long as the graph lives."""
    return _once(_shard, graph)


def as_sharded(value: Any) -> Any:
    """A graph that is not sharded, sharded over one device; any other value as it is."""
    return sharded_on_one(value) if isinstance(value, Graph | TypedGraph) else value


def on_whole_graph(graph: Graph) -> WholeGraph:
    """Places a graph on JAX's default device; once, for as long as the graph lives."""
    return _once(_place, graph)


def _once(make: Callable[[Any, Any], T], graph: Graph | TypedGraph) -> T:
    # Also within jax.jit and jax.grad, whose program takes the arrays as constants.
    with jax.ensure_compile_time_eval():
        number = jnp.zeros(())
        (device,) = number.devices()
        held, key = _HELD.setdefault(graph, {}), (make, device, number.dtype)
        if key not in held:
            held[key] = make(graph, device)
        return held[key]


def on_device(value: Graph | N, x: Any = None) -> tuple[N | Shard, Any]:
    """Returns the neighbourhood that a layer runs on: a graph is placed on one device."""
    if not isinstance(value, Graph):
        check_neighborhood(value)
    _refuse_sparse_of_jax(x)
    if not isinstance(value, Graph):
        if any(map(sp.issparse, jax.tree.leaves(x))):
            raise ValueError(
                "x is a SciPy matrix, which is no argument of compiled functions; pass shard.nodes,"
                " which holds its non-zeros, or a Graph in place of the shard"
            )
        return value, x
    x = jax.tree.map(lambda leaf: _as_rows(value, leaf), x)
    if any(varying_axes(leaf) for leaf in jax.tree.leaves(x)):
        raise ValueError(
            "a layer was given a Graph, and rows of a shard. In a function that "
            "jaxgraph.parallel.spmd runs, pass the shard: layer(shard, x)"
        )
    return on_whole_graph(value).shard, x


def nodes_on_device(value: Graph | N, x: Any = None) -> tuple[N | Shard, Any]:
    """The table of nodes that a function of rows acts on, and the rows; as `on_device`."""
    if not isinstance(value, Graph):
        check_nodes(value)
    return on_device(value, x)


def slots_on_device(value: Any, edge: Pytree) -> Pytree:
    """Data of the edges by edge slot; beside a graph, it is given in the order of its edges."""
    if not isinstance(value, Graph):
        return edge
    whole = on_whole_graph(value)
    return jax.tree.map(lambda leaf: whole.by_slot(leaf, "edge"), edge)


def edges_of_slots(value: Any, slots: Pytree) -> Pytree:
    """Arrays by edge slot; beside a graph, they are returned in the order of its edges."""
    if not isinstance(value, Graph):
        return slots
    return jax.tree.map(on_whole_graph(value).by_edge, slots)


def _as_rows(graph: Graph, leaf: Any) -> jax.Array | SparseFeatures:
    """Features of the nodes of a graph on the device; sparse ones as those of a graph."""
    if sp.issparse(leaf):
        same = graph if leaf is graph.nodes else graph.replace(nodes=leaf)
        nodes: Any = on_whole_graph(same).shard.nodes
        return nodes
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"x: got {kind_of(leaf)}; expected arrays of JAX or NumPy with a row for each node, "
            "such as graph.nodes: tensor.numpy() of PyTorch, frame.to_numpy() of pandas"
        ) from error


def _refuse_sparse_of_jax(x: Any) -> None:
    # By its module, which would have to be imported to ask for the class.
    is_sparse = lambda part: type(part).__module__.startswith("jax.experimental.sparse")  # noqa: E731
    for part in jax.tree.leaves(x, is_leaf=is_sparse):
        if is_sparse(part):
            raise ValueError(
                f"x: got {kind_of(part)}, a sparse matrix of JAX; expected a dense array, "
                "x.todense(), or sparse features of the graph: graph.replace(nodes=matrix) with a "
                "matrix of scipy.sparse, whose graph.nodes layers take as x"
            )


def _shard(graph: Graph | TypedGraph, device: Any) -> ShardedGraph:
    return shard_graph(graph, None, Mesh([device], "graph"))


def _place(graph: Graph, device: Any) -> WholeGraph:
    check_held(graph)
    partition = Partition(np.zeros(graph.num_nodes, np.int32), 1, "whole")
    source = tabulate(graph, partition, "sar", fewest_rows=1)
    implementation = usable_implementation(None, device)
    arrays: dict[str, Any] = dict(placed_part(source, source.manifest, 0, implementation))
    (edges,) = source.survey.incoming
    edge_of_slot = edges.by_receiver.in_row_order(edges.edges)
    order = edge_order(edge_of_slot, len(arrays["incoming/receivers"]), graph.num_edges)
    # Not committed to it: JAX then moves the graph to a model that was trained on other devices.
    with jax.default_device(device):
        arrays, *order = jax.device_put((arrays, *order))
    shared = dataclasses.replace(source.manifest, counts=None)
    return WholeGraph(assemble(arrays, shared, (), False, implementation), *order)


def _refuse(*_: Any) -> Any:
    raise ValueError(
        "a Graph holds arrays of the host, and is no argument of jax.jit, jax.grad or jax.tree "
        "and no attribute of a module: let the function close over it, "
        "jax.jit(lambda x: layer(graph, x)), or pass the result of jaxgraph.parallel.shard"
    )


jax.tree_util.register_pytree_node(Graph, _refuse, _refuse)
