"""Ranks of the ends of links among all nodes, with the other known links left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxgraph.kinds import kind_of
from jaxgraph.nn import LinkReadout
from jaxgraph.parallel import Shard, ShardedGraph, spmd
from jaxgraph.parallel.spmd import on_host
from jaxgraph.sampling.homes import homes_of
from jaxgraph.sampling.loader import placed_on_one
from jaxgraph.sampling.sources import source_of
from jaxgraph.train.arguments import checked_graph
from jaxgraph.train.fit_state import place_variables
from jaxgraph.train.objective import Split, features_of_model, plain_shard, split_model

_BATCH = 64
"""Queries that are scored against all nodes at once: a `LinkMLP` has [queries, nodes, width]."""


def link_ranks(
    model: LinkReadout, graph: Any, sharded: ShardedGraph | None = None, split: str = "test"
) -> np.ndarray:
    """Ranks both ends of the links of a split among all nodes, without dropout.

    r = 1 + |{j: s_j > s}| + |{j: s_j = s}| / 2

    s is the score of a link, and s_j that of the pair with the node j in the place of one end. Left
    out are the j that make another known link: an edge, or a link of any split (label 1), of the
    same type; without types, in either direction. The mean of 1 / r is the filtered mean reciprocal
    rank, and that of r <= 10 Hits@10. A score that is not a number ranks its link last, and as s_j
    it counts as higher.

    Args:
      model: the model; its decoder maps one row of an end together with many of the other.
      graph: the `jaxgraph.TypedGraph` of `jaxgraph.transforms.link_split`.
      sharded: the same graph on the devices of a mesh; None: on JAX's default device.
      split: "val" or "test".

    Returns:
      float64 [links, 2], the ranks of heads and of tails, in the order of the links.

    Raises:
      ValueError: an argument is of the wrong kind, the sharded graph has other edges, or the split
        has no links.

    References:
      Bordes et al., "Translating embeddings for modeling multi-relational data", 2013, section 4
      (the filtered setting).
    """
    if not isinstance(model, LinkReadout):
        raise ValueError(f"model is {kind_of(model)}; expected a jaxgraph.nn.LinkReadout")
    if "of_links" in getattr(model.decoder, "kernels", ()):
        raise ValueError(
            "the decoder reads features of links, and the pairs beside a link have none; ranks "
            "need a LinkMLP without link_features"
        )
    facts, source = _facts(graph, split), source_of(graph)
    if sharded is None:
        sharded = placed_on_one(graph)
    sharded = checked_graph(model, source.checked(sharded, fetches=False))
    homes = homes_of(sharded, source)
    variables = place_variables(split_model(model), sharded)
    rows = spmd(_rows_of_ends, outputs="rows")(variables, sharded)
    decoder = nnx.split(nnx.merge(*variables).decoder)
    ranks = np.empty((len(facts.links), 2))
    for column, (end, other) in enumerate((("head", "tail"), ("tail", "head"))):
        places = {name: homes[facts.sets[name]].places for name in (end, other)}
        mask = sharded.shards.tables[facts.sets[end]].node_mask
        given = (*decoder, rows[end], mask, rows[other])
        how = {"is_head": end == "head", "mesh": sharded.mesh, "axis": sharded.axis}
        for start, queries in facts.queries(end, other, places):
            found = _ranks(*given, queries, **how)
            count = min(_BATCH, len(ranks) - start)
            ranks[start : start + count, column] = on_host(found)[0][:count]
    return ranks


@dataclasses.dataclass(frozen=True, eq=False)
class _Facts:
    """The links of a split, and those that are known.

    Attributes:
      sets: the sets of heads and of tails, by the name of the end.
      links: int [links, 3], head, tail and type (0 without types).
      known: int [known, 3], all different.
    """

    sets: Mapping[str, str]
    links: np.ndarray
    known: np.ndarray

    def queries(
        self, end: str, other: str, places: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """The first link of each batch, and its arrays, of one shape for all batches."""
        of_end, of_other = (("head", "tail").index(name) for name in (end, other))
        # The known links of a query are a run of those that are sorted by their given end.
        order = np.lexsort((self.known[:, of_other], self.known[:, 2]))
        known = self.known[order]
        numbers = [x[:, 2] * len(places[other]) + x[:, of_other] for x in (known, self.links)]
        first, after = (np.searchsorted(*numbers, side=side) for side in ("left", "right"))
        starts = range(0, len(self.links), _BATCH)
        most = max(int((after - first)[start : start + _BATCH].sum()) for start in starts)
        for start in starts:
            which = np.arange(start, min(start + _BATCH, len(self.links)))
            counts = (after - first)[which]
            query = np.repeat(np.arange(len(which)), counts)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            listed = known[first[which][query] + within, of_end]
            room, more = (0, _BATCH - len(which)), (0, most - len(query))
            links = self.links[which]
            yield (
                start,
                {
                    "given": np.pad(places[other][links[:, of_other]], (room, (0, 0))),
                    "answer": np.pad(places[end][links[:, of_end]], (room, (0, 0))),
                    "types": np.pad(links[:, 2], room).astype(np.int32),
                    "query": np.pad(query, more).astype(np.int32),
                    # No device has number -1.
                    "known": np.pad(places[end][listed], (more, (0, 0)), constant_values=-1),
                },
            )


def _facts(graph: Any, split: str) -> _Facts:
    """Reads the links of a graph of `link_split`."""
    sets = getattr(graph, "edge_sets", {})
    sets = {name: (sender, sets[sender, name, end]) for sender, name, end in sets}
    if not {"head", "tail"} <= sets.keys() or graph.target is None:
        raise ValueError(
            f"graph is {kind_of(graph)} without links; expected the TypedGraph of "
            "jaxgraph.transforms.link_split"
        )
    table, ends = graph.node_sets[graph.target], (sets["head"][0], sets["tail"][0])
    mask = getattr(table, f"{split}_mask", None) if split in ("val", "test") else None
    positive = np.ones(table.num_nodes, bool) if table.labels is None else table.labels == 1
    if mask is None or not (mask & positive).any():
        raise ValueError(f"split is {split!r}, which has no links; expected 'val' or 'test'")
    types = table.node_data.get("link_type", np.zeros(table.num_nodes, np.int64))
    links = np.stack([sets["head"][1].senders, sets["tail"][1].senders, types], 1).astype(np.int64)
    known, is_typed = [links[positive]], "link_type" in table.node_data
    for (sender, _, receiver), edges in graph.edge_sets.items():
        if (sender, receiver) == ends:
            of_edges = np.zeros(edges.num_edges) if edges.edge_type is None else edges.edge_type
            known.append(np.stack([edges.senders, edges.receivers, of_edges], 1).astype(np.int64))
        is_typed |= edges.edge_type is not None and (sender, receiver) == ends
    if ends[0] == ends[1] and not is_typed:
        # Without types, an edge tells of its reverse.
        known += [each[:, [1, 0, 2]] for each in known]
    return _Facts(
        dict(zip(("head", "tail"), ends, strict=True)),
        links[mask & positive],
        np.unique(np.concatenate(known), axis=0),
    )


def _rows_of_ends(split: Split, shard: Shard) -> dict[str, jax.Array]:
    """The encoder's rows of the sets of heads and of tails."""
    model: Any = nnx.merge(*split, copy=True)
    plain: Any = plain_shard(shard)
    return dict(model.encoded(plain, features_of_model(plain))[1])


