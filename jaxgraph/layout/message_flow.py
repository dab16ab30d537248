"""The nodes that a loss needs in each layer of a model, and the edges that enter them.

Layer l of L computes the rows of nodes from which at most L - l edges lead to a node with a loss.
A part orders its rows by that number. So a layer reads the first rows of the table, and computes
the first of these. SAR, appendix B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.manifest import Flow
from jaxgraph.typed_graph import EdgeSet, TypedGraph

HOPS = "hops_to_loss"
"""The array of the nodes with the fewest edges that lead from each to a node with a loss."""
SPLITS = ("train", "val", "test")
MOST_LAYERS = 100
_LEAST_GAIN = 0.05
"""The share of an epoch's work on edges that must go at least. It is chosen: devices hold the edges
of the layers beside all edges."""
_STEP, _EVALUATION = 3, 1
"""Work of a step and of an evaluation on the edges of a layer, where a backward counts twice."""


@dataclasses.dataclass(frozen=True, eq=False)
class FlowPlan:
    """The nodes that the layers of a model compute.

    Attributes:
      flow: the names of its relations, and the splits whose nodes have a loss.
      hops: int8 [nodes], the fewest edges that lead to a node with a loss, at most layers + 1.
    """

    flow: Flow
    hops: np.ndarray

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.flow.relations)

    def most_hops(self, layer: int) -> int:
        """The most edges that lead from a receiver of layer 0, 1, ... to a node with a loss."""
        return self.num_layers - 1 - layer

    def edges_of(self, layer: int, edges: EdgeSet) -> EdgeSet:
        """The edges that enter the receivers of a layer."""
        chosen = np.flatnonzero(self.hops[edges.receivers] <= self.most_hops(layer))
        cut = [None if x is None else x[chosen] for x in (edges.edges, edges.edge_weight)]
        named = {name: values[chosen] for name, values in edges.edge_data.items()}
        ends = edges.senders[chosen], edges.receivers[chosen]
        return EdgeSet(*ends, *cut, edge_data=named)


def with_flow(graph: Graph, num_layers: int) -> tuple[TypedGraph, FlowPlan]:
    """The nodes and edges of a graph in sets, with `HOPS`, and the plan that says what layers need.

    Raises:
      ValueError: as `plan_flow`.
    """
    typed = TypedGraph.of(graph)
    ((ends, edges),) = typed.edge_sets.items()
    name, nodes = ends[0], typed.node_sets[ends[0]]
    plan = plan_flow(edges, [getattr(nodes, f"{split}_mask") for split in SPLITS], num_layers)
    nodes = nodes.with_nodes(**{HOPS: plan.hops})
    return TypedGraph({name: nodes}, {ends: edges}, graph.name, name), plan


def plan_flow(edges: EdgeSet, splits: Sequence[np.ndarray | None], num_layers: int) -> FlowPlan:
    """Plans the layers for the training nodes alone, or for the nodes of all splits.

    A step computes the planned rows. An evaluation does so too where all splits are planned for,
    and else computes all rows. The plan is the one with which both together visit fewer edges.

    Args:
      edges: the edges.
      splits: bool [nodes] or None, the masks of `SPLITS`.
      num_layers: the number of layers.

    Raises:
      ValueError: there is no training node, or both plans spare less than `_LEAST_GAIN`.
    """
    train, *others = splits
    if train is None or not train.any():
        raise ValueError(
            "message_flow: the graph has no training nodes, and a layer would compute nothing; "
            "give Graph train_mask=..., or leave message_flow out"
        )
    of_all = np.logical_or.reduce([train, *(each for each in others if each is not None)])
    everywhere, plans = num_layers * edges.num_edges, []
    for covered, of_loss in ((SPLITS[:1], train), (SPLITS, of_all)):
        hops = hops_to(of_loss, edges, num_layers)
        entering = np.cumsum(np.bincount(hops[edges.receivers], minlength=num_layers))
        planned = int(entering[:num_layers].sum())
        evaluated = planned if covered == SPLITS else everywhere
        plans.append((_STEP * planned + _EVALUATION * evaluated, covered, hops))
    work, covered, hops = min(plans, key=lambda plan: plan[0])
    whole = (_STEP + _EVALUATION) * everywhere
    if work >= (1 - _LEAST_GAIN) * whole:
        raise ValueError(
            f"message_flow={num_layers}: edges lead from so many nodes to the {int(train.sum()):,} "
            f"training nodes that {work / max(whole, 1):.0%} of the work on edges would be left; "
            "leave message_flow out"
        )
    names = tuple(f"layer {layer + 1} of {num_layers}" for layer in range(num_layers))
    return FlowPlan(Flow(names, covered), hops)


def hops_to(of_loss: np.ndarray, edges: EdgeSet, most: int) -> np.ndarray:
    """The fewest edges that lead from each node to a chosen one, int8 [nodes], at most most + 1."""
    hops = np.where(of_loss, 0, most + 1).astype(np.int8)
    for hop in range(most):
        reached = edges.senders[hops[edges.receivers] == hop]
        hops[reached] = np.minimum(hops[reached], hop + 1)
    return hops
