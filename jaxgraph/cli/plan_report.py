"""The table of a plan, and remarks about its ways."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from jaxgraph.cli.display import byte_text, second_text

if TYPE_CHECKING:
    from jaxgraph.planner import Considered

__all__ = ["plan_table", "remarks"]


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
    memory, sent = each.run.memory, each.run.sent
    return [
        f"{each.halo_share:.2g}",
        _short(memory.arguments),
        ("" if memory.is_compiled else "~") + _short(memory.temporary),
        _short(memory.host),
        _short(sum(sent.inside.values())),
        _short(sum(sent.between.values())),
        second_text(each.seconds).replace(" ", ""),
        "yes" if each.fits else "no",
    ]


def _short(count: int) -> str:
    """Bytes by three digits."""
    power = min(max(math.floor(math.log10(count)) // 3, 0), 4) if count else 0
    return f"{count / 1000**power:.3g}{('', 'k', 'M', 'G', 'T')[power]}"


def remarks(found: Sequence["Considered"]) -> list[str]:
    """Why ways do not fit or cannot be run, each reason once, and policies under which some fit."""
    by_reason: dict[str, list[str]] = {}
    for each in found:
        reasons = [each.why_not] if each.why_not else []
        for index, policy in enumerate(each.policy or ()):
            reasons.append(f"fits where layer {index} {policy.in_words()}")
        for reason in reasons:
            name = f"{each.option.label} by {each.option.method}"
            by_reason.setdefault(reason, []).append(name)
    lines = [f"{'; '.join(names)}: {reason}" for reason, names in by_reason.items()]
    if sum(each.option.method == "metis" for each in found) > 1:
        lines.append(
            "Times of ways that metis cuts are not ranked reliably, as measured on CPU devices: "
            "time the fastest few before a long run."
        )
    return lines
