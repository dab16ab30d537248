"""`jaxgraph plot`: the curves of training runs, drawn from their logs or their JSON files."""

import importlib.util
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxgraph.cli.command import REQUIRED, Options, option
from jaxgraph.run_log import read_log
from jaxgraph.written_file import check_writable, write_atomically

_FORMATS = (".png", ".svg", ".pdf")
_LOSSES = {"loss": "training", "val_loss": "validation"}
"""The lists of losses, and the names of their curves."""
_STYLES = ("-", "--", ":", "-.")

Curves = dict[str, list[tuple[int, float]]]
"""The epochs and the values of each curve of a run, by its name."""


@dataclass(frozen=True, kw_only=True)
class PlotOptions(Options):
    """The options of `jaxgraph plot`."""

    runs: list[Path] = option(
        "Logs of `train --log`, or files of `train --json`.", REQUIRED, metavar="RUNS..."
    )
    out: Path = option("The picture: .png, .svg or .pdf.", REQUIRED, names=["--out", "-o"])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out.suffix not in _FORMATS:
            raise ValueError(f"--out: {self.out} ends in none of {', '.join(_FORMATS)}.")


def run_plot(options: PlotOptions) -> None:
    """Draw the loss and the metrics of training runs over their epochs."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--out: drawing needs matplotlib: pip install 'jaxgraph[plot]'")
    check_writable("--out", options.out)
    names = [path.stem for path in options.runs]
    if len(set(names)) < len(names):
        names = [str(path) for path in options.runs]
    runs = {name: read_curves(path) for name, path in zip(names, options.runs, strict=True)}
    write_atomically(options.out, _picture(runs, options.out.suffix[1:]))


def read_curves(path: Path) -> Curves:
    """Reads the curves of a run: losses, and metrics by split and name, such as "val accuracy"."""
    history: dict[str, Any] | None = _history(path)
    if history is None:
        lines = read_log(path)
        history = {name: [line.get(name) for line in lines] for name in ("epoch", *_LOSSES)}
        of_last = lines[-1].get("metrics") or {} if lines else {}
        history["metrics"] = {
            split: {name: [_metric(line, split, name) for line in lines] for name in names}
            for split, names in of_last.items()
        }
    if not history["loss"]:
        raise ValueError(f"{path} holds no epoch; expected a run of one epoch at least.")
    curves = {shown: history[name] for name, shown in _LOSSES.items()}
    for split, metrics in history.get("metrics", {}).items():
        if split != "train":
            curves |= {f"{split} {name}": metrics[name] for name in metrics if name != "loss"}
    epochs = history.get("epoch") or range(1, len(history["loss"]) + 1)
    points = {name: zip(epochs, values, strict=True) for name, values in curves.items()}
    return {name: [each for each in x if each[1] is not None] for name, x in points.items()}


def _metric(line: dict[str, Any], split: str, name: str) -> float | None:
    return (line.get("metrics") or {}).get(split, {}).get(name)


def _history(path: Path) -> dict[str, Any] | None:
    """The history in the JSON file of a run, or None where the file is another one."""
    try:
        history = json.loads(path.read_bytes())["history"]
        return history if _LOSSES.keys() <= history.keys() else None
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None


def _picture(runs: dict[str, Curves], kind: str) -> bytes:
    """Draws losses on the left, and metrics on the right where there are some."""
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    losses = _LOSSES.values()
    has_metrics = any(curves.keys() - losses for curves in runs.values())
    figure = Figure(figsize=(10 if has_metrics else 5, 4), layout="constrained")
    axes: Sequence[Any] = figure.subplots(1, 1 + has_metrics, squeeze=False)[0]
    for number, (run, curves) in enumerate(runs.items()):
        for index, (name, points) in enumerate(curves.items()):
            axis = axes[0] if name in losses else axes[1]
            style = _STYLES[index % len(_STYLES)]
            axis.plot(*zip(*points, strict=True), style, color=f"C{number}", label=f"{run}: {name}")
    for axis, label in zip(axes, ("loss", "metrics"), strict=False):
        axis.set(xlabel="epoch", ylabel=label)
        axis.legend(fontsize=7)
    drawn = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(drawn, format=kind)
    return drawn.getvalue()
