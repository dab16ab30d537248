"""Graphs for property tests: special shapes, and random ones drawn by hypothesis."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from jaxgraph import Graph

NUM_FEATURES = 5
NUM_CLASSES = 3


def complete(
    senders: Any, receivers: Any, num_nodes: int, name: str, seed: int = 0, edge_data: bool = False
) -> Graph:
    """A graph of these edges with random features, labels and as many masks as it has nodes for.

    Args:
        senders: int [num_edges].
        receivers: int [num_edges].
        num_nodes: Number of nodes, at least 1.
        name: Its special property; the id of the test.
        seed: Seed of everything random.
        edge_data: Whether to draw edge weights, features and types too.

    Returns:
        The graph, its masks disjoint and none of them empty.
    """
    rng = np.random.default_rng(seed)
    num_edges = len(senders)
    order = rng.permutation(num_nodes)
    masks: dict[str, np.ndarray] = {}
    names = ("train_mask", "val_mask", "test_mask")[:num_nodes]
    for position, mask_name in enumerate(names):
        masks[mask_name] = np.zeros(num_nodes, bool)
        masks[mask_name][order[position :: len(names) + 1]] = True
    on_edges: dict[str, Any] = {}
    if edge_data:
        # A separate stream, so that the nodes do not depend on edge data.
        edge_rng = np.random.default_rng((seed, 1))
        on_edges = {
            "edge_weight": edge_rng.uniform(0.1, 2.0, num_edges).astype(np.float32),
            "edges": edge_rng.standard_normal((num_edges, 2)).astype(np.float32),
            "edge_type": edge_rng.integers(0, 3, num_edges).astype(np.int32),
        }
    return Graph.from_edges(
        np.asarray(senders, np.int32),
        np.asarray(receivers, np.int32),
        num_nodes=num_nodes,
        nodes=rng.standard_normal((num_nodes, NUM_FEATURES)).astype(np.float32),
        labels=rng.integers(0, NUM_CLASSES, num_nodes).astype(np.int32),
        name=name,
        **masks,
        **on_edges,
    )


def random_edges(num_nodes: int, num_edges: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Directed edges between uniform nodes; repeated edges and self-loops may occur."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, num_nodes, (2, num_edges)).astype(np.int32)
    return ends[0], ends[1]


def small_graphs(edge_data: bool = False) -> tuple[Graph, ...]:
    """The fixed list for tests of every op, layer and schedule; `.name` identifies a graph."""

    def graph(name: str, senders: Any, receivers: Any, num_nodes: int) -> Graph:
        return complete(senders, receivers, num_nodes, name, seed=len(name), edge_data=edge_data)

    ring = np.arange(16)
    leaves = np.arange(1, 67)
    few = random_edges(5, 20, seed=1)
    many = random_edges(37, 211, seed=2)
    return (
        graph("one-node", [], [], 1),
        graph("one-node-self-loop", [0], [0], 1),
        graph("no-edges", [], [], 6),
        graph("one-edge", [0], [1], 2),
        graph("isolated-nodes", *few, 19),
        graph("self-loops", [0, 1, 1, 2, 3, 3], [0, 1, 2, 2, 3, 0], 5),
        graph("all-self-loops", ring, ring, 16),
        graph("repeated-edges", [0, 0, 0, 1, 1, 2, 2], [1, 1, 1, 2, 2, 0, 0], 4),
        graph("star-in", leaves, np.zeros(66, int), 67),
        graph("star-out", np.zeros(66, int), leaves, 67),
        graph("ring", ring, (ring + 1) % 16, 16),
        graph("two-components", [0, 1, 2, 5, 6, 7], [1, 2, 0, 6, 7, 5], 8),
        graph("directed-random", *many, 37),
    )


SMALL_GRAPHS = small_graphs()


@st.composite
def graphs(
    draw: st.DrawFn, max_nodes: int = 40, max_degree: int = 6, edge_data: bool = False
) -> Graph:
    """A random directed graph, its edges uniform or concentrated on few receivers or senders."""
    num_nodes = draw(st.integers(1, max_nodes))
    num_edges = draw(st.integers(0, max_degree * num_nodes))
    seed = draw(st.integers(0, 2**16))
    senders, receivers = random_edges(num_nodes, num_edges, seed)
    hubs = draw(st.integers(1, num_nodes))
    skew = draw(st.sampled_from(("uniform", "few-receivers", "few-senders")))
    if skew == "few-receivers":
        receivers = receivers % hubs
    elif skew == "few-senders":
        senders = senders % hubs
    return complete(senders, receivers, num_nodes, f"random-{skew}", seed, edge_data)


def skewed_assignment(num_nodes: int, num_parts: int) -> np.ndarray:
    """An assignment of very unequal parts, int32 [num_nodes]: halves of the remaining nodes.

    One part holds all nodes. With two or more, part 0 is empty, and so are the last ones when nodes
    run out.
    """
    if num_parts == 1:
        return np.zeros(num_nodes, np.int32)
    position = np.arange(1, num_nodes + 1)
    return np.minimum(1 + np.log2(position).astype(np.int32), num_parts - 1).astype(np.int32)


@st.composite
def assignments(draw: st.DrawFn, num_nodes: int, num_parts: int) -> np.ndarray:
    """A part for every node, int32 [num_nodes]; parts may be empty and of any size."""
    used = draw(st.lists(st.integers(0, num_parts - 1), min_size=1, max_size=num_parts))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return rng.choice(np.asarray(used, np.int32), num_nodes).astype(np.int32)
