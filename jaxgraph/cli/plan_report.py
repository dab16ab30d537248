"""The table of a plan, advice about its modes, and its picture."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from jaxgraph.cli.display import byte_text, second_text

if TYPE_CHECKING:
    from jaxgraph.planner import Considered

__all__ = [
    "advice",
    "check_can_draw",
    "plan_picture",
    "plan_table",
    "policies",
    "reasons",
    "row_of",
]

FEW, MANY = 0.05, 1.0
"""Rows of other parts over own rows: as on meshes, and where they are most of the graph."""


def row_of(considered: "Considered") -> dict[str, Any]:
    """The figures of one way to run a model, as numbers and texts."""
    option, run = considered.option, considered.run
    found = {
        "mode": option.mode,
        "label": option.label,
        **option.shard_options(),
        "partitioner": option.method,
        "halo_share": considered.halo_share,
        "fits": considered.fits,
        "why_not": considered.why_not,
        "seconds": considered.seconds,
        "policy": [each.in_words() for each in considered.policy or ()],
    }
    if run is None:
        return found
    return found | {
        "memory": run.memory.total,
        "arguments": run.memory.arguments,
        "temporary": run.memory.temporary,
        "host": run.memory.host,
        "is_compiled": run.memory.is_compiled,
        "compiled_for": run.compiled_for,
        "sent_inside": sum(run.sent.inside.values()),
        "sent_between": sum(run.sent.between.values()),
        "flops": run.work.flops,
        "bytes": run.work.bytes,
        "compute_seconds": run.work.seconds,
        "communication_seconds": run.communication,
        "hidden_seconds": run.hidden,
    }


def plan_table(title: str, found: Sequence["Considered"], limit: int) -> Table:
    """Makes the table of a plan.

    Args:
        title: What is planned, and for what.
        found: The ways to run it.
        limit: Bytes of one device.

    Returns:
        The table, in the order given.
    """
    caption = f"of one device; limit {byte_text(limit)}; ~ is predicted, not compiled"
    table = Table(title=Text(title), caption=caption, box=SIMPLE, padding=0, pad_edge=False)
    for column in ("mode", "cut by"):
        table.add_column(column, no_wrap=True)
    for column in ("halo", "args", "temp", "host", "inside", "between", "step"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for each in found:
        table.add_row(each.option.label, each.option.method, *_cells(each))
    return table


def _cells(each: "Considered") -> list[str]:
    if each.run is None:
        return [*[""] * 7, "no"]
    run, mark = each.run, "" if each.run.memory.is_compiled else "~"
    return [
        f"{each.halo_share:.2g}",
        _short(run.memory.arguments),
        mark + _short(run.memory.temporary),
        _short(run.memory.host),
        _short(sum(run.sent.inside.values())),
        _short(sum(run.sent.between.values())),
        second_text(each.seconds).replace(" ", ""),
        "yes" if each.fits else "no",
    ]


def _short(count: int) -> str:
    """Bytes by three digits."""
    power = min(max(math.floor(math.log10(count)) // 3, 0), 4) if count else 0
    return f"{count / 1000**power:.3g}{('', 'k', 'M', 'G', 'T')[power]}"


def reasons(found: Sequence["Considered"]) -> list[str]:
    """Why ways to run a model do not fit or cannot be run, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for each in found:
        if each.why_not:
            name = f"{each.option.label} by {each.option.method}"
            by_reason.setdefault(each.why_not, []).append(name)
    return [f"{'; '.join(names)}: {reason}" for reason, names in by_reason.items()]


def policies(found: Sequence["Considered"]) -> list[str]:
    """The tensors that layers keep, recompute and offload, where a way needs another policy."""
    return [
        f"{way.option.label} by {way.option.method} fits where layer {index} {each.in_words()}"
        for way in found
        for index, each in enumerate(way.policy or ())
    ]


def advice(found: Sequence["Considered"], source: Any) -> list[str]:
    """Advises on the modes, for a graph with such halos.

    Args:
        found: The ways to run a model.
        source: The graph, or its counts.

    Returns:
        Sentences.
    """
    shares = [each.halo_share for each in found if not math.isnan(each.halo_share)]
    if not shares or not max(shares):
        return []
    least = min(shares)
    lines = []
    if least < FEW:
        lines.append(
            f"A part needs {least:.1%} of its rows from others, as on meshes: domain is right here "
            "and sar gains nothing."
        )
    elif least > MANY:
        lines.append(
            f"A part needs {least:.1f} times its own rows from others: sar is made for such graphs "
            "and never holds more than two parts' rows."
        )
    else:
        lines.append(
            f"A part needs {least:.0%} of its own rows from others. sar is for graphs whose halos "
            "are most of the graph; where they are about 1%, domain is right."
        )
    lines.append(
        "p3 is for features that must be aggregated before they are mapped; where a layer maps to "
        "fewer columns first, the other modes send less."
    )
    if not hasattr(source, "senders"):
        lines.append(
            "Halos are those of a model of the degrees, and for metis of an assumed share "
            "(--halo-share); times are those of a roofline."
        )
    else:
        lines.append("Times are those of a roofline.")
    if sum(each.option.method == "metis" for each in found) > 1:
        lines.append(
            "Times of ways that metis cuts are not ranked reliably, as measured on CPU devices: "
            "time the fastest few before a long run."
        )
    return lines


def check_can_draw(option: str) -> None:
    """Raises a ValueError if Matplotlib is not installed; `option` asks for the picture."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{option}: drawing needs matplotlib: pip install 'jaxgraph[plot]'")


def plan_picture(by_count: Mapping[int, Sequence["Considered"]], path: Path) -> None:
    """Draws memory per device over the number of devices, a line for each mode.

    Args:
        by_count: The ways to run a model, by the number of devices.
        path: Of the image; its suffix is its format.
    """
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    lines: dict[str, dict[int, float]] = {}
    for count, found in by_count.items():
        for each in found:
            if each.run is not None:
                name = f"{each.option.label}, {each.option.method}" if count > 1 else ""
                lines.setdefault(name, {})[count] = each.run.memory.total / 1e9
    alone = lines.pop("", {})
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, sizes in lines.items():
        sizes = alone | sizes
        axes.plot(list(sizes), list(sizes.values()), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="devices", ylabel="GB per device", yscale="log")
    axes.set_xticks(list(by_count), [str(count) for count in by_count])
    axes.legend(fontsize=7)
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)
