"""The plan of a training step, before it runs: where nodes go, what a device holds, which mode.

A cost model learned from measured times predicts the cost of a part. A dry run tells the memory,
the traffic and the time of a step on a machine, and `choose` takes the mode. Only `profile` runs
programs. Submodules are imported on first use: most of them do not import jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxgraph.planner.choice import Considered, choose, consider
    from jaxgraph.planner.cost.linear_model import CostModel, Sample, fit_layers, node_cost
    from jaxgraph.planner.cost.online import profile
    from jaxgraph.planner.degree_model import GraphCounts
    from jaxgraph.planner.plan import Option, Plan, load_plan
    from jaxgraph.planner.sampled import SampledChoice, choose_for_samples
    from jaxgraph.planner.streaming import fewest_parts, streamed_needs
    from jaxgraph.planner.targets import Target, find_target
    from jaxgraph.planner.typed_counts import TypedCounts

_MODULES = {
    "choice": ("Considered", "choose", "consider"),
    "cost.linear_model": ("CostModel", "Sample", "fit_layers", "node_cost"),
    "cost.online": ("profile",),
    "degree_model": ("GraphCounts",),
    "plan": ("Option", "Plan", "load_plan"),
    "sampled": ("SampledChoice", "choose_for_samples"),
    "streaming": ("fewest_parts", "streamed_needs"),
    "targets": ("Target", "find_target"),
    "typed_counts": ("TypedCounts",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Considered",
    "CostModel",
    "GraphCounts",
    "Option",
    "Plan",
    "Sample",
    "SampledChoice",
    "Target",
    "TypedCounts",
    "choose",
    "choose_for_samples",
    "consider",
    "fewest_parts",
    "find_target",
    "fit_layers",
    "load_plan",
    "node_cost",
    "profile",
    "streamed_needs",
]

if not TYPE_CHECKING:  # pyright sees the imports above and reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
