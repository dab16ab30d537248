"""Parts on devices: reads, checks, and shapes that several graphs share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph import Graph
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import PartTables, tabulate
from jaxgraph.parallel import common_shapes, make_mesh, place, shard
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.partition import Partition
from tests.strategies import complete, random_edges

PARTS = 4
MODES = ("sar", "domain")


def random_pair(num_nodes: int, seed: int = 0, **changes) -> tuple[Graph, Partition]:
    """A random graph with edge weights and a partition by hash."""
    edges = random_edges(num_nodes, 6 * num_nodes, seed)
    graph = complete(*edges, num_nodes, "random", seed, edge_data=True).replace(**changes)
    return graph, jg.partition.partition(graph, PARTS, method="hash")


@pytest.fixture(scope="module")
def tables() -> PartTables:
    return tabulate(*random_pair(90))


def weighted_sums(shard: jg.parallel.Shard) -> jax.Array:
    return jg.parallel.propagate(
        shard, lambda s, r, w: s * w[:, None], shard.nodes, None, shard.edge_weight
    )


def expected_sums(graph: Graph) -> np.ndarray:
    assert graph.nodes is not None and graph.edge_weight is not None
    sums = np.zeros(graph.nodes.shape)
    np.add.at(sums, graph.receivers, graph.nodes[graph.senders] * graph.edge_weight[:, None])
    return sums


# ---------------------------------------------------------------- reads


class Recorder:
    """A source that records the requested parts, and can spoil their arrays."""

    def __init__(self, tables: PartTables, **spoiled: np.ndarray | None) -> None:
        self.tables, self.spoiled, self.read = tables, spoiled, []

    @property
    def manifest(self) -> Manifest:
        return self.tables.manifest

    def part(self, index: int) -> dict[str, np.ndarray]:
        self.read.append(index)
        arrays = self.tables.part(index) | self.spoiled
        return {name: values for name, values in arrays.items() if values is not None}


def test_every_part_is_read_once_in_order(tables):
    source = Recorder(tables)
    sharded = place(source, make_mesh(PARTS), "sar")
    assert source.read == list(range(PARTS))
    shards = sharded.shards
    for index in range(PARTS):
        part = tables.part(index)
        rows = len(part["node_ids"])
        assert np.array_equal(shards.node_ids[index, :rows], part["node_ids"])
        assert np.array_equal(np.asarray(shards.nodes)[index, :rows], part["nodes"])
        assert not np.any(shards.node_mask[index, rows:])
        assert np.all(np.asarray(shards.labels)[index, rows:] == -1)


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ({"nodes": None}, "part 0 lacks nodes, which its manifest lists"),
        ({"nodes": np.zeros((400, 5), np.float32)}, r"nodes is float32 \[400, 5\]; expected"),
        ({"labels": np.zeros((2, 2), np.int32)}, r"labels is int32 \[2, 2\]; expected"),
        ({"labels": np.zeros(2)}, r"labels is float64 \[2\]; expected the manifest's int32"),
    ],
)
def test_parts_that_do_not_fit_their_manifest(tables, spoiled, message):
    with pytest.raises(ValueError, match=message):
        place(Recorder(tables, **spoiled), make_mesh(PARTS))


# ---------------------------------------------------------------- planning without data


@pytest.mark.parametrize("mode", MODES)
def test_abstract_leaves_are_those_of_the_data(mode):
    tables = tabulate(*random_pair(90), mode)
    mesh = make_mesh(PARTS)
    concrete = place(tables, mesh, mode)
    abstract = place(AbstractSource(tables.manifest), mesh, mode)
    assert jax.tree.structure(concrete) == jax.tree.structure(abstract)
    for real, planned in zip(jax.tree.leaves(concrete), jax.tree.leaves(abstract), strict=True):
        assert isinstance(planned, jax.ShapeDtypeStruct)
        assert (planned.shape, planned.dtype) == (real.shape, real.dtype)
        assert planned.sharding == real.sharding
    assert abstract.padding() == concrete.padding()
    assert abstract.num_nodes == 90


# ---------------------------------------------------------------- counts and padding


def test_counts_are_known_outside_of_compiled_functions():
    graph, parts = random_pair(90)
    sharded = shard(graph, parts, make_mesh(PARTS))
    assert (sharded.num_nodes, sharded.num_parts, sharded.axis) == (90, PARTS, "graph")
    padding = sharded.padding()
    assert (padding.nodes, padding.edges) == (90, 540)
    assert padding.halo_rows_needed == jg.partition.report(graph, parts).halo_total
    assert padding.node_rows == PARTS * sharded.shards.node_ids.shape[1]
    slots = sharded.shards.incoming.by_receiver.neighbors.shape[1]
    assert padding.edge_slots == PARTS * slots
    largest = np.bincount(parts.assignment[graph.receivers], minlength=PARTS).max()
    assert slots == largest + sharded.shards.incoming.chunk
    assert sharded.manifest.counts == sharded.counts


def test_counts_do_not_survive_where_a_program_serves_many_graphs(tables):
    sharded = place(tables, make_mesh(PARTS))
    copied = jax.tree.map(lambda leaf: leaf, sharded)
    for ask in (lambda: copied.num_nodes, copied.padding):
        with pytest.raises(ValueError, match=r"counts of a sharded graph are lost inside jax\.jit"):
            ask()
    with pytest.raises(ValueError, match="counts of a sharded graph are lost"):
        jax.jit(lambda graph: graph.num_nodes)(sharded)


# ---------------------------------------------------------------- shared shapes


@pytest.mark.expensive
@pytest.mark.parametrize(("mode", "prefetch"), [("sar", False), ("sar", True), ("domain", False)])
def test_graphs_of_the_same_shapes_share_one_program(mode, prefetch):
    pairs = [random_pair(200), random_pair(90, seed=1), random_pair(7, seed=2)]
    common = common_shapes(*pairs, mode=mode)
    function = jax.jit(jg.parallel.spmd(weighted_sums, outputs="rows"))
    for graph, parts in pairs:
        options = {"mode": mode, "prefetch": prefetch}
        padded = shard(graph, parts, make_mesh(PARTS), **options, pad_to=common)
        assert padded.num_nodes == graph.num_nodes
        assert padded.padding().edges == graph.num_edges
        found = jg.parallel.gather_rows(function(padded), padded)
        assert np.allclose(found, expected_sums(graph), rtol=1e-5, atol=1e-5)
    assert function._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_sharded_graph_can_be_padded_to():
    known = shard(*random_pair(400), make_mesh(PARTS))
    unseen = random_pair(300, seed=1, labels=None, train_mask=None, val_mask=None, test_mask=None)
    function = jax.jit(jg.parallel.spmd(weighted_sums, outputs="rows"))
    function(known)
    padded = shard(*unseen, make_mesh(PARTS), pad_to=known)
    assert padded.manifest == known.manifest
    assert np.all(padded.shards.labels == -1)
    assert not np.any(padded.shards.train_mask)
    found = jg.parallel.gather_rows(function(padded), padded)
    assert np.allclose(found, expected_sums(unseen[0]), rtol=1e-5, atol=1e-5)
    assert function._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, "float16"])
def test_features_are_held_in_the_dtype_asked_for(dtype):
    graph, parts = random_pair(90)
    wide = shard(graph, parts, make_mesh(PARTS))
    short = shard(graph, parts, make_mesh(PARTS), node_dtype=dtype)
    again = shard(*random_pair(60, seed=1), make_mesh(PARTS), pad_to=short)
    assert again.manifest == short.manifest
    x, y, z = (sharded.shards.nodes for sharded in (wide, short, again))
    assert isinstance(x, jax.Array) and isinstance(y, jax.Array) and isinstance(z, jax.Array)
    assert x.dtype == jnp.float32 and y.dtype == z.dtype == jnp.dtype(dtype)
    assert jnp.max(jnp.abs(x)) > 0
    assert np.array_equal(y, x.astype(dtype))


def test_wrong_dtypes_of_features():
    graph, parts = random_pair(90)
    mesh = make_mesh(PARTS)
    for dtype in ("int8", "halve", graph):
        with pytest.raises(ValueError, match=r"node_dtype is .*; expected a floating type"):
            shard(graph, parts, mesh, node_dtype=dtype)
    bare = graph.replace(nodes=None)
    with pytest.raises(ValueError, match="no 'nodes' to hold as bfloat16; leave the dtype out"):
        shard(bare, parts, mesh, node_dtype=jnp.bfloat16)


# ---------------------------------------------------------------- wrong arguments


def test_wrong_meshes(tables):
    with pytest.raises(ValueError, match=r"4 part\(s\) and the mesh 3 device\(s\); expected one"):
        place(tables, make_mesh(3))
    cube = jax.sharding.Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2, 1), ("a", "b", "c"))
    with pytest.raises(ValueError, match=r"axes \('a', 'b', 'c'\); expected one axis, or hosts"):
        place(tables, cube)
    graph, _ = random_pair(90)
    with pytest.raises(ValueError, match=r"1 part\(s\) and the mesh 4 device\(s\)"):
        shard(graph, None, make_mesh(PARTS))


def test_wrong_modes(tables):
    with pytest.raises(
        ValueError, match="mode is 'domain', but the source was made for mode 'sar'"
    ):
        place(tables, make_mesh(PARTS), "domain")
    wrong: Any
    for wrong in ("x", 1, None):
        with pytest.raises(ValueError, match=rf"prefetch is {wrong!r}; expected True or False"):
            shard(*random_pair(90), make_mesh(PARTS), prefetch=wrong)
    with pytest.raises(ValueError, match="prefetch=True needs mode='sar'; mode is 'domain'"):
        shard(*random_pair(90), make_mesh(PARTS), "domain", prefetch=True)
    with pytest.raises(ValueError, match="mode is 'ring'; expected one of sar, domain, p3"):
        shard(*random_pair(90), make_mesh(PARTS), "ring")


def test_wrong_partitions_and_targets(tables):
    graph, parts = random_pair(90)
    mesh = make_mesh(PARTS)
    with pytest.raises(ValueError, match="partition is of type ndarray"):
        shard(graph, parts.assignment, mesh)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="assigns 50 nodes, but the graph has 90"):
        shard(graph, random_pair(50)[1], mesh)
    with pytest.raises(ValueError, match="pad_to is of type Graph; expected a sharded graph"):
        shard(graph, parts, mesh, pad_to=graph)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="does not fit into pad_to: node_rows"):
        shard(graph, parts, mesh, pad_to=shard(*random_pair(30), mesh))
