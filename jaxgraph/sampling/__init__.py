"""Samples of neighbourhoods, and mini-batches of them."""

from jaxgraph.sampling.links import Links
from jaxgraph.sampling.loader import Loader

__all__ = ["Links", "Loader"]


def __dir__() -> list[str]:
    return sorted(__all__)
