"""Runs METIS on arrays in a folder; ``jaxgraph.partition.metis`` starts this program.

It is a separate program, so that a crash inside METIS does not end the caller's process. It is
started by its path and imports nothing of jaxgraph, so that it starts fast.

METIS: Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular
Graphs", 1998; its volume objective: METIS manual, METIS_OPTION_OBJTYPE.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    """Partitions the graph in a folder.

    Reads ``starts.npy`` [num_nodes + 1], ``neighbours.npy`` [starts[-1]], ``weights.npy``
    [num_nodes] (all of integers) and ``settings.json`` (num_parts, seed, objective, recursive,
    attempts); writes ``assignment.npy``, int32 [num_nodes].
    """
    import pymetis

    settings = json.loads((folder / "settings.json").read_text())
    integer = pymetis.zero_copy_dtype()
    starts, neighbours, weights = (
        np.load(folder / f"{name}.npy").astype(integer)
        for name in ("starts", "neighbours", "weights")
    )
    objective = pymetis.ObjType.VOL if settings["objective"] == "volume" else pymetis.ObjType.CUT
    options = pymetis.Options(
        seed=settings["seed"],
        ncuts=settings["attempts"],
        objtype=int(objective),
    )
    result = pymetis.part_graph(
        settings["num_parts"],
        pymetis.CSRAdjacency(adj_starts=starts, adjacent=neighbours),
        vweights=weights,
        recursive=settings["recursive"],
        options=options,
    )
    np.save(folder / "assignment.npy", np.asarray(result.vertex_part, dtype=np.int32))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
