"""The amounts that are read at once under a limit of memory, and the least limit that is enough."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

_BYTES_PER_NODE = 48
"""Tables with an entry per node: part, row, order, degrees, and the temporary ones of sorting."""
_BYTES_PER_EDGE = 85
"""The edges of one part while they are ordered, and while its arrays are made."""
_LEAST = 1 << 28
_LONGEST_BLOCK, _LARGEST_CHUNK = 1 << 25, 1 << 21


@dataclasses.dataclass(frozen=True)
class Amounts:
    """The amounts that are held at once.

    Attributes:
      limit: bytes of resident memory of the process.
      edges: of a chunk.
      block: bytes of a block of text.
      names: bytes of distinct names.
    """

    limit: int
    edges: int
    block: int
    names: int

    def rows(self, row_bytes: int) -> int:
        """Rows of so many bytes that are read at once."""
        return max(self.block // max(row_bytes, 1), 1)


def amounts_of(limit: int) -> Amounts:
    """Divides a limit of memory."""
    if limit < _LEAST:
        raise ValueError(
            f"memory_limit: got {limit:,} bytes; the program alone takes {_LEAST:,}. Give more"
        )
    return Amounts(
        limit, min(limit // 1000, _LARGEST_CHUNK), min(limit // 64, _LONGEST_BLOCK), limit // 4
    )


def check_limit(limit: int, num_nodes: int, part_edges: list[int], part_bytes: int) -> None:
    """Checks that the largest part fits a limit, before the parts are ordered."""
    resident = _resident()
    fixed = resident + num_nodes * _BYTES_PER_NODE
    largest = max(part_edges)
    needed = fixed + largest * _BYTES_PER_EDGE + 2 * part_bytes
    if needed <= limit:
        return
    advice = f"give a limit of {-(-needed // 10**8) / 10:.1f}GB"
    per_part, room = largest * _BYTES_PER_EDGE + 2 * part_bytes, limit - fixed
    if room > 0:
        parts = -(-len(part_edges) * per_part // room)
        advice += f", or cut the graph into about {parts} parts"
    raise ValueError(
        f"memory_limit: {limit:,} bytes are not enough: the process holds {resident:,}, and there "
        f"are {num_nodes:,} nodes and {largest:,} edges in the largest of {len(part_edges)} parts, "
        "which is made in memory; "
        f"{advice}. What was done is kept for the same command with a larger limit"
    )


def _resident() -> int:
    """Bytes of memory that the process holds now."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else _LEAST
