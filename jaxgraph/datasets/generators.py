"""Graphs of any size from a seed: block model, R-MAT, Chung-Lu, uniform.

All are simple undirected graphs (both directions of each edge, no self-loop, no repetition) of
exactly ``round(num_nodes * degree / 2)`` undirected edges, whose features depend on the classes.
Each function works on positions; the last step assigns ids to them at random, so that ids are
independent of degree and class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxgraph import transforms
from jaxgraph.byte_amounts import refuse_beyond_memory
from jaxgraph.graph import Graph
from jaxgraph.seeds import checked_seed

# Draws a number of pairs of positions: two int64 arrays [count].
_DrawPairs = Callable[[int], tuple[np.ndarray, np.ndarray]]

_MAX_ROUNDS = 64
# Temporaries of this many pairs or rows stay in the cache.
_PAIRS_PER_CHUNK = 1 << 17
_ROWS_PER_CHUNK = 1 << 14
_SPLIT = (0.6, 0.2, 0.2)


def stochastic_block_model(
    num_nodes: int = 10_000,
    degree: float = 16,
    *,
    num_classes: int = 8,
    homophily: float = 0.8,
    degree_exponent: float | None = 3.0,
    num_features: int = 64,
    feature_signal: float = 0.25,
    seed: int = 0,
) -> Graph:
    """Makes a degree-corrected stochastic block model whose blocks are the classes.

        P(i -> j) ~ theta_i theta_j w(b_i, b_j),   w chosen so that a share ``homophily`` is inside

    Args:
        num_nodes: number of nodes.
        degree: mean degree.
        num_classes: number of blocks, equal in size up to one node.
        homophily: the share of edges drawn inside a block, from 0 to 1; removing repeated edges
            lowers it where blocks are dense.
        degree_exponent: exponent of the power law of degrees, above 2; None for equal weights.
        num_features: features of a node; 0 for none.
        feature_signal: distance of the classes' means in units of the noise, per feature.
        seed: of the random generator, from 0 to 2**32 - 1.

    Returns:
        The graph with features, classes and masks of 60, 20 and 20 percent.

    Raises:
        ValueError: a number is out of range, or so many edges have no room.

    References:
        Karrer and Newman, "Stochastic blockmodels and community structure in networks", Physical
        Review E 83, 2011, section III.
    """
    _check_sizes(num_nodes, degree, num_classes, num_features)
    if not 0 <= homophily <= 1:
        raise ValueError(f"homophily: got {homophily}; expected a share from 0 to 1.")
    generator = np.random.default_rng(checked_seed("seed", seed))
    classes = _equal_classes(num_nodes, num_classes)
    if degree_exponent is None:
        weights = np.ones(num_nodes)
    else:
        weights = generator.permutation(_power_law(num_nodes, degree, degree_exponent))
    line = _WeightedLine.of(weights)
    ends = line.cumulative[np.cumsum(np.bincount(classes)) - 1]
    spans = np.diff(ends, prepend=0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        senders = line.positions(generator.random(count) * line.total)
        block = classes[senders]
        inside = (generator.random(count) < homophily) | (num_classes == 1)
        shift = generator.random(count)
        # Inside: a point of the block's span. Outside: a point after it, modulo the total.
        points = np.where(
            inside,
            ends[block] - shift * spans[block],
            (ends[block] + shift * (line.total - spans[block])) % line.total,
        )
        return senders, line.positions(points)

    edges = _simple_edges(draw, num_nodes, degree, generator)
    return _with_node_data("sbm", edges, classes, num_features, feature_signal, generator)


def chung_lu(
    num_nodes: int = 10_000,
    degree: float = 16,
    *,
    degree_exponent: float = 2.5,
    num_classes: int = 8,
    num_features: int = 64,
    feature_signal: float = 0.25,
    seed: int = 0,
) -> Graph:
    """Makes a Chung-Lu graph: a power law of expected degrees, and classes that edges ignore.

        P(i -> j) ~ w_i w_j,   w_i ~ i^(-1 / (degree_exponent - 1)), at most sqrt(sum w)

    Args:
        num_nodes: number of nodes.
        degree: mean degree.
        degree_exponent: exponent of the power law of degrees, above 2.
        num_classes: number of classes, equal in size up to one node.
        num_features: features of a node; 0 for none.
        feature_signal: distance of the classes' means in units of the noise, per feature.
        seed: of the random generator, from 0 to 2**32 - 1.

    Returns:
        The graph with features, classes and masks of 60, 20 and 20 percent.

    Raises:
        ValueError: a number is out of range, or so many edges have no room.

    References:
        Chung and Lu, "Connected Components in Random Graphs with Given Expected Degree Sequences",
        Annals of Combinatorics 6, 2002, section 2.
    """
    _check_sizes(num_nodes, degree, num_classes, num_features)
    generator = np.random.default_rng(checked_seed("seed", seed))
    line = _WeightedLine.of(_power_law(num_nodes, degree, degree_exponent))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        points = generator.random((2, count)) * line.total
        return line.positions(points[0]), line.positions(points[1])

    edges = _simple_edges(draw, num_nodes, degree, generator)
    classes = generator.permutation(_equal_classes(num_nodes, num_classes))
    return _with_node_data("chung-lu", edges, classes, num_features, feature_signal, generator)


def rmat(
    num_nodes: int = 10_000,
    degree: float = 16,
    *,
    probabilities: tuple[float, float, float, float] = (0.57, 0.19, 0.19, 0.05),
    num_classes: int = 8,
    num_features: int = 64,
    feature_signal: float = 0.25,
    seed: int = 0,
) -> Graph:
    """Makes an R-MAT graph: each edge chooses quadrants of the adjacency matrix recursively.

    Classes are equal ranges of positions: an edge whose first choices are on the diagonal stays
    inside a class.

    Args:
        num_nodes: number of nodes, not necessarily a power of two.
        degree: mean degree.
        probabilities: of the quadrants (low to low, low to high, high to low, high to high); sum 1.
        num_classes: number of classes, equal in size up to one node.
        num_features: features of a node; 0 for none.
        feature_signal: distance of the classes' means in units of the noise, per feature.
        seed: of the random generator, from 0 to 2**32 - 1.

    Returns:
        The graph with features, classes and masks of 60, 20 and 20 percent.

    Raises:
        ValueError: a number is out of range, or so many edges have no room.

    References:
        Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM 2004,
        section 3; the default probabilities are those of Graph500.
    """
    _check_sizes(num_nodes, degree, num_classes, num_features)
    if len(probabilities) != 4 or min(probabilities) < 0 or not math.isclose(sum(probabilities), 1):
        raise ValueError(f"probabilities: got {probabilities}; expected four of 0 or more, sum 1.")
    generator = np.random.default_rng(checked_seed("seed", seed))
    low_low, low_high, high_low, _ = probabilities
    num_levels = max(num_nodes - 1, 1).bit_length()

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        senders, receivers = np.zeros((2, count), np.int64)
        for _ in range(num_levels):
            choice = generator.random(count, np.float32)
            from_high = choice >= low_low + low_high
            to_high = (choice >= low_low) & ~from_high | (choice >= low_low + low_high + high_low)
            senders += senders + from_high
            receivers += receivers + to_high
        exists = (senders < num_nodes) & (receivers < num_nodes)
        return senders[exists], receivers[exists]

    edges = _simple_edges(draw, num_nodes, degree, generator)
    classes = _equal_classes(num_nodes, num_classes)
    return _with_node_data("rmat", edges, classes, num_features, feature_signal, generator)


def random_graph(
    num_nodes: int = 10_000,
    degree: float = 16,
    *,
    num_classes: int = 8,
    num_features: int = 64,
    feature_signal: float = 0.25,
    seed: int = 0,
) -> Graph:
    """Makes a uniform random graph of a given number of edges, and classes that edges ignore.

    Args:
        num_nodes: number of nodes.
        degree: mean degree.
        num_classes: number of classes, equal in size up to one node.
        num_features: features of a node; 0 for none.
        feature_signal: distance of the classes' means in units of the noise, per feature.
        seed: of the random generator, from 0 to 2**32 - 1.

    Returns:
        The graph with features, classes and masks of 60, 20 and 20 percent.

    Raises:
        ValueError: a number is out of range, or so many edges have no room.

    References:
        Erdos and Renyi, "On Random Graphs I", Publicationes Mathematicae 6, 1959.
    """
    _check_sizes(num_nodes, degree, num_classes, num_features)
    generator = np.random.default_rng(checked_seed("seed", seed))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        senders, receivers = generator.integers(0, num_nodes, (2, count))
        return senders, receivers

    edges = _simple_edges(draw, num_nodes, degree, generator)
    classes = _equal_classes(num_nodes, num_classes)
    return _with_node_data("random", edges, classes, num_features, feature_signal, generator)


def _check_sizes(num_nodes: int, degree: float, num_classes: int, num_features: int) -> None:
    counts = {"num_nodes": num_nodes, "num_classes": num_classes, "num_features": num_features}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise ValueError(f"{name}: got {count!r}; expected an integer.")
    if num_nodes < 1:
        raise ValueError(f"num_nodes: got {num_nodes}; expected at least 1.")
    if not 0 <= degree <= num_nodes - 1:
        raise ValueError(
            f"degree: got {degree}; expected a mean degree from 0 to num_nodes - 1 = "
            f"{num_nodes - 1}."
        )
    if not 1 <= num_classes <= num_nodes:
        raise ValueError(
            f"num_classes: got {num_classes}; expected from 1 to num_nodes = {num_nodes}."
        )
    if num_features < 0:
        raise ValueError(f"num_features: got {num_features}; expected 0 or more.")
    # Ends of edges in both directions; features, labels and masks.
    needed = 8 * round(num_nodes * degree) + num_nodes * (4 * num_features + 7)
    refuse_beyond_memory(f"num_nodes: {num_nodes} of degree {degree}", needed)


def _equal_classes(num_nodes: int, num_classes: int) -> np.ndarray:
    return np.arange(num_nodes, dtype=np.int64) * num_classes // num_nodes


def _power_law(num_nodes: int, degree: float, exponent: float) -> np.ndarray:
    if exponent <= 2:
        raise ValueError(f"degree_exponent: got {exponent}; expected more than 2 (finite mean).")
    weights = np.arange(1, num_nodes + 1, dtype=np.float64) ** (-1 / (exponent - 1))
    # Above this weight, two nodes would expect more than one edge between them.
    total = max(num_nodes * degree, 1)
    return np.minimum(weights * (total / weights.sum()), math.sqrt(total))


@dataclass(frozen=True)
class _WeightedLine:
    """Positions on a line, each as long as its weight, with a table of starts for searches.

    A binary search per point takes 20 cache misses for a million positions, the table one or two.
    """

    cumulative: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, weights: np.ndarray) -> _WeightedLine:
        cumulative = np.cumsum(weights)
        bounds = np.linspace(0, cumulative[-1], 2 * weights.size, endpoint=False)
        return cls(cumulative, np.searchsorted(cumulative, bounds, side="right"))

    @property
    def total(self) -> float:
        return float(self.cumulative[-1])

    def positions(self, points: np.ndarray) -> np.ndarray:
        """Returns the position that contains each point from 0 to the total."""
        # A point rounded to the very end belongs to the last position.
        points = np.minimum(points, np.nextafter(self.total, 0))
        found = self.first[(points * (self.first.size / self.total)).astype(np.int64)]
        behind = np.flatnonzero(self.cumulative[found] <= points)
        while behind.size:
            found[behind] += 1
            behind = behind[self.cumulative[found[behind]] <= points[behind]]
        return found


def _simple_edges(
    draw: _DrawPairs, num_nodes: int, degree: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws pairs until enough are distinct, and selects the wanted number at random."""
    wanted = min(round(num_nodes * degree / 2), num_nodes * (num_nodes - 1) // 2)
    keys = np.zeros(0, np.int64)
    share_of_new = 0.95
    for _ in range(_MAX_ROUNDS):
        missing = wanted - keys.size
        if missing <= 0:
            break
        count = int(min(missing / share_of_new, 4 * wanted)) + 64
        chunks = [keys]
        for start in range(0, count, _PAIRS_PER_CHUNK):
            senders, receivers = draw(min(_PAIRS_PER_CHUNK, count - start))
            drawn = np.minimum(senders, receivers) * num_nodes + np.maximum(senders, receivers)
            chunks.append(drawn[senders != receivers])
        merged = np.concatenate(chunks)
        merged.sort()
        merged = merged[np.diff(merged, prepend=-1) > 0]
        share_of_new = max((merged.size - keys.size) / count, 0.01)
        keys = merged
    if keys.size < wanted:
        raise ValueError(
            f"degree: {degree} asks for {wanted} undirected edges, of which only {keys.size} could "
            "be placed; pass a smaller degree, or spread the edges more evenly over the nodes."
        )
    dropped = generator.choice(keys.size, keys.size - wanted, replace=False, shuffle=False)
    keys = np.delete(keys, dropped)
    return np.divmod(keys, num_nodes)


def _with_node_data(
    name: str,
    edges: tuple[np.ndarray, np.ndarray],
    classes: np.ndarray,
    num_features: int,
    feature_signal: float,
    generator: np.random.Generator,
) -> Graph:
    num_nodes = classes.size
    dtype = np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64
    ids = generator.permutation(num_nodes).astype(dtype)
    labels = np.empty(num_nodes, np.int32)
    labels[ids] = classes
    graph = Graph.from_edges(
        ids[edges[0]],
        ids[edges[1]],
        num_nodes=num_nodes,
        nodes=_planted_features(labels, num_features, feature_signal, generator),
        labels=labels,
        name=name,
    )
    # With fewer than five nodes, one of the shares would be empty.
    fractions = _SPLIT if num_nodes >= 5 else (1.0, 0.0, 0.0)
    graph = transforms.random_split(graph, fractions=fractions, seed=int(generator.integers(2**32)))
    return transforms.to_undirected(graph)


def _planted_features(
    labels: np.ndarray, num_features: int, feature_signal: float, generator: np.random.Generator
) -> np.ndarray | None:
    if num_features == 0:
        return None
    means = generator.standard_normal((int(labels.max()) + 1, num_features), np.float32)
    means *= feature_signal
    features = generator.standard_normal((labels.size, num_features), np.float32)
    for start in range(0, labels.size, _ROWS_PER_CHUNK):
        rows = slice(start, start + _ROWS_PER_CHUNK)
        features[rows] += means[labels[rows]]
    return features
