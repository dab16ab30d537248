"""Mistakes in functions of a shard get an error with advice."""

import copy
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgraph as jg


@functools.cache
def karate():
    return jg.transforms.degree_features(jg.datasets.load("karate"), max_degree=16)


@functools.cache
def sharded(parts=2, mode="sar"):
    partition = jg.partition.partition(karate(), parts, method="hash")
    return jg.parallel.shard(karate(), partition, jg.parallel.make_mesh(parts), mode)


def run(function, *arguments, parts=2, **options):
    return jg.parallel.spmd(function, **options)(*arguments, sharded(parts))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("its argument", lambda s: s.sum(s.num_nodes)),
        ("its argument", lambda s: s.sum(1.0)),
        ("its argument", lambda s: s.sum(s.sum(s.in_degree.sum()))),
        ("values[1]", lambda s: s.sum((s.in_degree.sum(), jnp.ones(3)))),
        ("its argument", lambda s: s.sum(jax.grad(lambda w: (w * s.in_degree).sum())(2.0))),
    ],
)
def test_sum_of_what_is_equal_everywhere(what, function, parts):
    with pytest.raises(ValueError, match="counted once per part") as error:
        run(function, parts=parts)
    assert f"shard.sum: {what} is the same on every device" in str(error.value)


def test_sum_outside_of_spmd():
    with pytest.raises(ValueError, match="call it in a function that"):
        sharded().shards.sum(jnp.ones(3))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("function", "outputs", "words"),
    [
        (lambda s: s.in_degree.sum(), "replicated", r"output, float32\[\], differs.*shard\.sum"),
        (lambda s: {"y": s.nodes}, "replicated", r"output\['y'\].*outputs='rows'"),
        (lambda s: (s.nodes, s.in_degree.max()), ("rows", "replicated"), r"output\[1\]"),
        (lambda s: s.num_nodes, "rows", "is one number, but outputs says 'rows'"),
        (lambda s: s.nodes, ("rows", "rows"), "outputs is .* but the function returned"),
    ],
)
def test_outputs(function, outputs, words, parts):
    with pytest.raises(ValueError, match=words) as error:
        run(function, parts=parts, outputs=outputs)
    assert "check_vma" not in str(error.value)


def test_spmd_without_a_sharded_graph():
    with pytest.raises(ValueError, match=r"no sharded graph among the arguments \(Graph\)"):
        jg.parallel.spmd(lambda s: s.num_nodes)(karate())


def net():
    return jg.nn.GCN(17, 8, 2, num_layers=2, rngs=nnx.Rngs(0))


NAMES = {"shard", "neighborhood", "nodes"}
"""The names of arguments that may be a shard."""


def functions_of_a_shard():
    """All public functions with a shard among their arguments."""
    modules = (jg.layers, jg.nn, jg.parallel, jg.parallel.ptags)
    functions = {
        function
        for function in (getattr(module, name) for module in modules for name in module.__all__)
        if inspect.isfunction(function) and NAMES & inspect.signature(function).parameters.keys()
    }
    assert {jg.parallel.propagate, jg.parallel.keep_edges, jg.layers.gin_conv} < functions
    return functions


def test_layers_on_what_is_no_shard():
    x = jnp.asarray(karate().nodes)
    cases: Any = ((sharded(), "a ShardedGraph"), (x, "array"))
    for given, word in cases:
        for layer in (net(), jg.nn.SAGEConv(17, 2, rngs=nnx.Rngs(0)), jg.nn.BatchNorm(17)):
            with pytest.raises(ValueError, match=word):
                layer(given, x)
        for function in functions_of_a_shard():
            asked = inspect.signature(function).parameters.values()
            needed = {p.name: None for p in asked if p.default is p.empty}
            (name,) = NAMES & needed.keys()
            with pytest.raises(ValueError, match=word):
                function(**needed | {name: given})


@pytest.mark.parametrize("mistake", [lambda x, s: x[s.senders], lambda x, s: x[s.num_edges]])
def test_a_shard_has_no_list_of_edges(mistake):
    with pytest.raises((IndexError, AttributeError)) as error:
        run(lambda s: s.sum(mistake(s.nodes, s).sum()))
    said = " ".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert "a shard has no list of edges" in said and "jaxgraph.parallel.propagate" in said


def test_fields_of_a_shard_on_a_sharded_graph():
    with pytest.raises(AttributeError, match=r"no attribute 'nodes': .*predict.*spmd"):
        _ = sharded().nodes  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(sharded(), "labels") and not hasattr(copy.copy(sharded()), "other")


def test_a_sharded_graph_says_what_it_holds_in_ten_lines():
    graph = karate().replace(edge_weight=np.ones(156)).with_nodes(target=np.ones((34, 3)))
    graph = graph.with_edges(length=np.ones(156), open=np.ones((156, 1, 2), bool))
    found = jg.parallel.shard(graph, jg.partition.partition(graph, 2), jg.parallel.make_mesh(2))
    lines = repr(found).splitlines()
    assert len(lines) <= 10 and max(map(len, lines)) <= 100
    assert lines[0] == "ShardedGraph(num_nodes=34, num_edges=156, mode='sar', num_parts=2)"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:]}
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(found.shards)) / 2
    assert rows["devices"].startswith("2 x cpu, axis 'graph', 17 rows per part")
    assert rows["memory"] == f"{size / 2**20:,.2f} MiB per device"
    assert rows["features"] == "17 x float32" and rows["labels"] == "2 classes"
    assert rows["node_data"] == "target float32 [3]" and rows["edges"] == "edge_weight float32"
    assert rows["edge_data"] == "length float32, open bool [1, 2]"
    columns = repr(sharded(2, "p3"))
    assert "mode='p3', rest='domain'" in columns and "9 columns per device" in columns
