"""Models that read rows of graphs, or of the ends of links, from rows of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import jax

from jaxgraph import layers
from jaxgraph.nn.layer import layer_keys
from jaxgraph.nn.module import Module, check_callable
from jaxgraph.parallel import Shard
from jaxgraph.parallel.samples import SampledLayer

READOUTS = ("head", "tail", "member")
"""Relations through which a target reads rows of nodes."""
Given = Shard | Sequence[SampledLayer]
"""The shard of a graph with a readout, or what the layers read of a sample of it."""


class Readout(Module):
    """The base of models that read rows of a target from rows of nodes.

    Args:
      encoder: a model of nodes, `encoder(neighborhood, x, key=key, train=train) -> [rows, width]`;
        with `edges=None` it may return the rows of several sets by name.
      edges: the set of edges that the encoder reads; None: the encoder is called with the shard, or
        the layers of a sample, and with the features of all sets by name.
    """

    def __init__(self, encoder: Callable[..., Any], edges: str | None) -> None:
        call = "neighborhood, x, key=key, train=train"
        check_callable("encoder", encoder, call, None, None, key=None, train=False)
        self.encoder, self.edges = encoder, edges

    def encoded(self, shard: Given, x: Any, **options: Any) -> tuple[Any, Mapping[str, Any]]:
        """Object with the relations of the readout, and the rows of nodes of each, by its name."""
        is_whole = isinstance(shard, Shard)
        below: Any = shard if is_whole else shard[:-1]
        reader: Any = shard if is_whole else shard[-1]
        sets = {name: ends.senders for name, ends in reader.ends if name in READOUTS}
        of, rows = next(iter(sets.values())), None
        if self.edges is None:
            rows = self.encoder(below, x, **options)
        else:
            of = _set_of(reader, self.edges)
            relation = methodcaller("relation", self.edges)
            of_edges = relation(below) if is_whole else list(map(relation, below))
            rows = self.encoder(of_edges, x[of], **options)
        if not isinstance(rows, Mapping):
            rows = {of: rows}
        for name, nodes in sets.items():
            if nodes not in rows:
                raise ValueError(
                    f"the encoder returns rows of {', '.join(map(repr, rows))}, and {name!r} reads "
                    f"rows of {nodes!r}; make the model with edges=None, and have its encoder "
                    "return the rows of all sets by name"
                )
        if isinstance(shard, Shard):
            reader, rows = shard.read(rows)
        return reader, {name: rows[nodes] for name, nodes in sets.items()}


class GraphReadout(Readout):
    """y_g = head(reduce_{v in g} encoder(graph, x)_v), a row for each graph of `Graph.batch`.

    Args:
      encoder: a model of nodes, `encoder(neighborhood, x, key=key, train=train) -> [rows, width]`.
      head: a map of the rows of graphs, such as `jaxgraph.nn.Linear`, called in the same way; None:
        the reduced rows are the output.
      reduce: "sum", "mean", "max" or "min".
      edges: the set of edges that the encoder reads; None: the encoder is called with the shard, or
        the layers of a sample, and with the features of all sets by name.

    References:
      Xu et al., "How powerful are graph neural networks?", 2019, equation 4.2.
    """

    def __init__(
        self,
        encoder: Callable[..., jax.Array],
        head: Callable[..., jax.Array] | None = None,
        *,
        reduce: str = "sum",
        edges: str | None = "edge",
    ) -> None:
        super().__init__(encoder, edges)
        if head is not None:
            call = "graphs, y, key=key, train=train"
            check_callable("head", head, call, None, None, key=None, train=False)
        self.head, self.reduce = head, reduce

    def __call__(
        self,
        shard: Given,
        x: Mapping[str, Any],
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns rows of the graphs, [graphs, out_features].

        Args:
          shard: the shard of a graph of `Graph.batch`, under `spmd`, or the layers of a sample.
          x: float [rows, in_features] of the set "node", by its name.
          key: random key of layers with dropout, in training.
          train: whether dropout is on.
        """
        of_nodes, of_graphs = (None, None) if key is None else layer_keys(key, 1)[0]
        reader, rows = self.encoded(shard, x, key=of_nodes, train=train)
        members = reader.relation("member")
        y = layers.readout(members, rows["member"], reduce=self.reduce)
        if self.head is None:
            return y
        return self.head(members.receivers, y, key=of_graphs, train=train)


class LinkReadout(Readout):
    """s_l = decoder(h_u, h_v) of each link l from u to v, where h = encoder(graph, x).

    Args:
      encoder: a model of nodes, `encoder(neighborhood, x, key=key, train=train) -> [rows, width]`;
        with `edges=None` it may return the rows of several sets by name.
      decoder: `decoder(heads, tails, links)` of the rows of both ends, and of the arrays of the
        links by name, such as "link_type": `jaxgraph.nn.InnerProduct`, `DistMult` or `LinkMLP`.
      edges: as of `GraphReadout`.

    References:
      Kipf and Welling, "Variational Graph Auto-Encoders", 2016, equation 2. Schlichtkrull et al.,
      "Modeling relational data with graph convolutional networks", 2018, section 4.
    """

    def __init__(
        self,
        encoder: Callable[..., Any],
        decoder: Callable[..., jax.Array],
        *,
        edges: str | None = "edge",
    ) -> None:
        super().__init__(encoder, edges)
        check_callable("decoder", decoder, "heads, tails, links", None, None, None)
        self.decoder = decoder

    def __call__(
        self,
        shard: Given,
        x: Mapping[str, Any],
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns a row for each link, [links] or [links, out_features], as the decoder does.

        Arguments are those of `GraphReadout`.
        """
        reader, rows = self.encoded(shard, x, key=key, train=train)
        ends = {name: reader.relation(name) for name in ("head", "tail")}
        heads, tails = (layers.readout(each, rows[name]) for name, each in ends.items())
        links, features = ends["head"].receivers.node_data, ends["head"].receivers.nodes
        of_links = {} if features is None else {"nodes": features}
        return self.decoder(heads, tails, {**links, **of_links})


def _set_of(reader: Any, edges: str) -> str:
    """The set of nodes that a set of edges is within."""
    ends = dict(reader.ends).get(edges)
    if ends is None or ends.senders != ends.receivers:
        known = ", ".join(repr(name) for name, x in reader.ends if x.senders == x.receivers)
        raise ValueError(
            f"edges is {edges!r}; expected a set of edges within one set of nodes ({known}), or "
            "None, for an encoder of several sets"
        )
    return ends.senders
