"""Shows the results: tables, conclusions, and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.p3.measure import Partitioning, Point, Step, Transfer

__all__ = ["conclusions", "plot", "show_partitionings", "show_steps", "show_transfers"]

RIVALS = ("aggregate first", "transform first")
ByPoint = dict[Point, dict[str, Transfer]]


def show_transfers(transfers: Sequence[Transfer], console: Console) -> None:
    """Prints the traffic of the first layer; "~" marks rows times columns, not compiled."""
    found = by_point(transfers)
    systems = list(dict.fromkeys(each.system for each in transfers))
    table = Table(
        title="First layer: MB that leave a device, forward + backward "
        "(~: rows times columns, by which all compiled ones agree), and P3's over others'"
    )
    for column in ("graph", "partition"):
        table.add_column(column)
    for column in ("devices", "features", "hidden", *systems, *(f"p3 / {r}" for r in RIVALS)):
        table.add_column(column, justify="right")
    latest = None
    for point, row in found.items():
        if latest not in (None, _block(point)):
            table.add_section()
        latest = _block(point)
        table.add_row(
            *_cells(point),
            *(_megabytes(row[system]) for system in systems),
            *(_ratio(row, rival) for rival in RIVALS),
        )
    console.print(table)


def by_point(transfers: Iterable[Transfer]) -> ByPoint:
    """Transfers by point and system."""
    found: ByPoint = {}
    for each in transfers:
        found.setdefault(each.point, {})[each.system] = each
    return found


def _block(point: Point) -> tuple[str, str, int]:
    return point.graph, point.partition, point.devices


def _cells(point: Point) -> tuple[str, ...]:
    numbers = (point.devices, point.features, point.hidden)
    return (point.graph, point.partition, *map(str, numbers))


def _megabytes(each: Transfer) -> str:
    if not each.both:
        return "0"
    mark = "" if each.is_compiled else "~"
    return f"{mark}{each.forward / 1e6:.2f} + {each.backward / 1e6:.2f}"


def _ratio(row: dict[str, Transfer], rival: str) -> str:
    ratio = row["p3"].both / row[rival].both
    text = f"1/{1 / ratio:.1f}" if ratio < 0.5 else f"{ratio:.2f}"
    return f"[red]{text}[/]" if ratio > 1 else text


def show_steps(steps: Sequence[Step], console: Console) -> None:
    """Prints the traffic and memory of a train step, and the balance of the first layer."""
    table = Table(
        title="Train step, 2 layers: MB per device; "
        "work of the first aggregation: columns x edges, millions per device"
    )
    for column in ("graph", "partition"):
        table.add_column(column)
    for column in ("devices", "features", "hidden"):
        table.add_column(column, justify="right")
    table.add_column("system")
    for column in ("sent", "features", "edges", "temporary", "work", "most / mean"):
        table.add_column(column, justify="right")
    latest = None
    for step in steps:
        if latest not in (None, step.point):
            table.add_section()
        latest = step.point
        sizes = (step.sent, step.feature_bytes, step.table_bytes, step.temporary_bytes)
        table.add_row(
            *_cells(step.point),
            step.system,
            *(f"{size / 1e6:.2f}" for size in sizes),
            _range(step.work),
            f"{step.imbalance:.3f}",
        )
    console.print(table)


def _range(work: tuple[int, ...]) -> str:
    low, high = (f"{count / 1e6:.3g}" for count in (min(work), max(work)))
    return low if low == high else f"{low} to {high}"


def show_partitionings(found: Sequence[Partitioning], console: Console) -> None:
    """Prints the time of the partitioners."""
    table = Table("graph", "partition", title="Partitioning: wall time, and balance of edges")
    for column in ("devices", "seconds", "most edges / mean"):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(
            each.graph,
            each.partition,
            str(each.devices),
            f"{each.seconds:.3f}",
            f"{each.edges:.3f}",
        )
    console.print(table)


def conclusions(
    transfers: Sequence[Transfer], steps: Sequence[Step], partitionings: Sequence[Partitioning]
) -> Iterator[str]:
    """The losses and gains of P3, in sentences.

    Args:
      transfers, steps, partitionings: the results.

    Yields:
      Lines of text.
    """
    found = by_point(transfers)
    for graph, partition in dict.fromkeys((point.graph, point.partition) for point in found):
        rows = {p: r for p, r in found.items() if (p.graph, p.partition) == (graph, partition)}
        for rival in RIVALS:
            yield f"{graph}, {partition}: {_against(rows, rival)}"
    yield (
        "cached: domain sends nothing in the first layer after the first epoch, which P3 cannot "
        "beat, where the aggregation has no parameter and no dropout comes before it; P3 then "
        "saves the aggregation, and sends the same"
    )
    yield from _of_steps(steps)
    seconds = {
        method: sum(each.seconds for each in partitionings if each.partition == method)
        for method in dict.fromkeys(each.partition for each in partitionings)
    }
    times = ", ".join(f"{method} {taken:.2f} s" for method, taken in seconds.items())
    yield f"gain of P3: no time for partitioning, since hash serves it best ({times} in all)"
    yield (
        "gain of P3: a device reads 1/N of the feature columns; and layers that must aggregate "
        "before they transform (a maximum, messages that are no linear map) have no other choice "
        "under domain than aggregate first"
    )


def _of_steps(steps: Sequence[Step]) -> Iterator[str]:
    """Sentences about the cost of P3 in edges and work, and about its balance."""
    found: dict[Point, dict[str, Step]] = {}
    for step in steps:
        found.setdefault(step.point, {})[step.system] = step
    pairs = {point: (row["p3"], row["transform first"]) for point, row in found.items()}
    edges = {point: p3.table_bytes / other.table_bytes for point, (p3, other) in pairs.items()}
    work = {point: sum(p3.work) / sum(other.work) for point, (p3, other) in pairs.items()}
    most_edges, most_work = (max(ratios, key=lambda p: ratios[p]) for ratios in (edges, work))
    yield (
        f"cost of P3: every device holds all edges unless they are pushed, up to "
        f"{edges[most_edges]:.1f} times the bytes of transform first ({_where(most_edges)}); it "
        f"aggregates up to {work[most_work]:.1f} times as many columns x edges "
        f"({_where(most_work)})"
    )
    worst = max(p3.imbalance for p3, _ in pairs.values())
    other = max(other.imbalance for _, other in pairs.values())
    yield (
        f"gain of P3: work of the first layer most / mean at most {worst:.3f} "
        f"(transform first {other:.3f})"
    )


def _against(rows: ByPoint, rival: str) -> str:
    """A sentence about the points where P3 sends more than `rival`, and by which factor."""
    ratios = {point: row["p3"].both / row[rival].both for point, row in rows.items()}
    lost = {point: ratio for point, ratio in ratios.items() if ratio > 1}
    best = min(ratios, key=lambda point: ratios[point])
    won = f"at best 1/{1 / ratios[best]:.1f} ({_where(best)})"
    if not lost:
        return f"P3 sends less than {rival} everywhere, {won}"
    worst = max(lost, key=lambda point: lost[point])
    loses = f"up to {lost[worst]:.2f} times as much ({_where(worst)})"
    if len(lost) == len(ratios):
        least = min(lost.values())
        return f"P3 LOSES to {rival} everywhere, it sends at least {least:.2f} and {loses}"
    return f"P3 LOSES to {rival} at {len(lost)} of {len(ratios)} points, it sends {loses}; {won}"


def _where(point: Point) -> str:
    return f"{point.devices} devices, {point.features} features, hidden {point.hidden}"


def plot(transfers: Sequence[Transfer], devices: int, path: Path) -> None:
    """Draws the first layer's traffic over features and over hidden features.

    Args:
      transfers: transfers with sweeps of both.
      devices: number of devices.
      path: path of the image; its suffix is its format.

    Raises:
      ImportError: matplotlib is not installed (`jaxgraph[plot]`).
    """
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("features", "hidden"), strict=True):
        drawn = curves(transfers, devices, name)
        systems = list(dict.fromkeys(system for system, _ in drawn))
        for (system, partition), (widths, sizes) in drawn.items():
            style = {"color": f"C{systems.index(system)}", "marker": "o"}
            line = "--" if partition == "metis" else "-"
            axes.plot(widths, sizes, line, label=f"{system}, {partition}", **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel=name, ylabel="MB per device, first layer", title=f"{devices} devices")
        axes.legend(fontsize="x-small")
    figure.savefig(path)


def curves(
    transfers: Iterable[Transfer], devices: int, name: str
) -> dict[tuple[str, str], tuple[list[int], list[float]]]:
    """Traffic of each system over one width, at the graph and other width with the most points.

    Args:
      transfers: transfers of all points.
      devices: number of devices.
      name: the width: "features" or "hidden".

    Returns:
      {(system, partition): (ascending widths, MB of both directions)}, without systems that send
      nothing.
    """
    other = "hidden" if name == "features" else "features"
    some = [each for each in transfers if each.point.devices == devices and each.both]
    blocks: dict[tuple[str, int], list[Transfer]] = {}
    for each in some:
        blocks.setdefault((each.point.graph, getattr(each.point, other)), []).append(each)
    swept = max(
        blocks.values(),
        key=lambda block: len({getattr(each.point, name) for each in block}),
        default=[],
    )
    found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    for each in sorted(swept, key=lambda each: getattr(each.point, name)):
        widths, sizes = found.setdefault((each.system, each.point.partition), ([], []))
        widths.append(getattr(each.point, name))
        sizes.append(each.both / 1e6)
    return found
