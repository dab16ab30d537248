"""Running one function on every shard at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.errors import TraceContextError
from jax.core import Tracer
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.graph import Graph
from jaxgraph.kinds import kind_of
from jaxgraph.parallel.checks.authors import is_raised_by_jax
from jaxgraph.parallel.checks.output_check import check_outputs, check_random_rows
from jaxgraph.parallel.checks.row_check import check_rows, state_of_field
from jaxgraph.parallel.checks.states import UNKNOWN, Along, Rows, RowState, Same
from jaxgraph.parallel.nnx_objects import (
    Objects,
    changes,
    mark_objects,
    merge_objects,
    on_mesh,
    split_objects,
    store_placed,
    values_of,
    write_back,
)
from jaxgraph.parallel.node_table import NodeTable
from jaxgraph.parallel.shard import NO_LIST_OF_EDGES, Shard
from jaxgraph.parallel.sharded_graph import ShardedGraph, check_sharded

Pytree = Any
ROWS = "rows"
"""Metadata of a variable with one row per node: "nodes" in the graph's order, "placed" by shard."""
TABLE = "table"
"""Metadata with the name of the set of these nodes; None: the only one, or the target."""

_NO_ARRAYS = ("Shard(part of", f"{Shard.__module__}.Shard", "NodeTable(", NodeTable.__module__)
"""Words by which JAX names a shard, or a table of it, that was taken for an array."""


def spmd(
    function: Callable[..., Pytree], *, outputs: Pytree = "replicated"
) -> Callable[..., Pytree]:
    """Makes a function of a shard run on every shard of a sharded graph at once.

    Every `ShardedGraph` among the arguments of the result becomes the device's `Shard`. Variables
    whose rows belong to nodes (`jaxgraph.nn.NodeEmbedding`, after `place_rows`) become the device's
    rows. Everything else is the same on every device, and `jax.grad` of the result sums its
    gradient over the devices. Nothing may be returned as "replicated" that differs between
    devices: reduce it with `shard.sum` first.

    Flax NNX objects among the arguments (modules, `nnx.Optimizer`, `nnx.Rngs`, in pytrees, with
    shared variables) are updated in place, as under `nnx.jit`; the first call moves their variables
    to the graph's devices:

        @jg.parallel.spmd
        def step(model, optimizer, shard, key):
            loss, grads = nnx.value_and_grad(loss_of)(model, shard, key)
            optimizer.update(model, grads)
            return loss

    `nnx.State` and everything else that is no object is copied: return its new values. The same
    holds under `jax.jit` and `jax.grad` of the result, which copy objects too (`nnx.jit`,
    `nnx.grad` do not).

    Args:
      function: `(..., shard, ...) -> pytree of arrays`.
      outputs: for each output (a pytree prefix), "replicated": the same on every device, "rows":
        [rows, ...], one row per node of the shard, or "edges": [slots, ...], one per edge slot.

    Returns:
      A compiled function of global arrays; outputs of "rows" are [parts * rows, ...] in the order
      of the shards, those of "edges" [parts * slots, ...] (`gather_rows` and `gather_edges` bring
      them into the graph's order). Its method `lower` is that of `jax.jit`.

    Raises:
      ValueError: no sharded graph among the arguments, two on different meshes, `outputs` holds
        another word or does not fit the function's outputs; an output is "replicated", or was
        stored in an NNX object, and differs between devices; or an object's structure was changed.
    """
    if not callable(function):
        raise ValueError(
            f"spmd: got {kind_of(function)}; expected a function of a shard, which is then called "
            "with the sharded graph: spmd(lambda shard: ...)(sharded)"
        )
    for word in jax.tree.leaves(outputs):
        if word not in ("replicated", "rows", "edges"):
            raise ValueError(f"outputs holds {word!r}; expected 'replicated', 'rows' or 'edges'")

    return wraps(function)(_OnAllShards(function, outputs))


class _OnAllShards:
    """A function of global arrays that runs on every shard.

    JAX's transformations copy the `__dict__` of a wrapped function: `lower` is a method and the
    programs are in slots, so that a gradient of this function does not take them over.
    """

    __slots__ = ("__dict__", "__weakref__", "_plain", "_with_objects")

    def __init__(self, function: Callable[..., Pytree], outputs: Pytree) -> None:
        def plain(*arguments: Any) -> Pytree:
            return _run(function, outputs, arguments, None)[0]

        def with_objects(objects: Objects, arguments: Pytree) -> Pytree:
            return _run(function, outputs, arguments, objects)

        self._plain = jax.jit(plain)
        self._with_objects = jax.jit(with_objects)

    def __call__(self, *arguments: Any) -> Pytree:
        mesh = _graph_of(arguments).mesh
        marked, objects, parts = split_objects(arguments)
        if parts is None:
            return self._plain(*arguments)
        parts, moved = on_mesh(parts, mesh)
        if moved:
            store_placed(objects, parts.state)
        result, same, rows = self._with_objects(parts, marked)
        write_back(objects, parts.state, same | rows)
        return merge_objects(result, objects)

    def lower(self, *arguments: Any) -> jax.stages.Lowered:
        """Lowers the program that a call with these arguments runs, as `lower` of `jax.jit` does.

        NNX objects are lowered as the call places them; they stay as they are.
        """
        mesh = _graph_of(arguments).mesh
        marked, _, parts = split_objects(arguments)
        if parts is None:
            return self._plain.lower(*arguments)
        return self._with_objects.lower(on_mesh(parts, mesh, abstract=True)[0], marked)


