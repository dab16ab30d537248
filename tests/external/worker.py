"""Cuts a file in small chunks, and tells each one, so that another process can kill this one.

python -m tests.external.worker FILE OUT [TELL] [key=value of Request ...]
"""

import sys
from pathlib import Path

from jaxgraph.external import Request, partition_file, partitioning
from tests.external.folders import TINY


def main() -> None:
    """Cuts the file, and prints a line for each chunk of each step."""
    source, out = map(Path, sys.argv[1:3])
    further = {name: value == "True" for name, _, value in (x.partition("=") for x in sys.argv[3:])}
    partitioning.amounts_of = lambda limit: TINY
    partition_file(
        Request(source=source, num_parts=3, **further),  # pyright: ignore[reportArgumentType]
        out,
        memory_limit="1GB",
        on_progress=lambda step, done, total: print(step, done, flush=True),
    )


if __name__ == "__main__":
    main()
