"""jaxgraph: its ops on one shard, and its own training step on one or several emulated devices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.cpu.inputs import Data, attention_inputs, initial_parameters, node_features
from benchmarks.cpu.libraries.interface import Prepared
from benchmarks.cpu.models import LEARNING_RATE, MODELS, Model
from benchmarks.cpu.tasks import Attention, Epoch, Product, SpMM, Task, Triad

__all__ = ["JaxgraphLibrary", "make_graph", "make_model"]

Sharded = jg.parallel.ShardedGraph
_OPS = ("aggregate", "gat_attention")


class JaxgraphLibrary:
    """The library of this repository.

    Args:
      implementation: implementation of all ops; None: they choose.
      parts: emulated devices; more than one is for epochs only, partitioned by METIS.
      order: order of the nodes in their part, see `jaxgraph.partition.partition`; None: as given.
    """

    def __init__(
        self, implementation: str | None = None, parts: int = 1, order: str | None = None
    ) -> None:
        jg.process.tune_process(num_devices=parts)
        if parts > 1:
            jg.parallel.emulate_devices(parts)
        else:
            # The peers compute on the calling thread. XLA passes larger programs to another thread
            # and back: 35 microseconds, a tenth of a sum of 16 features at pubmed's size.
            jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._implementation = implementation
        self._parts = parts
        self._order = order
        self._mesh = jg.parallel.make_mesh(parts)

    def versions(self) -> Mapping[str, str]:
        """The versions of the packages, and the implementations that the ops choose."""
        names = ("jax", "jaxlib", "flax", "optax", "numpy")
        chosen = {op: self._path(op) for op in _OPS}
        return {"jaxgraph": jg.__version__} | {n: version(n) for n in names} | chosen

    def load(self, data: Data) -> None:
        """Loads a graph."""
        self._data: Data = data
        self._sharded: dict[bool, Sharded] = {}
        # The layout depends on the edges alone: it serves the graph with weights and without.
        self._partition = jg.partition.partition(
            make_graph(data, weighted=False), self._parts, "metis", order=self._order, seed=0
        )
        jax.clear_caches()

    def lay_out(self, task: Task) -> None:
        """Shards the graph, with edge weights or without; see `Library.lay_out`."""
        if self._parts > 1 and not isinstance(task, Epoch):
            raise NotImplementedError("an op runs on one shard; several parts are for epochs")
        if not isinstance(task, Triad | Product):
            self._graph(isinstance(task, SpMM) and task.weighted)

    def prepare(self, task: Task) -> Prepared:
        """Prepares a task."""
        if isinstance(task, SpMM):
            return self._spmm(task)
        if isinstance(task, Attention):
            return self._attention(task)
        if isinstance(task, Epoch):
            return self._epoch(MODELS[task.model])
        return _triad(task) if isinstance(task, Triad) else _product(task)

    def _graph(self, weighted: bool) -> Sharded:
        if weighted not in self._sharded:
            graph = make_graph(self._data, weighted=weighted)
            self._sharded[weighted] = jax.block_until_ready(
                jg.parallel.shard(
                    graph, self._partition, self._mesh, implementation=self._implementation
                )
            )
        return self._sharded[weighted]

    def _path(self, op: str) -> str:
        chosen = self._implementation or jg.ops.chosen(op)
        return chosen if self._order is None else f"{chosen}, nodes by {self._order}"

    def _spmm(self, task: SpMM) -> Prepared:
        sharded = self._graph(task.weighted)
        x = _rows(node_features(self._data.num_nodes, task.features), sharded)

        @partial(jg.parallel.spmd, outputs="rows")
        def aggregate(shard: jg.parallel.Shard, x: nnx.Param) -> jax.Array:
            weight = shard.edge_weight if task.weighted else None
            return jg.ops.aggregate(
                shard, x.get_value(), weight, implementation=self._implementation
            )

        return _prepared(aggregate, (sharded, x), ("y",), self._path("aggregate"))

    def _attention(self, task: Attention) -> Prepared:
        sharded = self._graph(False)
        inputs = attention_inputs(self._data.num_nodes, task)
        values, sender, receiver, gradient = (
            _rows(array, sharded)
            for array in (
                inputs.values,
                inputs.sender_logits,
                inputs.receiver_logits,
                inputs.gradient,
            )
        )

        def attend(shard: jg.parallel.Shard, *arrays: jax.Array) -> jax.Array:
            return jg.ops.gat_attention(shard, *arrays, implementation=self._implementation)

        @partial(jg.parallel.spmd, outputs="rows")
        def forward(shard: jg.parallel.Shard, *arrays: nnx.Param) -> jax.Array:
            return attend(shard, *(array.get_value() for array in arrays))

        @partial(jg.parallel.spmd, outputs="rows")
        def both(shard: jg.parallel.Shard, *arrays: nnx.Param) -> tuple[jax.Array, ...]:
            *primals, gradient = (array.get_value() for array in arrays)
            y, pull = jax.vjp(partial(attend, shard), *primals)
            return y, *pull(gradient)

        path = self._path("gat_attention")
        if not task.backward:
            return _prepared(forward, (sharded, values, sender, receiver), ("y",), path)
        arguments = (sharded, values, sender, receiver, gradient)
        return _prepared(both, arguments, ("y", "z", "l", "r"), path)

    def _epoch(self, model: Model) -> Prepared:
        sharded = self._graph(False)
        module = make_model(model, self._data.nodes.shape[1], self._data.num_classes)
        optimizer = optax.adam(LEARNING_RATE)
        path = self._path("gat_attention" if model.name == "gat" else "aggregate")
        if model.aggregates_once:
            # As jaxgraph.train.fit does by default, before the first epoch.
            sharded = jax.block_until_ready(jg.train.aggregate_once(module, sharded))
            path += ", first aggregation once"
        start = time.perf_counter()
        step = jg.train.compile_train_step(module, sharded, optimizer)
        compile_seconds = time.perf_counter() - start
        state = jg.train.initial_state(module, sharded, optimizer)
        key = jax.random.key(0)

        def advance() -> jax.Array:
            nonlocal state
            state, loss = step(state, sharded, key)
            jax.block_until_ready((state, loss))
            return loss

        def results() -> dict[str, np.ndarray]:
            losses = [advance()]
            gradients = first_gradients(state.optimizer_state)
            losses.append(advance())
            return {"losses": np.asarray(jnp.stack(losses)), **gradients}

        def run() -> None:
            advance()

        return Prepared(results, run, path, compile_seconds)


def make_graph(data: Data, *, weighted: bool = False) -> jg.Graph:
    """The graph, with edge weights or without."""
    return jg.Graph(
        data.senders,
        data.receivers,
        data.num_nodes,
        nodes=data.nodes,
        labels=data.labels,
        train_mask=data.train_mask,
        edge_weight=data.edge_weight if weighted else None,
    )


def make_model(
    model: Model, in_features: int, out_features: int, *, dtype: str | None = None
) -> nnx.Module:
    """The model of `jaxgraph.nn` with the initial parameters of every library.

    Args:
      model: the model.
      in_features: features of a node.
      out_features: classes.
      dtype: dtype of activations; None: that of the features.

    Returns:
      The model.
    """
    shared: dict[str, Any] = {
        "num_layers": model.num_layers,
        "norm": "batch" if model.batch_norm else None,
        "dtype": dtype,
        "rngs": nnx.Rngs(0),
    }
    if model.name == "gat":
        shared["num_heads"] = model.heads
    kind = {"gcn": jg.nn.GCN, "sage": jg.nn.GraphSAGE, "gat": jg.nn.GAT}[model.name]
    made = kind(in_features, model.hidden, out_features, **shared)
    for name, value in initial_parameters(model, in_features, out_features).items():
        if not model.has_effect(name):
            continue
        index, *path = name.split("/")
        layer = made.layers[int(index)]
        owner = layer.norm if path[0] == "norm" else layer.convolution
        # jnp.asarray would compile a program for every shape, and cache it.
        getattr(owner, path[-1]).set_value(jax.device_put(value))
    return made


def first_gradients(optimizer_state: Any) -> dict[str, np.ndarray]:
    """The gradients of the first step by parameter, from Adam's first moment, 0.1 g then."""
    moments = optimizer_state[0].mu
    found = {}
    for path, leaf in jax.tree.leaves_with_path(moments):
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        names = [name for name in names if name and name != "value"]
        _, index, owner, parameter = names
        name = f"{index}/norm/{parameter}" if owner == "norm" else f"{index}/{parameter}"
        found[name] = np.asarray(leaf) / np.float32(0.1)
    return found


