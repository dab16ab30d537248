"""Checks of the arguments of training, before anything is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxgraph.kinds import kind_of, way_to_graph
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.feature_protocol import plain_of
from jaxgraph.parallel.nnx_objects import refuse_local_modules
from jaxgraph.parallel.spmd import on_host
from jaxgraph.parallel.whole_graph import as_sharded
from jaxgraph.train.classification import NodeClassification
from jaxgraph.train.identity import EvalParams
from jaxgraph.train.task import Task

_OPTIMIZER = optax.GradientTransformation
_UNTRAINED = "give Graph train_mask=..., or draw one with jaxgraph.transforms.random_split"
"""The way out where a graph has no training rows, of tasks that know no other."""
_ORDER = (
    "The order of arguments is model, graph (a Graph or TypedGraph, or from "
    "jaxgraph.parallel.shard), then, in training, optimizer (of optax), then all else by name"
)


def checked_task(task: Task | None) -> Task:
    """Returns the task; `NodeClassification()` for None."""
    if task is None:
        return NodeClassification()
    if isinstance(task, type) or not isinstance(task, Task):
        raise ValueError(
            f"task is {kind_of(task)}; expected an object with the methods of jaxgraph.train.Task, "
            "such as jaxgraph.train.NodeClassification()"
        )
    try:
        hash(task)
    except TypeError as error:
        raise ValueError(
            f"task: {kind_of(task)} cannot be hashed ({error}); its attributes are numbers, texts "
            "and tuples, and arrays belong to the graph: graph.with_nodes(name=array)"
        ) from error
    return task


def checked_graphs(
    model: Any,
    sharded: Any,
    task: Task | None = None,
    *,
    abstract: bool = False,
    train: bool = False,
) -> tuple[ShardedGraph, ...]:
    """Returns one sharded graph or several as a tuple, which fit the model and the task."""
    # An optimizer in the place of a graph is a tuple.
    is_many = isinstance(sharded, Sequence) and not isinstance(sharded, str | _OPTIMIZER)
    given: list[Any] = list(sharded) if is_many else [sharded]
    graphs = [as_sharded(graph) for graph in given]
    for graph in graphs or [sharded]:
        if not isinstance(graph, ShardedGraph):
            way = way_to_graph(graph)
            raise ValueError(
                f"expected a sharded graph, a Graph, a TypedGraph or several, got {kind_of(graph)}"
                f"{way and ': ' + way}. {_ORDER}"
            )
        if graph.mesh != graphs[0].mesh:
            raise ValueError("the sharded graphs live on different meshes; shard them on one")
        if graph.is_streamed and (len(graphs) > 1 or abstract):
            raise ValueError(
                "a graph in mode 'stream' is trained alone, and by no single program; pass it as "
                "the only graph to fit, evaluate, predict or loss_and_grad, or shard it in 'sar'"
            )
        is_abstract = isinstance(graph.shards.node_ids, jax.ShapeDtypeStruct)
        if not abstract and is_abstract and not graph.is_streamed:
            raise ValueError(
                "the sharded graph is abstract: it holds shapes and no data, which is enough for "
                "compile_train_step only; place it from a source with data"
            )
    splits = [task.splits(graph.shards) for graph in graphs] if task is not None else []
    if train and not any("train" in of_graph for of_graph in splits):
        way = getattr(task, "untrained", _UNTRAINED)
        raise ValueError(f"the graph has no train_mask, so there is nothing to learn from; {way}")
    check_model(model, graphs)
    if task is not None:
        check_flow(model, graphs, train=train)
    return tuple(graphs)


def check_training(task: Task, graphs: Sequence[ShardedGraph]) -> None:
    """Has a task check graphs with training nodes and their data."""
    for graph in graphs:
        if "train" in task.splits(graph.shards):
            task.check_training(graph)


def checked_graph(
    model: Any, sharded: Any, task: Task | None = None, **options: Any
) -> ShardedGraph:
    """Returns one sharded graph, as `checked_graphs` does, and refuses several."""
    graph, *others = checked_graphs(model, sharded, task, **options)
    if others:
        count = 1 + len(others)
        raise ValueError(f"expected one graph, got {count}; call this once for each of them")
    return graph


def check_model(model: Any, graphs: Sequence[ShardedGraph]) -> None:
    """Checks that a model is a module that can be trained on sharded graphs."""
    if not isinstance(model, nnx.Module):
        raise ValueError(
            f"model is {kind_of(model)}; expected a flax.nnx.Module instance that is called as "
            f"model(shard, x, key=key, train=train). {_ORDER}"
        )
    try:
        inspect.signature(model.__call__).bind(None, None, key=None, train=False)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"model: a {type(model).__name__} cannot be called as model(shard, x, key=key, "
            f"train=train) ({error}). Add key=None and train=False: "
            "def __call__(self, shard, x, key=None, train=False)"
        ) from error
    if jax.tree.leaves(nnx.state(model, nnx.RngState)):
        raise ValueError(
            "the model holds a random stream (nnx.Rngs, as nnx.Dropout keeps it), which would draw "
            "the same mask on every device; drop with jaxgraph.nn.dropout(shard, x, key) instead"
        )
    refuse_local_modules(model)
    width = getattr(model, "in_features", None)
    for graph in graphs:
        nodes = graph.shards.nodes
        features = None if nodes is None else plain_of(nodes).width
        if isinstance(width, int) and features is not None and width != features:
            raise ValueError(
                f"the model expects in_features={width}, but the nodes of the graph have "
                f"{features} features; make the model with in_features={features}"
            )
        check_link_types(model, graph.shards.node_data.get("link_type"))
    variables = jax.tree.leaves(nnx.state(model), is_leaf=_is_variable)
    has_rows = any(v.get_metadata().get("rows") == "nodes" for v in variables if _is_variable(v))
    if has_rows and (len(graphs) > 1 or any(graph.is_streamed for graph in graphs)):
        raise ValueError(
            "the model has a variable with one row per node (NodeEmbedding), which belongs to one "
            "graph that is not in mode 'stream'; use node features instead"
        )


def check_link_types(model: Any, types: Any) -> None:
    """Refuses links, int [...] types of them or None, of more types than the decoder has rows."""
    rows = getattr(getattr(model, "decoder", None), "num_types", None)
    if rows is None or types is None or isinstance(types, jax.ShapeDtypeStruct):
        return
    if isinstance(types, jax.Array):
        (types,) = on_host(types)
    wanted = int(types.max(initial=0)) + 1
    if wanted <= rows:
        return
    raise ValueError(
        f"the links have {wanted} types, and {type(model.decoder).__name__} has rows for {rows}; "
        f"make it with num_types={wanted}"
    )


def check_flow(model: nnx.Module, graphs: Sequence[ShardedGraph], *, train: bool) -> None:
    """Checks that a model can be evaluated, or trained, on graphs with message flow."""
    flows = [flow for graph in graphs if (flow := graph.shards.manifest.flow) is not None]
    if not flows:
        return
    layers, count = getattr(model, "edge_layers", None), len(flows[0].relations)
    if layers is not None and any(len(flow.relations) != layers for flow in flows):
        remedy = f"with message_flow={layers}" if layers else "without message_flow"
        raise ValueError(
            f"{type(model).__name__} has {layers} layers that take a neighborhood each, and the "
            f"graph was sharded with message_flow={count}; shard it {remedy}"
        )
    for norm in (part for _, part in nnx.iter_modules(model)):
        if train and getattr(norm, "reads_all_nodes", False):
            raise ValueError(
                "the model has a BatchNorm, whose mean and variance are over all nodes, and with "
                f"message_flow={count} layers compute those alone that the loss needs: it would "
                "learn something else. Take norm='layer', or norm='restricted-batch' "
                "(jaxgraph.nn.RestrictedBatchNorm), whose statistics are over the computed nodes"
            )


def _is_variable(part: Any) -> bool:
    return isinstance(part, nnx.Variable)


def check_optimizer(optimizer: Any, model: nnx.Module) -> None:
    """Checks that an optimizer can update a model's parameters; computes nothing."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(
            f"optimizer is {kind_of(optimizer)}; expected a transformation of optax, such as "
            "optax.adam(1e-2). Of an nnx.Optimizer, which holds one, pass the transformation of "
            f"optax that it was made of. {_ORDER}"
        )
    optimizer = optax.with_extra_args_support(optimizer)

    def step(params: nnx.State) -> Any:
        return optimizer.update(params, optimizer.init(params), params, value=jnp.float32(0))

    try:
        jax.eval_shape(step, nnx.state(model, nnx.Param))
    except (AttributeError, TypeError) as error:
        raise ValueError(
            "optimizer cannot make a step from the gradient, the parameters and the value of the "
            f"loss, which is what it gets: {error}. Take one that can, such as optax.adam(1e-2), "
            "and not optax.lbfgs or optax.lookahead; or call it on jaxgraph.train.loss_and_grad"
        ) from error


