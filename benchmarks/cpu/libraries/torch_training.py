"""Code shared by DGL and PyG: training a torch module, and attention's inputs as tensors."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.cpu.inputs import Data, attention_inputs, initial_parameters
from benchmarks.cpu.libraries.interface import Prepared
from benchmarks.cpu.models import LEARNING_RATE, MODELS, Layer, Model
from benchmarks.cpu.tasks import Attention, Epoch

__all__ = [
    "Attend",
    "Convolution",
    "make_module",
    "prepare_attention",
    "prepare_epoch",
    "tensor",
]

Attend = Callable[[Any, Any, Any], Any]
"""y of (z, l, r): [nodes, heads, features] of [nodes, heads, features] and twice [nodes, heads]."""


@dataclass(frozen=True)
class Convolution:
    """A layer of a library.

    Attributes:
      module: its parameters.
      apply: y [nodes, width] of x [nodes, in_features].
      parameters: the module's own by jaxgraph's name; True marks [out, in] matrices.
    """

    module: Any
    apply: Callable[[Any], Any]
    parameters: Mapping[str, tuple[Any, bool]]


def tensor(array: np.ndarray) -> Any:
    """A tensor that shares the array's memory."""
    return torch.from_numpy(np.ascontiguousarray(array))


class _Stack(torch.nn.Module):
    """Convolutions, and the layers between two of them."""

    def __init__(self, model: Model, layers: tuple[Layer, ...], convolutions: list[Convolution]):
        super().__init__()
        self.convolutions = torch.nn.ModuleList(each.module for each in convolutions)
        self.norms = torch.nn.ModuleList(
            torch.nn.BatchNorm1d(layer.out_features) for layer in layers if model.batch_norm
        )
        self._apply_each = [each.apply for each in convolutions]
        self._activation = functional.elu if model.name == "gat" else functional.relu

    def forward(self, x: Any) -> Any:
        last = len(self._apply_each) - 1
        for index, apply in enumerate(self._apply_each):
            x = apply(x)
            if index < last:
                if self.norms:
                    x = self.norms[index](x)
                x = self._activation(x)
        return x


def make_module(
    model: Model, data: Data, convolution: Callable[[Layer], Convolution]
) -> tuple[Any, dict[str, tuple[Any, bool]]]:
    """A model of a library's convolutions, with the initial parameters of every library.

    Args:
      model: the model.
      data: the graph.
      convolution: makes a layer.

    Returns:
      The module, and its parameters by "layer/name", with True for those that are transposed.
    """
    in_features = data.nodes.shape[1]
    layers = model.layers(in_features, data.num_classes)
    convolutions = [convolution(layer) for layer in layers]
    module = _Stack(model, layers[:-1], convolutions)
    named: dict[str, tuple[Any, bool]] = {}
    for index, each in enumerate(convolutions):
        named |= {f"{index}/{name}": owned for name, owned in each.parameters.items()}
    for index, norm in enumerate(module.norms):
        named[f"{index}/norm/scale"] = norm.weight, False
        named[f"{index}/norm/bias"] = norm.bias, False
    with torch.no_grad():
        for name, value in initial_parameters(model, in_features, data.num_classes).items():
            parameter, is_transposed = named[name]
            source = tensor(value.T if is_transposed else value)
            parameter.copy_(source.reshape(parameter.shape))
    return module, named


def prepare_epoch(
    task: Epoch, data: Data, convolution: Callable[[Layer], Convolution], path: str
) -> Prepared:
    """Training by Adam on the nodes of the training mask.

    Args:
      task: the task.
      data: the graph.
      convolution: makes a layer.
      path: for the report.

    Returns:
      The task, ready.
    """
    model = MODELS[task.model]
    module, named = make_module(model, data, convolution)
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    x = tensor(data.nodes)
    chosen = tensor(np.flatnonzero(data.train_mask))
    labels = tensor(data.labels.astype(np.int64))[chosen]

    def advance() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(x)[chosen], labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    def results() -> dict[str, np.ndarray]:
        losses = [advance()]
        gradients = {
            name: (owned.grad.T if is_transposed else owned.grad).numpy().copy()
            for name, (owned, is_transposed) in named.items()
            if model.has_effect(name)
        }
        losses.append(advance())
        return {"losses": np.asarray(losses, np.float32), **gradients}

    def run() -> None:
        advance()

    return Prepared(results, run, path)


def prepare_attention(task: Attention, data: Data, attend: Attend, path: str) -> Prepared:
    """Attention on given values and logits.

    Args:
      task: the task.
      data: the graph.
      attend: the library's attention.
      path: for the report.

    Returns:
      The task, ready.
    """
    inputs = attention_inputs(data.num_nodes, task)
    arguments = [
        tensor(array).requires_grad_(task.backward)
        for array in (inputs.values, inputs.sender_logits, inputs.receiver_logits)
    ]
    gradient = tensor(inputs.gradient)

    def compute() -> tuple[Any, ...]:
        if task.backward:
            y = attend(*arguments)
            return y.detach(), *torch.autograd.grad(y, arguments, gradient)
        with torch.no_grad():
            return (attend(*arguments),)

    def results() -> dict[str, np.ndarray]:
        return {name: output.numpy() for name, output in zip("yzlr", compute(), strict=False)}

    def run() -> None:
        compute()

    return Prepared(results, run, path)
