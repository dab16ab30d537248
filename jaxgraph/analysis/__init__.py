"""What a compiled program sends between devices, and what it does meanwhile."""

from jaxgraph.analysis.traffic import overlapped, traffic

__all__ = ["overlapped", "traffic"]


def __dir__() -> list[str]:
    return sorted(__all__)
