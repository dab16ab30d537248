"""Graphs larger than memory: files of edges are cut into the parts of a folder, in bounded memory.

`partition_file` writes what `jaxgraph.parallel.write_parts` writes of the same graph in memory. Its
steps keep their results in a folder, so that a run that was interrupted continues after the last
one that had ended:

    read    the ends of all edges as 64-bit keys             `datasets.edge_keys`
    number  a row for each key, and the names of nodes       `datasets.node_ids`
    split   the edges by the part that they end in           `splitting`
    order   compressed rows of each part, one by one         `ordering`
    write   the arrays of each part, one by one              `part_source`

An edge costs memory only while its chunk or its part is processed, a node always (`limits`).
"""

from jaxgraph.external.partitioning import Partitioned, partition_file
from jaxgraph.external.request import Request

__all__ = ["Partitioned", "Request", "partition_file"]


def __dir__() -> list[str]:
    return sorted(__all__)
