"""`jaxgraph train --sample`: mini-batches of samples."""

import re
from typing import TYPE_CHECKING, Any

import scipy.sparse as sp

from jaxgraph.byte_amounts import bytes_of, refuse_beyond_memory
from jaxgraph.cli.display import byte_text
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts
from jaxgraph.launch.signals import say

if TYPE_CHECKING:
    from jaxgraph.sampling import Loader

_LARGE = 100_000_000
"""Bytes of dense features that are worth a line."""


def fanouts_of(text: str) -> list[int]:
    """Reads the fan-outs of layers.

    >>> fanouts_of("15,10,-1")
    [15, 10, -1]
    """
    if not re.fullmatch(r"(-1|[1-9]\d{0,8})(,\s*(-1|[1-9]\d{0,8}))*", text):
        raise ValueError(
            f"--sample: got {text!r}; expected the most neighbours of each layer, the first layer "
            "first, as 15,10,5; -1 is all."
        )
    return [int(each) for each in text.split(",")]


def check_sampled(options: Any, settings: Any, facts: GraphFacts, devices: int) -> None:
    """Refuses a model or a graph that mini-batches do not train, before any work."""
    fanouts = fanouts_of(options.sample)
    if len(fanouts) != settings.layers:
        raise ValueError(
            f"--sample: got {len(fanouts)} fan-outs for {settings.layers} layers; expected one for "
            f"each; --layers {len(fanouts)} makes as many layers."
        )
    if not facts.num_features:
        raise ValueError(
            f"--sample: {facts.name} has no features, and learned rows of all nodes would move in "
            "every batch; --degree-features makes some."
        )
    if "batch" in settings.norm and devices > 1:
        raise ValueError(
            f"--norm: {settings.norm} has the statistics of a batch, whose nodes several devices "
            "share; expected --norm layer, or --parts 1."
        )


def dense(graph: Graph, *, says: bool) -> Graph:
    """The graph with dense features, as samples fetch them."""
    if not sp.issparse(graph.nodes):
        return graph
    nbytes = graph.nodes.shape[0] * graph.nodes.shape[1] * graph.nodes.dtype.itemsize
    refuse_beyond_memory("--sample: features of the graph as a dense array", nbytes)
    if says and nbytes > _LARGE:
        say(
            f"Mini-batches read dense features: those of {graph.name} take {byte_text(nbytes)}, "
            "on the host and on the devices together."
        )
    return graph.replace(nodes=graph.nodes.toarray())


def loader_of(options: Any, graph: Graph, sharded: Any) -> "Loader":
    """The loader of a sharded graph's mini-batches."""
    from jaxgraph.sampling import Loader

    cache = options.sample_cache
    return Loader(
        graph,
        fanouts_of(options.sample),
        sharded=sharded,
        batch_size=options.batch_size,
        method=options.sample_method,
        seed=options.seed,
        cache_bytes=0 if cache is None else bytes_of("--sample-cache", cache),
    )
