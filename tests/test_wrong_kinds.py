"""An object of the wrong kind: the error says which was expected, and how to get it."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import scipy.sparse as sp
from flax import nnx

import jaxgraph

# Not of their types: pyright would refuse every call below.
jg: Any = jaxgraph
datasets, nn, parallel, train, transforms = (
    *(jg.datasets, jg.nn, jg.parallel),
    *(jg.train, jg.transforms),
)
ptags = parallel.ptags
partition, report = (getattr(jg.partition, name) for name in ("partition", "report"))


def of_package(name: str, **attributes: Any) -> Any:
    """An object whose class says that it is from another library, which is not installed here."""
    package, _, cls = name.rpartition(".")
    return type(cls, (), {"__module__": package, **attributes})()


@cache
def kinds() -> Any:
    graph = datasets.load_karate().replace(nodes=np.eye(34))
    parts, mesh = partition(graph, 2, method="hash"), parallel.make_mesh(2)
    return SimpleNamespace(
        graph=graph,
        parts=parts,
        mesh=mesh,
        sharded=parallel.shard(graph, parts, mesh),
        model=nn.GCN(34, 4, 2, dropout=0.5, rngs=nnx.Rngs(0)),
        optimizer=optax.sgd(0.1),
        key=jax.random.key(0),
        x=jnp.ones((34, 34)),
        history=train.History((), 0.0),
        frame=pd.DataFrame({"a": [1]}),
        tensor=of_package("torch.Tensor", dtype="float32"),
        pyg=of_package("torch_geometric.data.data.Data"),
        jraph=of_package("jraph._src.graph.GraphsTuple"),
        dgl=of_package("dgl.heterograph.DGLGraph"),
        matrix=sp.eye_array(3),
    )


def fit(k: Any, **changes: Any) -> Any:
    given = {"model": k.model, "graph": k.graph, "optimizer": k.optimizer} | changes
    places = [given.pop(name) for name in ("model", "graph", "optimizer")]
    return train.fit(*places, epochs=1, **given)


ORDER = r"The order of arguments is model, graph"
GRAPHS = {
    "frame": "from_pandas",
    "tensor": "from_edges",
    "pyg": "data.edge_index",
    "jraph": "g.n_node.sum",
    "dgl": "g.num_nodes",
    "mesh": f"got a Mesh. {ORDER}",
}
CALLS: dict[str, tuple[Any, str]] = {
    **{
        f"{name} for a graph": (lambda k, name=name: fit(k, graph=getattr(k, name)), message)
        for name, message in GRAPHS.items()
    },
    "a class": (lambda k: fit(k, model=nn.GCN), "the class GCN; .*inst"),
    "model last": (lambda k: fit(k, model=k.graph, graph=k.model), ORDER),
    "graph last": (lambda k: fit(k, graph=k.optimizer, optimizer=k.graph), ORDER),
    "nnx.Optimizer": (
        lambda k: fit(k, optimizer=nnx.Optimizer(k.model, k.optimizer, wrt=nnx.Param)),
        "nnx.Optimizer, .* pass the transformation of optax",
    ),
    "not called": (lambda k: fit(k, optimizer=optax.adam), "optimizer is a function; .*optax.adam"),
    "a key": (lambda k: fit(k, seed=k.key), "seed: got Array.*no random key"),
    "a history": (lambda k: fit(k, state=k.history), "History; expected a jaxgraph.train.FitState"),
    "evaluated": (lambda k: train.evaluate(k.model, k.jraph), "g.n_node.sum"),
    "a name": (lambda k: train.predict(k.model, "cora"), r"datasets.load\(name\)"),
    "several": (lambda k: train.predict(k.model, [k.sharded] * 2), "expected one graph, got 2"),
    "a state of a graph": (lambda k: train.initial_state(k.model, k.optimizer, k.sharded), ORDER),
    "a state of no model": (lambda k: train.abstract_fit_state(k.optimizer, k.model), ORDER),
    "a state of none": (lambda k: train.abstract_fit_state(k.model, k.graph), "is a Graph"),
    "mesh first": (lambda k: parallel.shard(k.graph, k.mesh, k.parts), "partition is of type Mesh"),
    "a count for a mesh": (lambda k: parallel.shard(k.graph, k.parts, 2), "mesh: got an int"),
    "a mode for a mesh": (lambda k: parallel.shard(k.graph, k.parts, "sar"), "mesh: got a str"),
    "partition first": (lambda k: parallel.shard(k.parts, k.graph, k.mesh), "got a Partition"),
    "sharded twice": (lambda k: parallel.shard(k.sharded, k.parts, k.mesh), "the Graph that"),
    "a frame to shard": (lambda k: parallel.shard(k.frame, k.parts, k.mesh), "from_pandas"),
    "a graph to place": (lambda k: parallel.place(k.graph, k.mesh), "jaxgraph.parallel.shard"),
    "devices": (lambda k: parallel.make_mesh(jax.devices()), "got a list; .*devices="),
    "shapes of a list": (lambda k: parallel.common_shapes([k.sharded]), "got a list"),
    "shapes of no pair": (lambda k: parallel.common_shapes((k.parts, k.graph)), "got a Partition"),
    "values last": (lambda k: parallel.gather_rows(k.sharded, k.x), r"\(values, sharded"),
    "rows of NumPy": (lambda k: parallel.gather_rows(np.ones(3), k.sharded), "type ndarray"),
    "rows of a graph": (lambda k: parallel.place_rows(k.model, k.graph), "state, sharded"),
    "spmd of a graph": (lambda k: parallel.spmd(k.sharded), "got a ShardedGraph; .*function"),
    "x first": (lambda k: k.model(k.x, k.graph), r"the order is layer\(shard, x\)"),
    "a tensor for a graph": (lambda k: k.model(k.tensor, k.x), r"got|given a Tensor .*from_edges"),
    "a tensor for x": (lambda k: k.model(k.graph, k.tensor), r"x: got a Tensor; .*numpy\(\)"),
    "a partition": (
        lambda k: nn.GCNConv(34, 2, rngs=nnx.Rngs(0))(k.parts, k.x),
        "given a Partition",
    ),
    "a seed for a key": (
        lambda k: k.model(k.graph, k.x, key=0, train=True),
        r"got an int; .*key\(",
    ),
    "a seed to drop": (lambda k: nn.dropout(k.graph, k.x, 0, rate=0.5), r"got int; .*key\("),
    "Rngs to drop": (lambda k: nn.dropout(k.graph, k.x, nnx.Rngs(0), rate=0.5), "key, got Rngs;"),
    "a seed for Rngs": (lambda k: nn.GCN(34, 4, 2, rngs=0), r"rngs: got an int; .*nnx.Rngs\(0\)"),
    "a key for Rngs": (lambda k: nn.NodeEmbedding(34, 4, rngs=k.key), r"nnx.Rngs\(key\)"),
    "no message": (lambda k: parallel.propagate(k.graph, k.x), "message_fn: got a jax.Array"),
    "message first": (lambda k: parallel.propagate(lambda s, r, e: s, k.graph), "given a function"),
    "parts first": (lambda k: partition(2, k.graph), r"partition\(graph, num_parts\): got an int"),
    "a mesh for parts": (lambda k: partition(k.graph, k.mesh), "num_parts: got Mesh"),
    "partition of partition": (lambda k: report(k.parts, k.graph), "got a Partition for the graph"),
    "report of a mesh": (lambda k: report(k.graph, k.mesh), "got a Mesh for the partition"),
    "ids first": (lambda k: transforms.subgraph(np.arange(3), k.graph), "got a NumPy array"),
    "a sharded matrix": (lambda k: datasets.to_scipy(k.sharded), "the Graph that it was made of"),
    "a graph of one set": (
        lambda k: transforms.with_inverses(k.graph),
        "got a Graph; .*TypedGraph",
    ),
    "a graph for hetero data": (
        lambda k: datasets.from_hetero(k.graph),
        "got a Graph; .*HeteroData",
    ),
    "no frame": (lambda k: datasets.from_pandas(k.graph), "expected a pandas.DataFrame"),
    "no graph of networkx": (lambda k: datasets.from_networkx(k.graph), "a graph of networkx"),
    "no program": (lambda k: jg.analysis.traffic(k.model), r"got a GCN .*compile\(\)"),
    "columns of no graph": (lambda k: ptags.partition(k.mesh, k.graph, partition), "got a Mesh"),
    "columns on no mesh": (lambda k: ptags.partition(k.graph, 2, partition), "mesh: got an int"),
    **{
        f"{name} of a frame": (
            lambda k, name=name, rest=rest: getattr(transforms, name)(k.frame, *rest),
            "from_pandas",
        )
        for name in transforms.__all__
        if name not in ("subgraph", "with_inverses")
        for rest in [{"folds": (2,), "with_links": ([0], [1])}.get(name, ())]
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_an_object_of_the_wrong_kind_is_refused_with_the_way_to_the_right_one(name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(ValueError, match=f"(?s){message}") as error:
        call(kinds())
    assert len(str(error.value)) < 700
