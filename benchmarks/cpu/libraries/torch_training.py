"""Code shared by DGL and PyG: training a torch module, and attention's inputs as tensors."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.cpu.inputs import Data, attention_inputs
from benchmarks.cpu.models import LEARNING_RATE, LOSSES, Layer, Model
from benchmarks.cpu.tasks import Attention
from benchmarks.cpu.worker import Prepared


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


def _make_module(model: Model, data: Data, convolution: Callable[[Layer], Convolution]) -> Any:
    """A model of a library's convolutions, with the initial parameters of every library."""
    sizes = data.nodes.shape[1], data.num_classes
    layers = model.layers(*sizes)
    convolutions = [convolution(layer) for layer in layers]
    module = _Stack(model, layers[:-1], convolutions)
    named: dict[str, tuple[Any, bool]] = {}
    for index, each in enumerate(convolutions):
        named |= {f"{index}/{name}": owned for name, owned in each.parameters.items()}
    for index, norm in enumerate(module.norms):
        named[f"{index}/norm/scale"] = norm.weight, False
        named[f"{index}/norm/bias"] = norm.bias, False
    with torch.no_grad():
        for name, value in model.initial_parameters(*sizes).items():
            parameter, is_transposed = named[name]
            source = tensor(value.T if is_transposed else value)
            parameter.copy_(source.reshape(parameter.shape))
    return module


def prepare_epoch(
    model: Model, data: Data, convolution: Callable[[Layer], Convolution], path: str
) -> Prepared:
    """Training by Adam on the nodes of the training mask, with layers that `convolution` makes."""
    module = _make_module(model, data, convolution)
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
        return {"losses": np.asarray([advance() for _ in range(LOSSES)], np.float32)}

    return Prepared(results, advance, path)


def prepare_attention(
    task: Attention, data: Data, attend: Callable[[Any, Any, Any], Any], path: str
) -> Prepared:
    """Attention on given values and logits; `attend` makes y of z, l and r."""
    *arrays, gradient = map(tensor, attention_inputs(data.num_nodes, task))
    arguments = [array.requires_grad_(task.backward) for array in arrays]

    def compute() -> tuple[Any, ...]:
        if task.backward:
            y = attend(*arguments)
            return y.detach(), *torch.autograd.grad(y, arguments, gradient)
        with torch.no_grad():
            return (attend(*arguments),)

    def results() -> dict[str, np.ndarray]:
        return {name: output.numpy() for name, output in zip("yzlr", compute(), strict=False)}

    return Prepared(results, compute, path)
