"""Reads damaged files one after the other, in a process whose memory and time are limited.

Run with the first case, the number after the last, a folder, and a path for the results. The number
of each case is written there before it is read, so that the parent knows which case ended the
process.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import polars

import jaxgraph
from jaxgraph.graph import Graph
from jaxgraph.typed_graph import TypedGraph
from tests.datasets.mutations import mutated
from tests.datasets.valid_files import FORMATS

MOST_MEMORY = 1 << 30
"""Bytes of address space that a case may use in addition to those at the start."""
MOST_SECONDS = 20
OURS = str(Path(jaxgraph.__file__).parent)


def damaged_files(case: int, folder: Path) -> str:
    """Writes the files of a case, one of them damaged, and returns the name of the format."""
    rng = Random(case)
    name = list(FORMATS)[case % len(FORMATS)]
    files = FORMATS[name].files
    damaged = rng.choice([path for path in files if files[path]])
    for path, content in files.items():
        if not content:
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path == damaged:
            content = mutated(rng, content, FORMATS[name].kind(path))
        target.write_bytes(content)
    return name


def outcome(name: str, folder: Path) -> str:
    """Reads a graph, and returns "graph", "refused", or the name of another exception."""
    try:
        graph = FORMATS[name].read(folder)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        kind = isinstance(error, ValueError)
        if kind and frames[-1].filename.startswith(OURS) and str(error):
            return "refused"
        return "".join(traceback.format_exception(error))
    assert isinstance(graph, Graph | TypedGraph)
    return "graph"


def main(first: int, count: int, folder: Path, report: Path) -> None:
    """Reads the cases from the first one to the last before a number."""
    # Polars reserves memory for its threads.
    polars.read_csv(b"0", has_header=False)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    counts: Counter[str] = Counter()
    with report.open("a", buffering=1) as stream:
        for case in range(first, count):
            stream.write(json.dumps({"case": case}) + "\n")
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + MOST_SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            shutil.rmtree(folder, ignore_errors=True)
            name = damaged_files(case, folder)
            found = outcome(name, folder)
            if found not in ("graph", "refused"):
                stream.write(json.dumps({"case": case, "format": name, "raised": found}) + "\n")
                found = "raised"
            counts[found] += 1
            counts[f"{found}: {name}"] += 1
        stream.write(json.dumps({"counts": counts}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
