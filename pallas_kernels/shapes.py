"""Named shapes that tests and benchmarks share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SHAPES", "Shape"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a kernel's operands.

    Attributes:
      rows, edges: rows and edges of the graph.
      heads, width: heads of a row; numbers per head.
      dtype: dtype of the numbers.
    """

    rows: int
    edges: int
    heads: int
    width: int
    dtype: str = "float32"


def _shapes() -> dict[str, Shape]:
    graphs = {
        "arxiv": (169_343, 2_484_941),
        "reddit": (232_965, 114_848_857),
        "products": (2_449_029, 123_718_280),
    }
    widths = {"1": (1, 1), "7": (1, 7), "16": (1, 16), "41": (1, 41), "128": (1, 128)}
    shapes = {
        f"arxiv-{name}": Shape(*graphs["arxiv"], *sizes)
        for name, sizes in (widths | {"4x32": (4, 32)}).items()
    }
    for dtype in ("bfloat16", "float16"):
        shapes[f"arxiv-128-{dtype}"] = Shape(*graphs["arxiv"], 1, 128, dtype)
    shapes["reddit-602"] = Shape(*graphs["reddit"], 1, 602)
    shapes["products-100"] = Shape(*graphs["products"], 1, 100)
    shapes["products-256"] = Shape(*graphs["products"], 1, 256)
    shapes["products-4x128"] = Shape(*graphs["products"], 4, 128)
    return shapes


SHAPES: Mapping[str, Shape] = MappingProxyType(_shapes())
"""Graphs of public data sets, with the widths of layers and of labels."""
