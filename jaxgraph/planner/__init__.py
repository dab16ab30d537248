"""Plans of what a training step keeps on the device, moves to the host and recomputes.

ROC (section 5) moves the fewest bytes. A mixed-integer program chooses what to recompute as well.
"""

from jaxgraph.planner.cache_policies import least_recently_used, no_cache, write_back_cache
from jaxgraph.planner.choices import Choices, policy_of
from jaxgraph.planner.dataflow import Dataflow, Operation, Rates, Tensor
from jaxgraph.planner.dynamic_program import least_transfer
from jaxgraph.planner.integer_program import plan_memory
from jaxgraph.planner.memory_schedule import MemorySchedule, simulate
from jaxgraph.planner.step_dataflow import Shape, training_step

__all__ = [
    "Choices",
    "Dataflow",
    "MemorySchedule",
    "Operation",
    "Rates",
    "Shape",
    "Tensor",
    "least_recently_used",
    "least_transfer",
    "no_cache",
    "plan_memory",
    "policy_of",
    "simulate",
    "training_step",
    "write_back_cache",
]


def __dir__() -> list[str]:
    return sorted(__all__)
