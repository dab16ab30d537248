"""The parts of a graph, written into a folder to be placed later, by other processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, TypedFacts, facts_of, facts_of_typed
from jaxgraph.kinds import check_graph
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.layout.part_writing import check_target, write_source
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.column_placement import column_request
from jaxgraph.parallel.named_data import check_held
from jaxgraph.parallel.typed_placement import tabulated
from jaxgraph.partition.assignment import Partition
from jaxgraph.typed_graph import TypedGraph


def write_parts(
    graph: Graph | TypedGraph,
    partition: Partition | Mapping[str, Partition],
    folder: str | os.PathLike[str],
    mode: str = "sar",
    *,
    rest: str | None = None,
    topology: str | None = None,
    chunks: int | None = None,
    feature_budget: int | None = None,
    message_flow: int | None = None,
    facts: GraphFacts | TypedFacts | None = None,
    on_part: Callable[[int], object] | None = None,
) -> PartFolder:
    """Writes the parts of a graph into a folder, for `place(open_parts(folder), mesh)`.

    Arrays are memory-mapped files with checksums. A process reads those of its own parts alone: in
    mode "p3" its columns of features, and the edges that it holds for the first layer. If writing
    is interrupted or fails, the parts that the folder held before are still there.

    Args:
      graph: the graph; of several sets, a `TypedGraph`.
      partition: a part for every node; of several sets, by the name of the set.
      folder: a new or empty folder, or one that holds parts, which are replaced.
      mode, rest, topology, chunks, feature_budget, message_flow: as for `shard`.
      facts: what training reads of the graph beside its parts; None: counted here.
      on_part: function of the number of each part, called once it is written.

    Returns:
      The folder, opened.

    Raises:
      ValueError: an argument does not fit the graph or the mode, as for `shard`, or the folder
        holds something else.
      OSError: it could not be written.
    """
    check_target(folder)
    options = {"rest": rest, "topology": topology, "chunks": chunks}
    options["feature_budget"] = feature_budget
    if message_flow is not None or isinstance(graph, TypedGraph):
        parts = tabulated(graph, partition, mode, options, message_flow)
        graph = TypedGraph.of(graph) if isinstance(graph, Graph) else graph
        names = {name: nodes.node_names for name, nodes in graph.node_sets.items()}
        found = facts_of_typed(graph) if facts is None else facts
        return write_source(parts, folder, found, node_names=names, on_part=on_part)
    check_graph(graph, "write_parts(graph, partition, folder)")
    columns, schedule = column_request(mode, options, None, has_target=False)
    check_held(graph)
    of_all: Any = partition
    source = tabulate(graph, of_all, schedule, columns=columns)
    return write_source(
        source,
        folder,
        facts_of(graph) if facts is None else facts,
        node_names=graph.node_names,
        on_part=on_part,
    )