def _run(
    function: Callable[..., Pytree], outputs: Pytree, arguments: Pytree, objects: Objects | None
) -> tuple[Pytree, dict[int, Any], dict[int, Any]]:
    """The function's outputs on all shards, and the new values of objects' variables.

    The new values come by the number of the variable, those that are the same on every device
    first, then those whose rows are split.
    """
    graph = _graph_of(arguments)
    state = () if objects is None else objects.state
    split = PartitionSpec(graph.axis)
    specs = jax.tree.map(
        lambda part: split if _is_split(part) else PartitionSpec(),
        (state, arguments),
        is_leaf=_is_unit,
    )
    out_specs = jax.tree.map(
        lambda word: PartitionSpec() if word == "replicated" else split, outputs
    )
    tables, flow = graph.shards.tables, graph.shards.manifest.flow
    # What a function does with the edges of a layer, it does with all edges, too, in inference.
    names = graph.shards.edge_arrays.keys() - (() if flow is None else flow.relations)
    slots = {name: graph.shards.relation(name).edge_slots for name in sorted(names)}
    sizes = {"rows": [t.num_rows for t in tables.values()], "edges": [*slots.values()]}

    def on_one_shard(state: Any, local: Pytree) -> tuple[Pytree, Any, Any]:
        local = jax.tree.map(_own_shard, local, is_leaf=_is_graph)
        if objects is None:
            result = _called(function, local)
            check_outputs(result, outputs, sizes)
            return result, {}, {}
        before = values_of(state)
        splits = [_is_split(variable) for _, variable, _ in before]
        merged = nnx.merge(objects.graphdef, state)
        result = mark_objects(_called(function, merge_objects(local, merged)), merged)
        check_outputs(result, outputs, sizes)
        return result, *changes(before, objects.graphdef, merged, splits)

    def checked(state: Any, local: Pytree) -> tuple[Pytree, Any, Any]:
        trace = jax.make_jaxpr(on_one_shard, return_shape=True)
        program, shapes = trace(state, local)
        words = jax.tree.leaves(
            jax.tree.map(
                lambda word, part: jax.tree.map(lambda _: word, part),
                (outputs, "replicated", "rows"),
                shapes,
            )
        )
        for name, table in tables.items():
            check_random_rows(program.jaxpr, table.num_rows)
            states = _row_states((state, local), graph.shards, name, of_edges=False)
            check_rows(program, states, words, table.num_rows, has_padding=table.has_padding)
        for name, count in slots.items():
            states = _row_states((state, local), graph.shards, name, of_edges=True)
            check_rows(program, states, words, count, has_padding=True, of_edges=True)
        values = core.jaxpr_as_fun(program)(*jax.tree.leaves((state, local)))
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    try:
        return jax.shard_map(
            checked,
            mesh=graph.mesh,
            in_specs=specs,
            out_specs=(out_specs, PartitionSpec(), split),
            check_vma=True,
        )(state, arguments)
    except ValueError as error:
        if "check_vma" not in str(error):
            raise
        raise ValueError(
            "the result of the function does not fit outputs= of jaxgraph.parallel.spmd: an output "
            "is 'replicated' and differs between devices (reduce it with shard.sum), or has no "
            "rows to be returned as 'rows'"
        ) from error


def _called(function: Callable[..., Pytree], arguments: Sequence[Any]) -> Pytree:
    try:
        return function(*arguments)
    except TraceContextError as error:
        raise ValueError(
            "the function writes to an NNX object or variable that it was not given as an argument "
            "at this level. Pass modules, optimizers and random streams as arguments of the "
            "function that jaxgraph.parallel.spmd runs, and of nnx.value_and_grad inside of it; a "
            "model that is merged inside jax.grad needs nnx.merge(graphdef, ..., copy=True)"
        ) from error
    except (AssertionError, IndexError, TypeError, ValueError) as error:
        advice = _advice(error)
        if advice:
            raise ValueError(f"the function that jaxgraph.parallel.spmd runs {advice}") from error
        # An array was indexed by it, or made of it.
        if any(word in str(error) for word in _NO_ARRAYS):
            error.add_note(f"jaxgraph: {NO_LIST_OF_EDGES}")
        raise


