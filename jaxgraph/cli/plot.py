"""`jaxgraph plot`: the curves of training runs, drawn from their logs or their JSON files."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxgraph.cli.plan_report import check_can_draw
from jaxgraph.run_log import read_log
from jaxgraph.written_file import check_writable, write_atomically

__all__ = ["Curves", "PlotOptions", "read_curves", "run_plot"]

FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """The options of `jaxgraph plot`."""

    runs: Annotated[
        list[Path],
        typer.Argument(help="Logs of `train --log`, or files of `train --json`."),
    ]
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture: .png, .svg or .pdf.")]

    def __post_init__(self) -> None:
        """Checks the suffix of the picture."""
        if self.out.suffix[1:] not in FORMATS:
            raise ValueError(
                f"--out: {self.out} has no suffix of a picture; expected one of "
                f"{', '.join(f'.{each}' for each in FORMATS)}."
            )


@dataclass(frozen=True)
class Curves:
    """The curves of a run.

    Args:
        name: Of the run.
        epochs: The number of each epoch.
        loss: The training loss of each epoch; None where it is unknown.
        val_loss: The validation loss, likewise.
        metrics: Further metrics after each epoch, by split and name, such as "val accuracy".
    """

    name: str
    epochs: Sequence[int]
    loss: Sequence[float | None]
    val_loss: Sequence[float | None]
    metrics: dict[str, list[float | None]] = field(default_factory=dict)


def run_plot(options: PlotOptions) -> None:
    """Draw the loss and the metrics of training runs over their epochs."""
    check_can_draw("--out")
    check_writable("--out", options.out)
    names = [path.stem for path in options.runs]
    repeated = len(set(names)) < len(names)
    curves = [read_curves(path, str(path) if repeated else path.stem) for path in options.runs]
    write_atomically(options.out, _picture(curves, options.out.suffix[1:]))


def read_curves(path: Path, name: str) -> Curves:
    """Reads the curves of a run.

    Args:
        path: A log, or the JSON file of a run.
        name: Of the run.

    Returns:
        Its curves.

    Raises:
        ValueError: The file is neither, or holds no epoch.
        OSError: It cannot be read.
    """
    lines = _history(path)
    if lines is None:
        lines = read_log(path)
    if not lines:
        raise ValueError(f"{path} holds no epoch; expected a run of one epoch at least.")
    metrics: dict[str, list[float | None]] = {}
    for split in ("val", "test"):
        for metric in (lines[0].get("metrics") or {}).get(split, {}):
            if metric != "loss":
                metrics[f"{split} {metric}"] = [_metric(line, split, metric) for line in lines]
    return Curves(
        name,
        [line["epoch"] for line in lines],
        [line.get("loss") for line in lines],
        [line.get("val_loss") for line in lines],
        metrics,
    )


def _metric(line: dict[str, Any], split: str, metric: str) -> float | None:
    return line.get("metrics", {}).get(split, {}).get(metric)


def _history(path: Path) -> list[dict[str, Any]] | None:
    """The epochs of a JSON file of a run, or None where the file is none."""
    try:
        read = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    history = read.get("history") if isinstance(read, dict) else None
    if not isinstance(history, dict) or not isinstance(history.get("loss"), list):
        return None
    metrics = history.get("metrics", {})
    return [
        {
            "epoch": index + 1,
            "loss": loss,
            "val_loss": history["val_loss"][index],
            "metrics": {
                split: {name: values[index] for name, values in of_split.items()}
                for split, of_split in metrics.items()
            },
        }
        for index, loss in enumerate(history["loss"])
    ]


def _picture(runs: Sequence[Curves], kind: str) -> bytes:
    """Draws losses on the left, and metrics on the right where there are some."""
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    wide = any(run.metrics for run in runs)
    figure = Figure(figsize=(10 if wide else 5, 4), layout="constrained")
    axes = figure.subplots(1, 1 + wide, squeeze=False)[0]
    for number, run in enumerate(runs):
        color = f"C{number}"
        _draw(axes[0], run, run.loss, color, "-", f"{run.name}: training")
        _draw(axes[0], run, run.val_loss, color, "--", f"{run.name}: validation")
        for style, (metric, values) in zip(("--", ":", "-."), run.metrics.items(), strict=False):
            _draw(axes[1], run, values, color, style, f"{run.name}: {metric}")
    axes[0].set(xlabel="epoch", ylabel="loss")
    for each in axes[1:]:
        each.set(xlabel="epoch", ylabel="metrics")
    for each in axes:
        each.legend(fontsize=7)
    drawn = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(drawn, format=kind)
    return drawn.getvalue()


def _draw(
    axes: Any, run: Curves, values: Sequence[float | None], color: str, style: str, label: str
) -> None:
    known = [(x, y) for x, y in zip(run.epochs, values, strict=True) if y is not None]
    if known:
        axes.plot(*zip(*known, strict=True), style, color=color, label=label)
