"""Graphs of several sets on devices: their data, their parts on disk, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import (
    gather_rows,
    make_mesh,
    open_parts,
    place,
    propagate,
    shard,
    spmd,
    write_parts,
)
from jaxgraph.partition.assignment import Partition
from jaxgraph.typed_graph import TypedGraph
from tests.parallel.typed_shards import scattered

PAPERS, AUTHORS, EDGES = 47, 30, 160
RNG = np.random.default_rng(0)


def typed_graph() -> TypedGraph:
    writes = {
        "senders": RNG.integers(0, AUTHORS, EDGES),
        "receivers": RNG.integers(0, PAPERS, EDGES),
        "edge_weight": RNG.uniform(0.5, 2, EDGES),
        "edge_data": {"year": RNG.integers(1990, 2020, EDGES)},
    }
    cites = {"senders": RNG.integers(0, PAPERS, EDGES), "receivers": np.arange(EDGES) % PAPERS}
    cites["edge_type"] = RNG.integers(0, 3, EDGES)
    papers = {
        "nodes": RNG.normal(size=(PAPERS, 3)),
        "labels": RNG.integers(0, 4, PAPERS),
        "train_mask": np.arange(PAPERS) % 2 == 0,
        "node_names": [f"paper {i}" for i in range(PAPERS)],
    }
    authors = {"nodes": RNG.normal(size=(AUTHORS, 2)), "node_data": {"age": np.arange(AUTHORS)}}
    return TypedGraph(
        {"paper": papers, "author": authors},
        {
            ("author", "writes", "paper"): writes,
            ("paper", "cites", "paper"): cites,
            ("paper", "written by", "author"): {
                "senders": writes["receivers"],
                "receivers": writes["senders"],
            },
        },
    )


GRAPH = typed_graph()


def sums(shard: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sums over edges of both kinds of data, at papers and at authors."""
    papers, authors = shard.table("paper"), shard.table("author")
    writes = shard.relations["writes"]
    weighted = propagate(
        writes,
        lambda sender, receiver, edge: sender * edge[0] * (edge[1] - 1990),
        sender=authors.nodes * authors.node_data["age"][:, None],
        edge=(writes.edge_weight[:, None], writes.edge_data["year"][:, None]),
    )
    back = propagate(
        shard.relations["written by"], lambda sender, _, __: sender, sender=papers.nodes
    )
    of_train = papers.sum(jnp.sum(jnp.where(papers.train_mask, papers.labels, 0)))
    return weighted, back, of_train


def expected() -> tuple[np.ndarray, np.ndarray, int]:
    papers, authors = GRAPH.node_sets["paper"], GRAPH.node_sets["author"]
    edges: Any = GRAPH.edge_sets["author", "writes", "paper"]
    weighted, back = np.zeros((PAPERS, 2)), np.zeros((AUTHORS, 3))
    aged = authors.nodes * authors.node_data["age"][:, None]
    factor = edges.edge_weight * (edges.edge_data["year"] - 1990)
    np.add.at(weighted, edges.receivers, aged[edges.senders] * factor[:, None])
    np.add.at(back, edges.senders, papers.nodes[edges.receivers])
    return weighted, back, int(papers.labels[papers.train_mask].sum())  # type: ignore[index]


