"""The traffic of a compiled program between devices, and the work that overlaps it."""

from jaxgraph.analysis.traffic import overlapped, traffic, traffic_by_link

__all__ = ["overlapped", "traffic", "traffic_by_link"]


def __dir__() -> list[str]:
    return sorted(__all__)
