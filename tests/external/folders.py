"""Folders of parts compared file by file, and amounts that are small enough for many chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxgraph.external import Request, partition_file, partitioning
from jaxgraph.external.limits import Amounts
from jaxgraph.layout.part_files import PartFolder

SMALL = Amounts(limit=1 << 40, edges=307, block=1500, names=1 << 20)
"""Some chunks."""
TINY = Amounts(limit=1 << 40, edges=97, block=300, names=1 << 14)
"""A few edges at once."""


def in_small_chunks(monkeypatch: pytest.MonkeyPatch, amounts: Amounts = SMALL) -> None:
    """Lets every step need many chunks."""
    monkeypatch.setattr(partitioning, "amounts_of", lambda limit: amounts)


def cut(source: Path, out: Path, told: list[Any] | None = None, **options: Any) -> Any:
    """Cuts a file; `told` gets the progress."""
    limit = options.pop("memory_limit", "16GB")
    options = {"num_parts": 3} | options
    request = Request(source=source, **options)
    told = [] if told is None else told
    tell = lambda *facts: told.append(facts)  # noqa: E731
    return partition_file(request, out, memory_limit=limit, on_progress=tell)


def contents(folder: PartFolder) -> dict[str, Any]:
    """All that a folder holds but the names of its files: equal folders hold equal bytes."""
    parts = []
    for part in folder.contents.parts:
        files = {**part.arrays}
        if part.node_names is not None:
            files["names"] = part.node_names
        described = {name: (x.shape, x.dtype, x.bytes, x.crc32) for name, x in files.items()}
        parts.append((part.num_nodes, described))
    counts = folder.manifest.counts
    return {
        "manifest": folder.manifest,
        "counts": counts,
        "graph": folder.graph,
        "parts": parts,
    }