def _advice(error: Exception) -> str:
    """The remedy where JAX's own error names none; "" elsewhere."""
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return (
            "selects rows by a mask, whose number a compiled program cannot know. Keep all rows, "
            "and put zeros in the others: jnp.where(mask[:, None], x, 0)"
        )
    if isinstance(error, AssertionError) and is_raised_by_jax(error):
        return (
            "fails in JAX, as a collective over jax.vmap(axis_name=...) does. Reduce over all "
            "nodes with shard.sum, and over each node's neighbours with jaxgraph.parallel.propagate"
        )
    if isinstance(error, TypeError) and "carry" in str(error) and "{V:" in str(error):
        return (
            "carries a value in a loop that begins the same on every device and then differs. "
            "Begin with a value that differs, jax.lax.pcast(value, shard.axis, to='varying'); a "
            "scan over rows would mix nodes: treat each by itself with jax.vmap, and sum over all "
            "with shard.sum"
        )
    return ""


def _is_graph(part: Any) -> bool:
    return isinstance(part, ShardedGraph)


def _is_unit(part: Any) -> bool:
    return isinstance(part, ShardedGraph | nnx.Variable)


def _is_split(part: Any) -> bool:
    if isinstance(part, nnx.Variable):
        rows = part.get_metadata().get(ROWS)
        if rows == "nodes":
            raise ValueError(
                "a variable with one row per node is in the graph's order; split it with "
                "jaxgraph.parallel.place_rows(state, sharded) first"
            )
        return rows == "placed"
    return isinstance(part, ShardedGraph)


def _row_states(
    arguments: Pytree, shards: Shard, followed: str, *, of_edges: bool
) -> list[RowState]:
    """The states in which arguments enter `check_rows` of the rows of a table, or of the edges."""
    numbers = itertools.count()
    own = {("edge_arrays", followed)} if of_edges else shards.fields_of(followed)

    def states(part: Any) -> Pytree:
        if _is_graph(part):
            # Below a field are columns of features, which have rows of all nodes.
            number = next(numbers)
            return jax.tree_util.tree_map_with_path(
                lambda path, leaf: state_of_field(path[1:], leaf, number, own, of_edges=of_edges),
                part,
            )
        state: RowState = Same()
        if isinstance(part, nnx.Variable) and _is_split(part):
            is_own = not of_edges and table_of(part, shards) == followed
            state = Rows(Along(0)) if is_own else UNKNOWN
        return jax.tree.map(lambda _: state, part)

    return jax.tree.leaves(jax.tree.map(states, arguments, is_leaf=_is_unit))


def _own_shard(part: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], part.shards) if _is_graph(part) else part


def _graph_of(arguments: Any) -> ShardedGraph:
    is_leaf = lambda part: _is_graph(part) or isinstance(part, Graph)  # noqa: E731
    graphs = [p for p in jax.tree.leaves(arguments, is_leaf=is_leaf) if _is_graph(p)]
    if not graphs:
        given = ", ".join(type(part).__name__ for part in arguments)
        raise ValueError(
            f"spmd found no sharded graph among the arguments ({given}); pass the result of "
            "jaxgraph.parallel.shard(graph, partition, mesh)"
        )
    if any(graph.mesh != graphs[0].mesh for graph in graphs):
        raise ValueError("the sharded graphs among the arguments live on different meshes")
    if any(graph.is_streamed for graph in graphs):
        raise ValueError(
            "spmd runs a function on all shards at once, and the parts of a graph in mode 'stream' "
            "visit the devices one after another; use jaxgraph.train (fit, evaluate, predict, "
            "loss_and_grad), or shard the graph in mode 'sar' or 'domain'"
        )
    return graphs[0]


def table_of(part: nnx.Variable, shards: Shard) -> str:
    """The table of the nodes in the rows of a variable."""
    return shards.name_of("table", part.get_metadata().get(TABLE))


def rows_prefix(state: Pytree) -> Pytree:
    """The `outputs` of `spmd` for a pytree of variables, such as the gradient of `state`."""
    return jax.tree.map(
        lambda part: "rows" if _is_split(part) else "replicated",
        state,
        is_leaf=lambda part: isinstance(part, nnx.Variable),
    )


