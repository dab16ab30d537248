"""Graphs sharded over a device mesh: placement, exchange and the schedules."""

from jaxgraph.layout.block_tables import BlockSizes
from jaxgraph.layout.common_shapes import common_shapes
from jaxgraph.layout.part_files import open_parts
from jaxgraph.layout.part_sizes import PartSizes
from jaxgraph.ops.core.propagation import REDUCED
from jaxgraph.parallel import ptags
from jaxgraph.parallel.bipartite import Bipartite, bipartite
from jaxgraph.parallel.edge_dropout import keep_edges
from jaxgraph.parallel.edge_results import gather_edges
from jaxgraph.parallel.mesh import emulate_devices, make_mesh
from jaxgraph.parallel.neighborhood import Neighborhood
from jaxgraph.parallel.part_folder import write_parts
from jaxgraph.parallel.placement import place, shard
from jaxgraph.parallel.propagate import edge_messages, explain, propagate
from jaxgraph.parallel.rewriting_report import RewritingReport
from jaxgraph.parallel.schedules.domain import HALOS
from jaxgraph.parallel.shard import Shard
from jaxgraph.parallel.sharded_graph import ShardedGraph
from jaxgraph.parallel.sparse_features import SparseFeatures
from jaxgraph.parallel.spmd import gather_rows, place_rows, spmd

KEPT = (REDUCED, HALOS)
"""Checkpoint names of residuals of message passing; recomputed, they would be sent again."""

__all__ = [
    "KEPT",
    "Bipartite",
    "BlockSizes",
    "Neighborhood",
    "PartSizes",
    "RewritingReport",
    "Shard",
    "ShardedGraph",
    "SparseFeatures",
    "bipartite",
    "common_shapes",
    "edge_messages",
    "emulate_devices",
    "explain",
    "gather_edges",
    "gather_rows",
    "keep_edges",
    "make_mesh",
    "open_parts",
    "place",
    "place_rows",
    "propagate",
    "ptags",
    "shard",
    "spmd",
    "write_parts",
]


def __dir__() -> list[str]:
    return sorted(__all__)