@partial(jax.jit, static_argnames=("graphdef", "is_head", "mesh", "axis"))
def _ranks(
    graphdef: Any,
    decoder: Any,
    candidates: jax.Array,
    mask: jax.Array,
    others: jax.Array,
    queries: Mapping[str, jax.Array],
    *,
    is_head: bool,
    mesh: Mesh,
    axis: Any,
) -> jax.Array:
    """float [queries], the ranks of the answers among the candidates of all devices."""

    def on_device(
        decoder: Any,
        candidates: jax.Array,
        mask: jax.Array,
        others: jax.Array,
        queries: Mapping[str, jax.Array],
    ) -> jax.Array:
        device = lax.axis_index(axis)
        scored = nnx.merge(graphdef, decoder)

        def own(places: jax.Array, values: jax.Array) -> jax.Array:
            """Values of the places that are here, 0 elsewhere."""
            here = places[:, 0] == device
            return jnp.where(here.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)

        given = queries["given"]
        rows = lax.psum(own(given, others[jnp.where(given[:, 0] == device, given[:, 1], 0)]), axis)

        def of_query(row: jax.Array, kind: jax.Array) -> jax.Array:
            pair = (candidates, row) if is_head else (row, candidates)
            return scored(*pair, {"link_type": kind})

        scores = jax.vmap(of_query)(rows, queries["types"])
        if scores.ndim != 2:
            raise ValueError(
                f"the decoder returns {scores.ndim - 1} axes for the pairs of a link; expected one "
                "score for each pair, [links]"
            )
        answer, number = queries["answer"], jnp.arange(len(given))
        of_answer = lax.psum(own(answer, scores[number, answer[:, 1]]), axis)

        def counted(values: jax.Array, wanted: jax.Array) -> jax.Array:
            """Twice the number of those that are higher, and once of those that are equal."""
            # Not a number is higher, and higher than it is every number.
            return 2 * (~(values <= wanted)).astype(jnp.int32) + (values == wanted)

        total = jnp.where(mask[0], counted(scores, of_answer[:, None]), 0).sum(1)
        query, known = queries["query"], queries["known"]
        of_known = counted(scores[query, known[:, 1]], of_answer[query])
        total -= jnp.zeros_like(total).at[query].add(own(known, of_known))
        return 1 + lax.psum(total, axis) / 2

    split, same = PartitionSpec(axis), PartitionSpec()
    specs = (same, split, split, split, same)
    program = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=same, check_vma=True)
    return program(decoder, candidates, mask, others, queries)
