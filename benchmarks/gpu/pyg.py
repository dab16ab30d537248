"""PyG's and torch's variants of the tasks, on jaxgraph's arrays, which are not copied."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from benchmarks.cpu.tasks import SpMM
from benchmarks.gpu.contestant import SHOWN_ROWS, Contestant
from benchmarks.gpu.graphs import Placed
from benchmarks.gpu.plan import Layer

torch.set_float32_matmul_precision("highest")
if torch.cuda.is_available():
    # The rest is for jax.
    torch.cuda.set_per_process_memory_fraction(0.85)


def torch_contestant(task: SpMM, placed: Placed) -> Contestant:
    """`torch.sparse` in compressed rows, which uses cuSPARSE on a GPU.

    Args:
      task: the task.
      placed: the graph.

    Returns:
      The contestant.
    """
    pointers, senders = (_tensor(jax.numpy.asarray(each)) for each in placed.compressed)
    count, sizes = len(senders), (placed.num_rows, placed.num_rows)
    ones = torch.ones(count, device=senders.device)

    def take(arrays: Sequence[jax.Array]) -> Any:
        x, *weights = map(_tensor, arrays)
        values = weights[0][:count] if weights else ones
        return torch.sparse_csr_tensor(pointers, senders, values, sizes), x

    def call(taken: Any) -> tuple[Any, ...]:
        return (taken[0] @ taken[1],)

    return _contestant(take, call, (pointers, senders, ones))


def pyg_contestant(task: Layer, placed: Placed, way: str) -> Contestant:
    """`GCNConv` or `GATConv` on edges with self-loops.

    Args:
      task: the task.
      placed: the graph.
      way: "edge index", "CSR" (GCN only) or "compiled" by torch.

    Returns:
      The contestant.
    """
    from torch_geometric import nn

    pointers, senders = placed.compressed
    degrees = np.diff(pointers)
    receivers = np.repeat(np.arange(placed.num_rows), degrees)
    normalisation = placed.normalisation
    weights = _on_device(normalisation[senders] * normalisation[receivers])
    edges: Any
    if way == "CSR":
        columns, starts = _on_device(senders), _on_device(pointers)
        sizes = (placed.num_rows, placed.num_rows)
        edges = torch.sparse_csr_tensor(starts, columns, weights, sizes)
        held = (starts, columns, weights)
    else:
        edges = _on_device(np.stack([senders.astype(np.int64), receivers]))
        held = (edges, weights)
    if task.kind == "gcn":
        layer = nn.GCNConv(task.in_features, task.features, normalize=False)
    else:
        layer = nn.GATConv(task.in_features, task.features, task.heads, add_self_loops=False)
    layer = layer.to(weights.device)
    run = torch.compile(layer) if way == "compiled" else layer
    extra = () if task.kind == "gat" or way == "CSR" else (weights,)

    def take(arrays: Sequence[jax.Array]) -> Any:
        x, kernel, bias, *rest = map(_tensor, arrays)
        layer.lin.weight.data, layer.bias.data = kernel.T.contiguous(), bias
        parameters = [layer.lin.weight, layer.bias]
        if task.kind == "gat":
            layer.att_src.data, layer.att_dst.data = rest[0][None], rest[1][None]
            parameters += [layer.att_src, layer.att_dst]
        return x, parameters, rest[-1] if task.backward else None

    def call(taken: Any) -> tuple[Any, ...]:
        x, parameters, gradient = taken
        if not task.backward:
            with torch.no_grad():
                return (run(x, edges, *extra),)
        x = x.detach().requires_grad_()
        y = run(x, edges, *extra)
        return y, *torch.autograd.grad(y, (x, *parameters), gradient)

    return _contestant(take, call, held)


def _tensor(array: jax.Array) -> torch.Tensor:
    return torch.from_dlpack(array)


def _on_device(array: np.ndarray) -> torch.Tensor:
    where = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.as_tensor(np.ascontiguousarray(array), device=where)


def _contestant(
    take: Callable[[Sequence[jax.Array]], Any],
    call: Callable[[Any], tuple[Any, ...]],
    held: Sequence[torch.Tensor],
) -> Contestant:
    on_gpu = torch.cuda.is_available()
    taken_bytes: dict[str, int] = {}

    def take_all(arrays: Sequence[jax.Array]) -> Any:
        taken_bytes["arrays"] = sum(array.nbytes for array in arrays)
        return take(arrays)

    def wait(_: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def memory(taken: Any) -> int | None:
        if not on_gpu:
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        wait(call(taken))
        own = sum(tensor.nbytes for tensor in held) + taken_bytes["arrays"]
        return own + torch.cuda.max_memory_allocated() - before

    def numbers(outputs: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
        named = zip(("y", "x"), outputs, strict=False)
        return {name: each[:SHOWN_ROWS].detach().cpu().numpy() for name, each in named}

    return Contestant(take_all, call, wait, numbers, memory)