def _rows(array: np.ndarray, sharded: Sharded) -> nnx.Param:
    """An array with a row per node, placed with the nodes."""
    placed = jg.parallel.place_rows(nnx.Param(jnp.asarray(array), rows="nodes"), sharded)
    return jax.block_until_ready(placed)


def _prepared(function: Any, arguments: tuple, names: tuple[str, ...], path: str) -> Prepared:
    """A task that is one call, with one output per name, in the order of the shards' rows."""
    start = time.perf_counter()
    compiled = function.lower(*arguments).compile()
    compile_seconds = time.perf_counter() - start
    sharded = arguments[0]

    def results() -> dict[str, np.ndarray]:
        outputs = compiled(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        gathered = (jg.parallel.gather_rows(output, sharded) for output in outputs)
        return dict(zip(names, gathered, strict=True))

    def run() -> None:
        jax.block_until_ready(compiled(*arguments))

    return Prepared(results, run, path, compile_seconds)


def _triad(task: Triad) -> Prepared:
    a, b, c = (jnp.full(task.elements, value, jnp.float32) for value in (0.0, 1.0, 2.0))
    held = [a]

    # The result reuses the memory of `a`, as in STREAM: no page is touched for the first time.
    @partial(jax.jit, donate_argnums=0, keep_unused=True)
    def triad(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return b + 3.0 * c

    def run() -> None:
        held.append(jax.block_until_ready(triad(held.pop(), b, c)))

    def results() -> dict[str, np.ndarray]:
        run()
        return {"a": np.asarray(held[0][:16])}

    return Prepared(results, run)


def _product(task: Product) -> Prepared:
    a = jnp.asarray(node_features(task.size, task.size))
    multiply = jax.jit(jnp.matmul)

    def run() -> None:
        multiply(a, a).block_until_ready()

    return Prepared(lambda: {"c": np.asarray(multiply(a, a))}, run)
