"""Partitioners by name, which assign each node to a part, and the quality of their result.

SAR (section 4.2) uses METIS, P3 (section 3.1) hashing, NeuGraph (section 3.1) and ROC (section 4.2)
contiguous ranges. Everything here is NumPy on the host.
"""

from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.locality import orders
from jaxgraph.partition.registry import methods, partition
from jaxgraph.partition.report import PartitionReport, report

__all__ = [
    "Partition",
    "PartitionReport",
    "methods",
    "orders",
    "partition",
    "report",
]


def __dir__() -> list[str]:
    return sorted(__all__)
