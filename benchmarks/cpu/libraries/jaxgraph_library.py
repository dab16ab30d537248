"""jaxgraph: its ops on one shard, and its own training step on one or several emulated devices."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.cpu.inputs import Data, attention_inputs, node_features
from benchmarks.cpu.models import LEARNING_RATE, LOSSES, MODELS, Model
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Task, Triad
from benchmarks.cpu.worker import Prepared
from jaxgraph.train.aggregates import aggregate_once

Sharded = jg.parallel.ShardedGraph

ORDER = "metis"
"""Order in which jaxgraph places the nodes, once, when it lays out a graph."""


class Library:
    """The library of this repository.

    Args:
      implementation: implementation of all ops; None: they choose.
      parts: emulated devices; more than one is for epochs only, partitioned by METIS.
    """

    def __init__(self, implementation: str | None = None, parts: int = 1) -> None:
        jg.process.tune_process(num_devices=parts)
        if parts > 1:
            jg.parallel.emulate_devices(parts)
        else:
            # The peers compute on the calling thread. XLA passes larger programs to another thread
            # and back: 35 microseconds, a tenth of a sum of 16 features at pubmed's size.
            jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._implementation = implementation
        self._parts = parts
        self._mesh = jg.parallel.make_mesh(parts)

    def load(self, data: Data) -> None:
        """Partitions a graph: the partition serves it with weights and without."""
        self._data: Data = data
        self._sharded: dict[bool, Sharded] = {}
        self._partition = jg.partition.partition(
            make_graph(data), self._parts, "metis", order=ORDER, seed=0
        )
        jax.clear_caches()

    def lay_out(self, task: Task) -> None:
        """Shards the graph, with edge weights or without."""
        if isinstance(task, Triad):
            return
        if self._parts > 1 and not isinstance(task, Epoch):
            raise NotImplementedError("an op runs on one shard; several parts are for epochs")
        weighted = isinstance(task, SpMM) and task.weighted
        if weighted not in self._sharded:
            graph = make_graph(self._data, weighted=weighted)
            self._sharded[weighted] = jax.block_until_ready(
                jg.parallel.shard(
                    graph, self._partition, self._mesh, implementation=self._implementation
                )
            )
        self._graph = self._sharded[weighted]

    def prepare(self, task: Task) -> Prepared:
        """Prepares a task."""
        if isinstance(task, Triad):
            return _triad(task)
        if isinstance(task, SpMM):
            return self._spmm(task)
        if isinstance(task, Attention):
            return self._attention(task)
        return self._epoch(MODELS[task.model])

    def _spmm(self, task: SpMM) -> Prepared:
        def aggregate(shard: jg.parallel.Shard, x: jax.Array) -> tuple[jax.Array, ...]:
            weight = shard.edge_weight if task.weighted else None
            return (jg.ops.aggregate(shard, x, weight, implementation=self._implementation),)

        x = node_features(self._data.num_nodes, task.features)
        return self._op(aggregate, (x,), "aggregate")

    def _attention(self, task: Attention) -> Prepared:
        def forward(shard: jg.parallel.Shard, *arrays: jax.Array) -> tuple[jax.Array, ...]:
            return (jg.ops.gat_attention(shard, *arrays, implementation=self._implementation),)

        def both(shard: jg.parallel.Shard, *arrays: jax.Array) -> tuple[jax.Array, ...]:
            *primals, gradient = arrays
            y, pull = jax.vjp(partial(forward, shard), *primals)
            return *y, *pull((gradient,))

        inputs = attention_inputs(self._data.num_nodes, task)
        if task.backward:
            return self._op(both, inputs, "gat_attention")
        return self._op(forward, inputs[:-1], "gat_attention")

    def _op(self, function: Any, arrays: tuple[np.ndarray, ...], name: str) -> Prepared:
        """A function of a shard and of arrays with a row per node, which are placed with them."""
        sharded = self._graph
        placed = [nnx.Param(jnp.asarray(array), rows="nodes") for array in arrays]
        placed = jax.block_until_ready(jg.parallel.place_rows(placed, sharded))

        @partial(jg.parallel.spmd, outputs="rows")
        def run(shard: jg.parallel.Shard, arrays: list[nnx.Param]) -> tuple[jax.Array, ...]:
            return function(shard, *(array.get_value() for array in arrays))

        start = time.perf_counter()
        compiled = run.lower(sharded, placed).compile()
        compile_seconds = time.perf_counter() - start

        def results() -> dict[str, np.ndarray]:
            outputs = compiled(sharded, placed)
            gathered = (jg.parallel.gather_rows(output, sharded) for output in outputs)
            return dict(zip("yzlr", gathered, strict=False))

        return Prepared(
            results,
            lambda: jax.block_until_ready(compiled(sharded, placed)) and None,
            self._implementation or jg.ops.chosen(name),
            compile_seconds,
        )

    def _epoch(self, model: Model) -> Prepared:
        sharded = self._graph
        module = make_model(model, self._data.nodes.shape[1], self._data.num_classes)
        path = self._implementation or jg.ops.chosen("aggregate")
        if model.name != "gat":
            # As jaxgraph.train.fit does by default, before the first epoch.
            sharded = jax.block_until_ready(aggregate_once(module, sharded))
            path += ", first aggregation once"
        return prepare_epoch(module, sharded, path)


def prepare_epoch(module: nnx.Module, sharded: Sharded, path: str) -> Prepared:
    """Training by Adam."""
    optimizer = optax.adam(LEARNING_RATE)
    start = time.perf_counter()
    step = jg.train.compile_train_step(module, sharded, optimizer)
    compile_seconds = time.perf_counter() - start
    state = jg.train.initial_state(module, sharded, optimizer)
    key = jax.random.key(0)

    def advance() -> float:
        nonlocal state
        state, loss = jax.block_until_ready(step(state, sharded, key))
        return float(loss)

    def results() -> dict[str, np.ndarray]:
        return {"losses": np.asarray([advance() for _ in range(LOSSES)], np.float32)}

    return Prepared(results, advance, path, compile_seconds)


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


def make_model(model: Model, in_features: int, out_features: int) -> nnx.Module:
    """The model of `jaxgraph.nn` with the initial parameters of every library."""
    options: dict[str, Any] = {"num_heads": model.heads} if model.name == "gat" else {}
    kind = {"gcn": jg.nn.GCN, "sage": jg.nn.GraphSAGE, "gat": jg.nn.GAT}[model.name]
    made = kind(
        in_features,
        model.hidden,
        out_features,
        num_layers=model.num_layers,
        norm="batch" if model.batch_norm else None,
        rngs=nnx.Rngs(0),
        **options,
    )
    for name, value in model.initial_parameters(in_features, out_features).items():
        index, *path = name.split("/")
        layer = made.layers[int(index)]
        owner = layer.norm if path[0] == "norm" else layer.convolution
        # jnp.asarray would compile a program for every shape, and cache it.
        getattr(owner, path[-1]).set_value(jax.device_put(value))
    return made


def _triad(task: Triad) -> Prepared:
    held, b, c = (jnp.full(task.elements, value, jnp.float32) for value in (0.0, 1.0, 2.0))

    # The result reuses the memory of `a`, as in STREAM: no page is touched for the first time.
    @partial(jax.jit, donate_argnums=0, keep_unused=True)
    def triad(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return b + 3.0 * c

    def run() -> None:
        nonlocal held
        held = jax.block_until_ready(triad(held, b, c))

    return Prepared(dict, run)
