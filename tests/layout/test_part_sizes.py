"""Shapes that follow from sizes: every graph of these sizes fits into them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.layout.description import describe
from jaxgraph.layout.extents import Extents
from jaxgraph.layout.fitting import fit
from jaxgraph.layout.part_sizes import PartSizes, sized_tables
from jaxgraph.layout.row_lengths import leaving
from jaxgraph.layout.survey import survey
from jaxgraph.partition import Partition
from tests.edge_tables import check_orientation, placed_parts
from tests.strategies import assignments, complete, graphs

MODES = ("sar", "domain")
OPTIONAL = ("leaving", "halo", "longest")


def least_sizes(extents: Extents) -> dict[str, int]:
    """The smallest sizes that hold a graph."""
    lengths, left = extents.lengths, 0
    assert lengths is not None
    if extents.mode == "sar":
        edges = lengths.by_sender.by_group(lengths.by_sender.rows * lengths.by_sender.lengths)
        left = int(leaving(edges).sum(axis=1).max())
    return {
        "nodes": int(extents.part_nodes.max()),
        "edges": max(int(extents.part_edges.max()), 1),
        "leaving": max(left, 1),
        "halo": max(int(extents.halo.max()), int(extents.reach.max()), 1),
        "longest": max(lengths.by_receiver.longest, lengths.by_sender.longest, 1),
        "classes": extents.num_classes,
        "edge_types": extents.num_edge_types,
    }


def check_fit(graph: Graph, partition: Partition, mode: str, named: tuple[str, ...]) -> None:
    """Asserts that a graph fits into its own sizes, with those that are named or by default."""
    extents = survey(graph, partition, mode).extents
    sizes = least_sizes(extents)
    for name in set(OPTIONAL) - set(named):
        del sizes[name]
    tables = sized_tables(graph, partition, mode, PartSizes(**sizes))
    shapes = tables.manifest
    assert fit(describe(extents, shapes.halo_unit), shapes) == shapes
    assert shapes.counts == extents.counts
    for part in placed_parts(tables, "mosaic_gpu"):
        for name in ("incoming", "outgoing")[: 1 + shapes.has_outgoing]:
            check_orientation(part, name, shapes)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("named", [(), OPTIONAL], ids=["defaults", "all"])
@given(data=st.data())
def test_every_graph_of_these_sizes_fits(mode: str, named: tuple[str, ...], data: Any) -> None:
    parts = data.draw(st.integers(1, 4))
    graph = data.draw(graphs(edge_data=True))
    owner = data.draw(assignments(graph.num_nodes, parts))
    check_fit(graph, Partition.from_assignment(owner, parts), mode, named)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("named", [(), OPTIONAL], ids=["defaults", "all"])
@pytest.mark.parametrize("end", ["senders", "receivers"])
def test_hubs_fit(mode: str, named: tuple[str, ...], end: str) -> None:
    """The edges of every other part come from a node of part 0, or end in one node."""
    others = np.repeat(np.arange(1, 4), 200)
    near, far = np.zeros(600, int), others + 4 * (np.arange(600) % 150)
    ends = (near, far) if end == "senders" else (far - others, others)
    graph = complete(*ends, 600, "hub")
    check_fit(graph, Partition.from_assignment(np.arange(600) % 4, 4), mode, named)


def manifest_of(graph: Graph, owner: Any, parts: int, mode: str, sizes: PartSizes) -> Any:
    partition = Partition.from_assignment(np.asarray(owner), parts)
    return sized_tables(graph, partition, mode, sizes).manifest


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_shapes_do_not_depend_on_the_edges(mode: str, data: Any) -> None:
    parts = data.draw(st.integers(1, 4))
    sizes = PartSizes(nodes=40, edges=240, classes=3, edge_types=3)
    # No label is known, no node has a neighbour, and no part but one has a node.
    bare = complete([], [], 7, "no-edges", edge_data=True)
    bare = bare.replace(labels=np.full(7, -1), train_mask=None, val_mask=None, test_mask=None)
    graph = data.draw(graphs(edge_data=True))
    graph = graph.replace(train_mask=None, val_mask=None, test_mask=None)
    owner = data.draw(assignments(graph.num_nodes, parts))
    found = manifest_of(graph, owner, parts, mode, sizes)
    assert found == manifest_of(bare, np.zeros(7, int), parts, mode, sizes)


HUB = np.arange(1, 21)


@pytest.mark.parametrize(
    ("size", "text", "modes"),
    [
        ({"nodes": 10}, "nodes 11 > 10", MODES),
        ({"edges": 19}, "edges 20 > 19", MODES),
        ({"leaving": 9}, "leaving 10 > 9", ("sar",)),
        ({"halo": 9}, "halo 10 > 9", MODES),
        ({"longest": 9}, "longest 10 > 9", ("sar",)),
        ({"longest": 19}, "longest 20 > 19", ("domain",)),
        ({"classes": 2}, "classes 3 > 2", MODES),
        ({"edge_types": 2}, "edge_types 3 > 2", MODES),
        ({"nodes": 1, "edges": 1}, "nodes 11 > 1, edges 20 > 1; expected", MODES),
    ],
)
def test_what_does_not_fit_is_named_with_both_numbers(
    size: dict[str, int], text: str, modes: tuple[str, ...]
) -> None:
    graph = complete(HUB, np.zeros(20, int), 21, "star-in", edge_data=True)
    sizes = {"nodes": 11, "edges": 20, "classes": 3, "edge_types": 3}
    for mode in modes:
        manifest_of(graph, np.arange(21) % 2, 2, mode, PartSizes(**sizes))
        with pytest.raises(ValueError, match=f"does not fit into pad_to: {text}"):
            manifest_of(graph, np.arange(21) % 2, 2, mode, PartSizes(**sizes | size))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ({"nodes": 0}, "nodes is 0; expected an integer from 1 up"),
        ({"edges": None}, "edges is None; expected an integer from 1 up"),
        ({"halo": 0}, "halo is 0; expected an integer from 1 up"),
        ({"halo": True}, "halo is True"),
        ({"longest": 2.5}, r"longest is 2\.5"),
        ({"classes": -1}, "classes is -1; expected an integer from 0 up"),
        ({"edge_types": None}, "edge_types is None"),
    ],
)
def test_wrong_sizes(size: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PartSizes(**{"nodes": 3, "edges": 4, **size})


def test_sparse_features_are_refused() -> None:
    sp = pytest.importorskip("scipy.sparse")
    graph = complete([0], [1], 3, "sparse").replace(nodes=sp.csr_array(np.eye(3, dtype=np.float32)))
    with pytest.raises(ValueError, match=r"no room for sparse features; .*toarray"):
        manifest_of(graph, [0, 1, 0], 2, "sar", PartSizes(nodes=3, edges=3, classes=3))


def test_sizes_beyond_int32_are_refused() -> None:
    graph = complete([0], [1], 3, "large")
    with pytest.raises(ValueError, match="devices index them with int32"):
        manifest_of(graph, [0, 1, 0], 2, "sar", PartSizes(nodes=3, edges=2**31, classes=3))
