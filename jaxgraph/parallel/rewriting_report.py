"""A report on a message function: what moved to the nodes, what is fused, and what was left."""

from __future__ import annotations

import dataclasses

from jaxgraph.ops.core.message_programs import inner_jaxprs
from jaxgraph.ops.core.rewriting.cut import costs, is_elementwise
from jaxgraph.ops.core.rewriting.rewrite import Rewritten
from jaxgraph.ops.core.rewriting.steps import Step
from jaxgraph.parallel.checks.authors import user_line


@dataclasses.dataclass(frozen=True)
class RewritingReport:
    """The steps of a message function, by where `propagate` runs them; prints as text.

    Attributes:
      moved: by end, the operations that run once per node, with the user's lines.
      row_bytes: by end of `moved`, the bytes of a row that an edge reads, before and after.
      split: products of concatenations that became a product for each part.
      at_edges: the operations that run for every edge.
      combining: those among them that combine features.
      is_fused: whether these are all element-wise, so that they are computed as rows are gathered.
      reason: why nothing moved; "" where something did.
    """

    moved: dict[str, tuple[str, ...]]
    row_bytes: dict[str, tuple[int, int]]
    split: tuple[str, ...]
    at_edges: tuple[str, ...]
    combining: tuple[str, ...]
    is_fused: bool
    reason: str

    def __str__(self) -> str:
        lines = []
        for end, operations in self.moved.items():
            before, after = self.row_bytes[end]
            lines.append(
                f"{end}: {', '.join(operations)} once per node; an edge reads {after} bytes "
                f"({before} before)"
            )
        lines += [f"split by the parts of a concatenation: {each}" for each in self.split]
        if self.reason:
            lines.append(f"nothing moved: {self.reason}")
        if not self.at_edges:
            lines.append("edges: nothing is left to compute")
        elif self.is_fused:
            lines.append(f"edges: {', '.join(self.at_edges)}: element-wise, fused with the gather")
        else:
            at_edges, combining = ", ".join(self.at_edges), ", ".join(self.combining)
            lines.append(f"edges: {at_edges}; not fused: {combining} combines features")
        return "\n".join(lines)


def report_of(found: Rewritten) -> RewritingReport:
    """Describes the rewriting of a message function."""
    at_edges = [step for step in found.remaining if costs(step)]
    return RewritingReport(
        {each.end: _names(list(each.steps)) for each in found.moved},
        {each.end: (each.bytes_before, each.bytes_after) for each in found.moved},
        tuple(map(_name, found.split)),
        _names(at_edges),
        _names([step for step in at_edges if not is_elementwise(step)]),
        found.is_elementwise,
        found.reason,
    )


def _names(steps: list[Step]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_name(step) for step in steps if costs(step)))


def _name(step: Step) -> str:
    name, line = step.name, user_line(step.equation)
    # A function with its own derivative, such as jax.nn.relu, is a call of a named function.
    for body in inner_jaxprs(step.equation):
        for call in body.eqns[:1]:
            name = call.params.get("name", name)
    return f"{name} ({line})" if line else name
