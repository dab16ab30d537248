"""The loss of one shard of a graph as a pure function, and its gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgraph.ops.large_pages import on_large_pages
from jaxgraph.parallel import Shard, ShardedGraph, spmd
from jaxgraph.parallel.feature_protocol import features_of, plain_features
from jaxgraph.parallel.features import FeatureColumns
from jaxgraph.parallel.sampled_columns import NotPipelinedError, SampledColumns
from jaxgraph.parallel.samples import SampledLayer
from jaxgraph.parallel.spmd import rows_prefix
from jaxgraph.train.aggregates import first_aggregation
from jaxgraph.train.task import Sums, Task, described


class Split(NamedTuple):
    """A model as a pytree; its structure is static.

    Attributes:
      graphdef: its structure.
      params: its parameters.
      statistics: its other variables.
    """

    graphdef: nnx.GraphDef
    params: nnx.State
    statistics: nnx.State


def split_model(model: nnx.Module) -> Split:
    """Splits a model into its structure, its parameters and its other variables, the statistics."""
    return Split(*nnx.split(model, nnx.Param, ...))


def apply_model(
    split: Split,
    shard: Shard,
    key: jax.Array | None = None,
    train: bool = False,
    flow: Sequence[Any] = (),
) -> tuple[Any, nnx.State]:
    """Runs a model on a shard, or on the relations of its layers, under `spmd`."""
    # Copied: the model writes to variables that belong to the caller, perhaps to an outer trace.
    model = nnx.merge(*split, copy=True)
    plain: Any = plain_shard(shard)
    # A model without `first_aggregation` may use its features in ways that aggregates do not
    # support.
    if first_aggregation(model) is not None:
        x = shard.nodes
    else:
        x = plain.nodes if hasattr(model, "edge_layers") else features_of_model(plain)
    if flow:
        plain, x = _input_of_layers(flow, model, train)
    try:
        outputs = model(plain, x, key=key, train=train)
    except NotPipelinedError:
        raise
    except KeyError as error:
        if not isinstance(x, SampledColumns) or error.args[0] not in shard.node_data:
            raise
        raise ValueError(
            f"the model reads {error.args[0]!r} of the senders of the first layer, which in mode "
            "'p3' have ids, a mask and degrees alone: no row of theirs is fetched. Read it of the "
            "receivers, make it a feature, or shard the graph in mode 'domain' or 'sar'"
        ) from error
    except (TypeError, AttributeError, ValueError) as error:
        of_columns = any(kind.__name__ in str(error) for kind in (FeatureColumns, SampledColumns))
        if flow and not of_columns and not hasattr(model, "edge_layers"):
            raise ValueError(
                f"{type(model).__name__} was called with a list of {len(flow)} neighborhoods, one "
                "for each layer, as message_flow and a loader of batches have them, and failed: "
                f"{error}. If it takes no list, give each layer its own; or train on the whole "
                "graph, without message_flow"
            ) from error
        if isinstance(error, ValueError) or not of_columns:
            raise
        raise ValueError(
            f"the first layer of {type(model).__name__} cannot be split by column of features, "
            f"which mode='p3' does: {error}. Start with one that can, such as jaxgraph.nn.Linear "
            "or a convolution of jaxgraph.nn, or shard the graph in mode 'domain' or 'sar'"
        ) from error
    return outputs, split_model(model)[2]


def _input_of_layers(flow: Sequence[Any], model: Any, train: bool) -> tuple[list[Any], Any]:
    """The relations of the layers, and the features of the first one's senders."""
    first, declared = flow[0], first_aggregation(model)
    if isinstance(first, SampledLayer):
        if not hasattr(model, "edge_layers"):
            return list(flow), {name: table.nodes for name, table in first.tables.items()}
        flow = [relation for layer in flow for relation in layer.relations.values()]
        first = flow[0]
    x = first.senders.nodes
    if declared is not None and (declared.in_training or not train):
        stores = features_of(x).stores(declared.aggregation)
        # The first layer then reads no rows of neighbours.
        first = dataclasses.replace(first, senders=first.receivers) if stores else first
    else:
        x = plain_features(x)
    x = features_of(x).first_rows(first.sender_rows)
    senders = dataclasses.replace(first.senders, nodes=x)
    return [dataclasses.replace(first, senders=senders), *flow[1:]], x


