"""The traffic of a compiled program between devices, and the work that overlaps it."""

from jaxgraph.analysis.traffic import overlapped, traffic

__all__ = ["overlapped", "traffic"]


def __dir__() -> list[str]:
    return sorted(__all__)