def check(sharded: Any) -> None:
    run = spmd(sums, outputs=("rows", "rows", "replicated"))
    weighted, back, of_train = run(sharded)
    of_papers, of_authors, total = expected()
    np.testing.assert_allclose(gather_rows(weighted, sharded, "paper"), of_papers, rtol=2e-5)
    np.testing.assert_allclose(gather_rows(back, sharded, "author"), of_authors, atol=1e-5)
    assert int(of_train) == total
    writes = sharded.shards.relation("writes")
    degree = np.bincount(
        GRAPH.edge_sets["author", "writes", "paper"].senders,
        GRAPH.edge_sets["author", "writes", "paper"].edge_weight,
        AUTHORS,
    )
    rows = writes.senders.degree.reshape(-1)
    np.testing.assert_allclose(gather_rows(rows, sharded, "author"), degree, rtol=1e-5)


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_set_has_its_data(mode: str, parts: int) -> None:
    sharded = shard(GRAPH, scattered(GRAPH, parts), make_mesh(parts), mode)
    check(sharded)
    assert sharded.num_nodes == PAPERS + AUTHORS and sharded.counts is not None
    relations = sharded.shards.relations
    assert sorted(relations) == ["cites", "writes", "written by"]  # and none of pairs
    assert relations["cites"].pairs is not None and relations["writes"].pairs is None
    text = repr(sharded)
    assert "writes: author -> paper, edge_weight float32, year int32" in text
    assert text.count("rows per part") == 2 and "MiB per device" in text
    padding, rows = sharded.padding(), max(-(-PAPERS // parts), 16) + max(-(-AUTHORS // parts), 16)
    assert (padding.nodes, padding.node_rows) == (PAPERS + AUTHORS, parts * rows)
    assert padding.edges == 3 * EDGES <= padding.edge_slots
    assert padding.halo_rows_needed <= padding.halo_rows_sent


@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_parts_in_a_folder_are_those_of_the_graph(tmp_path: Path, mode: str) -> None:
    parts, mesh = scattered(GRAPH, 3), make_mesh(3)
    written = write_parts(GRAPH, parts, tmp_path, mode)
    opened = open_parts(tmp_path)
    assert opened.manifest == written.manifest and opened.graph == written.graph
    assert f"num_nodes={PAPERS + AUTHORS}, num_edges={3 * EDGES}, mode={mode!r}" in repr(opened)
    assert opened.graph.edge_sets["writes"].num_edges == EDGES
    names = opened.node_names("paper")
    assert names is not None and list(names) == [f"paper {i}" for i in range(PAPERS)]
    assert opened.node_names("author") is None
    found, made = place(opened, mesh), shard(GRAPH, parts, mesh, mode)
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), found.shards, made.shards)
    assert all(jax.tree.leaves(equal))
    check(found)


def test_a_damaged_or_newer_folder_is_refused_by_name(tmp_path: Path) -> None:
    write_parts(GRAPH, scattered(GRAPH, 2), tmp_path)
    opened = open_parts(tmp_path)
    name = next(n for n in opened.files if "neighbors" in n)
    (tmp_path / opened.contents.data / name).write_bytes(b"other")
    with pytest.raises(ValueError, match=r"neighbors.*damaged"):
        place(opened, make_mesh(2))
    manifest = tmp_path / "manifest.json"
    content = json.loads(manifest.read_text())
    assert content["format"] == "jaxgraph parts 3"
    manifest.write_text(json.dumps(content | {"format": "jaxgraph parts 9"}))
    with pytest.raises(ValueError, match="'jaxgraph parts 9'; this version of jaxgraph reads"):
        open_parts(tmp_path)


def test_what_a_graph_of_several_sets_does_not_take_is_refused() -> None:
    parts = scattered(GRAPH, 2)
    mesh = make_mesh(2)
    for mode in ("p3", "stream"):
        with pytest.raises(ValueError, match=f"mode is '{mode}'.*'sar', 'domain'"):
            shard(GRAPH, parts, mesh, mode)
    with pytest.raises(ValueError, match="chunks: not where the graph has several sets"):
        shard(GRAPH, parts, mesh, chunks=2)
    with pytest.raises(ValueError, match=r"partition: got \['paper'\].*'paper', 'author'"):
        shard(GRAPH, {"paper": parts["paper"]}, mesh)
    short = Partition(np.zeros(5, np.int32), 2)
    with pytest.raises(ValueError, match=r"partition\['author'\].*its 30 nodes"):
        shard(GRAPH, parts | {"author": short}, mesh)
    other = Partition(np.zeros(AUTHORS, np.int32), 3)
    with pytest.raises(ValueError, match=r"cut into \[2, 3\] parts"):
        shard(GRAPH, parts | {"author": other}, mesh)
    with pytest.raises(ValueError, match="one part for each device"):
        shard(GRAPH, scattered(GRAPH, 4), mesh)
    edges = {"senders": [0], "receivers": [0], "edge_type": [1]}
    clash = TypedGraph(
        {"a": {"num_nodes": 2}, "cites pairs": {"num_nodes": 2}}, {("a", "cites", "a"): edges}
    )
    with pytest.raises(ValueError, match=r"'cites pairs' has the name of the pairs.*another name"):
        shard(clash, None, make_mesh(1))
    sharded = shard(GRAPH, parts, mesh)
    with pytest.raises(ValueError, match="'writes'"):
        sharded.shards.relation("likes")
    with pytest.raises(ValueError, match="a graph of one set"):
        sharded.shards.replace(edge_weight=None)