def features_of_model(shard: Shard) -> Any:
    """The features that a model is called with: of several sets of nodes, those of each by name."""
    given = {name: shard.table(name).nodes for name in shard.given("table")}
    return shard.nodes if len(given) == 1 else given


def plain_shard(shard: Shard) -> Shard:
    """Returns the shard with features alone in its tables, as models and tasks expect."""
    tables = {
        name: dataclasses.replace(table, nodes=plain_features(table.nodes))
        for name, table in shard.tables.items()
    }
    return dataclasses.replace(shard, tables=tables)


def objective(
    split: Split, shard: Shard, key: jax.Array, task: Task, train: bool
) -> tuple[jax.Array, tuple[Sums, nnx.State]]:
    """The training loss of the whole graph on one shard of it, the task's sums and statistics."""
    shard = task.in_training(shard, key)
    flow = shard.flow
    outputs, statistics = apply_model(split, shard, key, train, flow)
    with_loss = shard.with_loss(flow)
    sums = shard.sum(task.sums(outputs, plain_shard(with_loss), "train"))
    return task.metrics(sums)["loss"], (sums, statistics)


def rows_of_model(split: Split, shard: Shard) -> jax.Array:
    """The outputs of a model on a shard without dropout, [rows, out]."""
    outputs, _ = apply_model(split, shard)
    shape = getattr(outputs, "shape", None)
    if not shape or shape[0] != shard.num_rows:
        raise ValueError(
            f"the model returned {described(outputs)}; expected one row for "
            f"every node of the shard, [{shard.num_rows}, ...]"
        )
    return outputs


def split_sums(split: Split, shard: Shard, task: Task) -> dict[str, Sums]:
    """A task's sums over all shards for every split that it evaluates, without dropout."""
    flow, splits, covered = shard.flow, task.evaluated_splits(shard), shard.manifest.flow
    if covered is None or not set(splits) <= set(covered.splits):
        flow = ()
    outputs, _ = apply_model(split, shard, flow=flow)
    plain = plain_shard(shard.at_receivers(flow[-1]) if flow else shard)
    return shard.sum({s: task.sums(outputs, plain, s) for s in splits})


def sums_of_splits(split: Split, sharded: ShardedGraph, task: Task) -> dict[str, Sums]:
    """A task's sums for every split of a graph, in one inference pass of a placed model."""
    return spmd(lambda split, shard: split_sums(split, shard, task))(split, sharded)


def gradients(
    split: Split, sharded: ShardedGraph, key: jax.Array, task: Task, train: bool
) -> tuple[jax.Array, Sums, nnx.State, nnx.State]:
    """Computes the training loss of a sharded graph and its gradient."""

    def on_shard(split: Split, shard: Shard, key: jax.Array):
        params = split.params
        if shard.implementation == "cpu":
            params = on_large_pages(params, _activation_bytes(params, shard.num_rows))

        def of_params(params: nnx.State):
            return objective(split._replace(params=params), shard, key, task, train)

        # Differentiated inside `spmd`: residuals stay on their shard, and are no outputs of the
        # program.
        (loss, (sums, new)), grads = jax.value_and_grad(of_params, has_aux=True)(params)
        return loss, sums, new, grads

    outputs = ("replicated", "replicated", rows_prefix(split.statistics), rows_prefix(split.params))
    return spmd(on_shard, outputs=outputs)(split, sharded, key)


def _activation_bytes(params: nnx.State, num_rows: int) -> int:
    """The bytes of float32 activations as wide as the widest parameter."""
    widths = [leaf.shape[-1] for leaf in jax.tree.leaves(params) if leaf.ndim]
    return num_rows * max(widths, default=0) * jnp.float32.dtype.itemsize
