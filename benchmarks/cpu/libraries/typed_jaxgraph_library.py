"""jaxgraph: its R-GCN and HeteroConv on typed graphs."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

import jaxgraph as jg
from benchmarks.cpu.libraries.jaxgraph_library import prepare_epoch
from benchmarks.cpu.worker import Prepared
from benchmarks.typed.tasks import ONE, RGCN, Epoch, Layer, TypedData
from jaxgraph.cli.embedded import Embedded


class Library:
    """The library of this repository, on one device, as it computes for `benchmarks.cpu`."""

    def __init__(self) -> None:
        jg.process.tune_process(num_devices=1)
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def load(self, data: TypedData) -> None:
        """Takes a graph."""
        self._data = data

    def lay_out(self, task: Any) -> None:
        """Places the graph; the gradient of y is a named array of its nodes."""
        of_task = task if isinstance(task, Layer) else Layer("kernel", "mean", 0)
        x, gradients, edges = of_task.arrays(self._data)
        sets: Any = {n: {"nodes": x[n], "node_data": {"gradient": gradients[n]}} for n in x}
        if ONE in edges:
            sets[ONE[0]] |= {"labels": self._data.labels, "train_mask": self._data.train_mask}
        placed = jg.parallel.shard(jg.TypedGraph(sets, edges), None, jg.parallel.make_mesh(1))
        self._graph = jax.block_until_ready(placed)

    def prepare(self, task: Any) -> Prepared:
        """Prepares a task."""
        start = time.perf_counter()
        if isinstance(task, Epoch):
            return prepare_epoch(_model(task.model, self._data), self._graph, "")
        params, compiled = self.compiled(task)
        seconds = time.perf_counter() - start

        def results() -> dict[str, np.ndarray]:
            y, of_x, of_params = compiled(params, self._graph)
            rows = {f"y/{name}": (name, each) for name, each in y.items()}
            rows |= {name: (name, each) for name, each in of_x.items()}
            found = {
                key: jg.parallel.gather_rows(each, self._graph, name)
                for key, (name, each) in rows.items()
            }
            for (_, *path), variable in nnx.to_flat_state(of_params):
                found["/".join(map(str, path))] = np.asarray(variable.get_value())
            return found

        return Prepared(
            results, lambda: jax.block_until_ready(compiled(params, self._graph)), "", seconds
        )

    def compiled(self, task: Layer) -> tuple[Any, Any]:
        """The parameters, and the compiled `(params, graph)` -> y, gradients of x and of those."""
        layer = jg.nn.HeteroConv({name: _convolution(task, self._data) for _, name, _ in task.ends})
        for name, value in task.parameters(self._data.num_types).items():
            relation, own = name.split("/")
            getattr(layer.convolutions[relation], own).set_value(jax.device_put(value))
        definition, params = nnx.split(layer)

        @partial(jg.parallel.spmd, outputs=("rows", "rows", "replicated"))
        def run(params: Any, shard: jg.parallel.Shard) -> Any:
            def apply(params: Any, x: Any) -> Any:
                return nnx.merge(definition, params)(shard, x)

            tables = {end: shard.table(end) for ends in task.ends for end in (ends[0], ends[2])}
            y, pull = jax.vjp(apply, params, {name: table.nodes for name, table in tables.items()})
            of_params, of_x = pull({name: tables[name].node_data["gradient"] for name in y})
            return y, of_x, of_params

        return params, run.lower(params, self._graph).compile()


def _convolution(task: Layer, data: TypedData) -> Any:
    size, rngs = task.features, nnx.Rngs(0)
    if task.kind == "sage":
        return jg.nn.SAGEConv(size, size, rngs=rngs)
    if task.kind == "gatv2":
        return jg.nn.GATv2Conv(size, size // 2, num_heads=2, add_self_loops=False, rngs=rngs)
    own: Any = {"kernel": {}, "bases": {"num_bases": 4}, "blocks": {"num_blocks": 4}}[task.kind]
    own |= {"num_types": data.num_types, "reduce": task.reduce}
    return jg.nn.RGCNConv(size, size, rngs=rngs, **own)


def _model(model: RGCN, data: TypedData) -> nnx.Module:
    """The model with the initial parameters of every library."""
    width, rngs = data.nodes.shape[1], nnx.Rngs(0)
    options: Any = {"num_layers": model.num_layers, "num_types": data.num_types, "rngs": rngs}
    made = jg.nn.RGCN(width, model.hidden, data.num_classes, **options)
    rows = jg.nn.NodeEmbedding(max(model.rows, 1), width, rngs=rngs)
    for name, value in model.initial_parameters(width, data.num_classes).items():
        index, own = name.split("/")
        owner = rows if own == "rows" else made.layers[int(index)].convolution
        getattr(owner, own).set_value(jax.device_put(value))
    return Embedded(rows, made) if model.rows else made
