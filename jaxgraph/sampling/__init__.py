"""Samples of neighbourhoods, and mini-batches of them."""

from jaxgraph.sampling.loader import Loader

__all__ = ["Loader"]


def __dir__() -> list[str]:
    return sorted(__all__)
