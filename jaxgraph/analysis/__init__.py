"""Compilations; the bytes that a program sends between devices, and the work that overlaps them."""

from jaxgraph.analysis.compilations import compilations
from jaxgraph.analysis.traffic import overlapped, traffic, traffic_by_link

__all__ = ["compilations", "overlapped", "traffic", "traffic_by_link"]


def __dir__() -> list[str]:
    return sorted(__all__)
