"""The initial arrays of tasks, the same in every library: read from a file, or from a seed.

Imported by workers of every library: it needs NumPy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cpu.models import Model
from benchmarks.cpu.tasks import Attention

__all__ = [
    "AttentionInputs",
    "Data",
    "attention_inputs",
    "initial_parameters",
    "node_features",
    "read_data",
    "write_data",
]


@dataclass(frozen=True)
class Data:
    """A graph as plain arrays.

    Attributes:
      senders, receivers: int32 [edges].
      edge_weight: float32 [edges].
      nodes: float32 [nodes, features].
      labels: int32 [nodes], from 0.
      train_mask: bool [nodes].
      num_classes: number of classes.
    """

    senders: np.ndarray
    receivers: np.ndarray
    edge_weight: np.ndarray
    nodes: np.ndarray
    labels: np.ndarray
    train_mask: np.ndarray
    num_classes: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.nodes.shape[0]

    def missing_loops(self) -> np.ndarray:
        """int32 [missing], the nodes without an edge to themselves."""
        has_loop = np.zeros(self.num_nodes, bool)
        has_loop[self.senders[self.senders == self.receivers]] = True
        return np.flatnonzero(~has_loop).astype(np.int32)

    def edges(self, with_loops: bool) -> tuple[np.ndarray, np.ndarray]:
        """Senders and receivers, followed by the missing self-loops if requested."""
        if not with_loops:
            return self.senders, self.receivers
        loops = self.missing_loops()
        return np.concatenate([self.senders, loops]), np.concatenate([self.receivers, loops])


def write_data(path: Path, data: Data) -> None:
    """Writes a graph to an .npz file."""
    np.savez(path, **vars(data))


def read_data(path: Path) -> Data:
    """Reads a file of `write_data`."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    num_classes = int(arrays.pop("num_classes"))
    return Data(**arrays, num_classes=num_classes)


def node_features(num_nodes: int, features: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, float32 [nodes, features]."""
    return np.random.default_rng((seed, features)).standard_normal(
        (num_nodes, features), np.float32
    )


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of an attention task.

    Attributes:
      values: z, float32 [nodes, heads, features].
      sender_logits, receiver_logits: l and r, float32 [nodes, heads].
      gradient: that of y, float32 [nodes, heads, features].
    """

    values: np.ndarray
    sender_logits: np.ndarray
    receiver_logits: np.ndarray
    gradient: np.ndarray


def attention_inputs(num_nodes: int, task: Attention, seed: int = 0) -> AttentionInputs:
    """Normal numbers for a task on a graph."""
    generator = np.random.default_rng((seed, task.heads, task.features))
    rows, logits = (num_nodes, task.heads, task.features), (num_nodes, task.heads)
    values, sender, receiver, gradient = (
        generator.standard_normal(shape, np.float32) for shape in (rows, logits, logits, rows)
    )
    return AttentionInputs(values, sender, receiver, gradient)


def initial_parameters(
    model: Model, in_features: int, out_features: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """The initial parameters of training: Glorot uniform, scales 1 and biases 0.

    Args:
      model: the model.
      in_features: features of a node.
      out_features: classes.
      seed: seed of the generator.

    Returns:
      float32 arrays by "layer/name", see `Model.parameter_shapes`.
    """
    generator = np.random.default_rng(seed)
    parameters = {}
    for name, shape in model.parameter_shapes(in_features, out_features).items():
        if len(shape) == 1:
            start = np.ones if name.endswith("scale") else np.zeros
            parameters[name] = start(shape, np.float32)
        else:
            limit = np.sqrt(6 / sum(shape))
            parameters[name] = generator.uniform(-limit, limit, shape).astype(np.float32)
    return parameters