def check_eval_params(
    eval_params: EvalParams | None,
    optimizer: optax.GradientTransformation,
    model: nnx.Module,
    graphs: Sequence[ShardedGraph],
) -> None:
    """Checks that the parameters to evaluate can be read; computes nothing."""
    params = nnx.state(model, nnx.Param)
    state = jax.eval_shape(optimizer.init, params)
    if eval_params is None:
        kind = optax.contrib.ScheduleFreeState
        parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, kind))
        if any(isinstance(part, kind) for part in parts):
            raise ValueError(
                "optimizer has a ScheduleFreeState, whose steps are not at the parameters to "
                "evaluate; give fit eval_params=optax.contrib.schedule_free_eval_params, or a "
                "function that passes it the part of the state that is a ScheduleFreeState"
            )
        return
    if graphs[0].is_streamed:
        raise ValueError(
            "eval_params: not for a graph in mode 'stream'; take an optimizer that needs none, or "
            "shard the graph in mode 'domain' or 'sar'"
        )
    try:
        found = jax.eval_shape(eval_params, state, params)
        same = jax.tree.map(lambda new, old: new.shape == old.shape, found, params)
        wrong = "" if all(jax.tree.leaves(same)) else "shapes differ from those of params"
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        wrong = str(error)
    if wrong:
        raise ValueError(
            f"eval_params: expected a function of the optimizer's state ({type(state).__name__}) "
            f"and of params that returns a pytree like params: {wrong}. Of a chain, read one "
            "state: lambda state, params: optax.contrib.schedule_free_eval_params(state[1], params)"
        )


def checked_count(name: str, value: Any) -> int:
    """Returns a number of epochs as an int."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 2**31:
        raise ValueError(f"{name} is {value!r}; expected an integer, at least 1, below 2**31")
    return int(value)