def place_rows(state: Pytree, sharded: ShardedGraph) -> Pytree:
    """Splits variables with one row per node over the shards; all others stay as they are.

    Args:
      state: pytree of `nnx.Variable`; those with metadata rows="nodes" are [nodes, ...]. Those
        with metadata table=name belong to a set of nodes of a `jaxgraph.TypedGraph`.
      sharded: the graph whose nodes they belong to.

    Returns:
      The same with rows="placed", [parts * rows, ...].
    """
    check_sharded(sharded, "place_rows(state, sharded)", may_stream=True)
    sharding = NamedSharding(sharded.mesh, PartitionSpec(sharded.axis))

    def place(part: Any) -> Any:
        if not (isinstance(part, nnx.Variable) and part.get_metadata().get(ROWS) == "nodes"):
            return part
        value, name = part.get_value(), table_of(part, sharded.shards)
        table, count = sharded.shards.tables[name], sharded.nodes_of(name)
        if value.shape[0] != count:
            of_set = f" of {name!r}" if sharded.shards.is_typed else ""
            raise ValueError(
                f"a variable has {value.shape[0]} rows for {count} nodes{of_set}; make "
                "NodeEmbedding with the number of nodes of the graph, or of its set table=..."
            )
        if isinstance(value, jax.ShapeDtypeStruct) or _is_abstract(sharded):
            shape = (table.node_mask.size, *value.shape[1:])
            placed = jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding)
        else:
            placed = jax.jit(_scatter_rows, out_shardings=sharding)(
                value, table.node_ids, table.node_mask
            )
        return _with_rows(part, placed, "placed")

    return jax.tree.map(place, state, is_leaf=lambda part: isinstance(part, nnx.Variable))


def _scatter_rows(value: jax.Array, node_ids: jax.Array, node_mask: jax.Array) -> jax.Array:
    mask = node_mask.reshape(-1, *(1,) * (value.ndim - 1))
    return jnp.where(mask, value[node_ids.reshape(-1)], 0)


def _is_abstract(sharded: ShardedGraph) -> bool:
    return isinstance(jax.tree.leaves(sharded.shards)[0], jax.ShapeDtypeStruct)


def _with_rows(part: nnx.Variable, value: Any, rows: str) -> nnx.Variable:
    metadata: dict[str, Any] = part.get_metadata() | {ROWS: rows}
    return type(part)(value, **metadata)


def collect_rows(state: Pytree, sharded: ShardedGraph) -> Pytree:
    """Brings variables split by `place_rows` back into the graph's order, [nodes, ...]."""
    check_sharded(sharded, "collect_rows(state, sharded)", may_stream=True)

    def collect(part: Any) -> Any:
        if not (isinstance(part, nnx.Variable) and part.get_metadata().get(ROWS) == "placed"):
            return part
        rows = gather_rows(part.get_value(), sharded, table_of(part, sharded.shards))
        return _with_rows(part, jnp.asarray(rows), "nodes")

    return jax.tree.map(collect, state, is_leaf=lambda part: isinstance(part, nnx.Variable))


def check_output(
    values: Any, entries: int, sharded: ShardedGraph, function: str, kind: str
) -> None:
    """Raises ValueError unless an array is an output of `spmd` with so many entries."""
    held = isinstance(values, jax.Array) and not isinstance(values, Tracer)
    if not held or _is_abstract(sharded) or values.shape[:1] != (entries,):
        of = f"shape {list(values.shape)}" if held else f"type {type(values).__name__}"
        raise ValueError(
            f"{function} was given values of {of}; expected a concrete array [{entries}, ...], as "
            f"jaxgraph.parallel.spmd(..., outputs={kind!r}) returns it, and a graph that holds data"
        )


def on_host(*arrays: Any) -> list[np.ndarray]:
    """Brings arrays that are split over all devices to the host, in every process."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        arrays = multihost_utils.process_allgather(arrays, tiled=True)
    return [np.asarray(each) for each in arrays]


def gather_rows(values: jax.Array, sharded: ShardedGraph, table: str | None = None) -> np.ndarray:
    """Gathers an output of kind "rows" in the graph's order.

    Args:
      values: [parts * rows, ...].
      sharded: the graph.
      table: the set of nodes of the rows; None: the only one.

    Returns:
      [nodes, ...] on the host, in every process.

    Raises:
      ValueError: the graph is no sharded one or holds no data, or the values are not its rows.
    """
    function = "gather_rows(values, sharded)"
    check_sharded(sharded, function)
    nodes = sharded.shards.table(table)
    check_output(values, nodes.node_mask.size, sharded, function, "rows")
    rows, ids, mask = on_host(values, nodes.node_ids, nodes.node_mask)
    # Every node is in one row.
    return in_order(ids[mask], rows[mask.reshape(-1)], int(mask.sum()))


def in_order(ids: np.ndarray, rows: np.ndarray, num_nodes: int) -> np.ndarray:
    """Brings rows of nodes into the graph's order."""
    gathered = np.zeros((num_nodes, *rows.shape[1:]), rows.dtype)
    gathered[ids] = rows
    return gathered
