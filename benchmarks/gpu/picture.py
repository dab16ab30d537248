"""Draws the layers of a run on a GPU beside PyG's.

python -m benchmarks.gpu.picture gpu.json docs/speed.svg
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import write_plot
from benchmarks.gpu.contestant import OURS

Bar = tuple[str, dict[str, float]]
"""A layer on a graph, and milliseconds by contestant."""


def bars(record: dict[str, Any]) -> list[Bar]:
    """The layers that jaxgraph and a peer ran.

    Args:
      record: as `python -m benchmarks.gpu --json` writes it.

    Returns:
      A bar for each, jaxgraph's milliseconds first.
    """
    found: list[Bar] = []
    for graph, rows in record["rows"].items():
        times: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["seconds"] and row["task"].startswith(("gat ", "gcn ")):
                median = statistics.median(row["seconds"])
                times.setdefault(row["task"], {})[row["contestant"]] = 1e3 * median
        size = graph.removesuffix("-size")
        found += [
            (f"{task}\n{size}'s size", {OURS: by.pop(OURS), **by})
            for task, by in times.items()
            if OURS in by and len(by) > 1
        ]
    return found


def draw(found: Sequence[Bar], title: str, path: Path) -> None:
    """Draws horizontal bars on a logarithmic axis.

    Args:
      found: the bars.
      title: of the picture.
      path: of the image; its suffix is its format.

    Raises:
      ImportError: matplotlib is not installed (`jaxgraph[plot]`).
    """
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    contestants = list(dict.fromkeys(name for _, times in found for name in times))
    figure = Figure(figsize=(7, 0.75 * len(found) + 1), layout="constrained")
    axes, height = figure.subplots(), 0.8 / len(contestants)
    for index, name in enumerate(contestants):
        places = [place + index * height for place, (_, times) in enumerate(found) if name in times]
        values = [times[name] for _, times in found if name in times]
        drawn = axes.barh(places, values, height, label=name)
        axes.bar_label(drawn, fmt="%.3g", padding=2, fontsize=7)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(found))])
    axes.set_yticklabels([label for label, _ in found], fontsize=8)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="milliseconds, less is better", title=title)
    axes.margins(x=0.1)
    axes.legend(fontsize=8)
    write_plot(figure, path)


def main() -> None:
    """Reads the command line and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("record", type=Path, help="written by benchmarks.gpu --json")
    parser.add_argument("picture", type=Path, help="needs matplotlib")
    options = parser.parse_args()
    record = json.loads(options.record.read_text())
    title = f"{record['device']}, jax {record['jax']}, {record['date']}"
    draw(bars(record), title, options.picture)


if __name__ == "__main__":
    main()
