"""The choice that a schedule makes for each named tensor between forward and backward."""

from __future__ import annotations

import dataclasses

from jaxgraph.planner.memory.schedule import MemorySchedule

__all__ = ["Choices", "policy_of"]


@dataclasses.dataclass(frozen=True)
class Choices:
    """The names of the tensors of a layer that its backward reads, by where they come from.

    Attributes:
      kept: they stay on the device.
      offloaded: they are fetched from the host.
      recomputed: the backward computes them again, to read them or to compute others from them.
    """

    kept: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()


def policy_of(schedule: MemorySchedule) -> dict[int | None, Choices]:
    """Sorts the tensors of the forward that the backward reads by how it gets them.

    Args:
      schedule: of a training step.

    Returns:
      Choices by layer, those of the inputs of all layers under None. Tensors have the names that
      `jaxgraph.layers.RematPolicy` knows; those that the backward does not read are not listed. An
      input that several operations read is kept if it is fetched once.
    """
    flow = schedule.dataflow
    later = {key for each in flow.operations if each.is_backward for key in each.writes}
    forward = {key for each in flow.operations if not each.is_backward for key in each.tensors}
    how = _origins(schedule)
    found: dict[int | None, dict[str, list[str]]] = {}
    for tensor in flow.tensors:
        if tensor.key in how and tensor.key in forward - later:
            by_choice = found.setdefault(tensor.layer, {})
            by_choice.setdefault(how[tensor.key], []).append(tensor.name)
    layers = sorted(found, key=lambda layer: -1 if layer is None else layer)
    return {
        layer: Choices(**{choice: tuple(names) for choice, names in found[layer].items()})
        for layer in layers
    }


def _origins(schedule: MemorySchedule) -> dict[str, str]:
    """The choice for each tensor that the backward reads, or an operation that it repeats."""
    operations = {each.name: each for each in schedule.dataflow.operations}
    read, recomputed, ran, on_device = set[str](), set[str](), set[str](), set[str]()
    fetches = {each.key: 0 if each.on_host else 1 for each in schedule.dataflow.tensors}
    for kind, name in schedule.actions:
        if kind == "run":
            operation, is_repeated = operations[name], name in ran
            if is_repeated:
                recomputed |= set(operation.writes) - on_device
            if is_repeated or operation.is_backward:
                read |= set(operation.reads)
            on_device |= set(operation.writes)
            ran.add(name)
        elif kind == "fetch":
            fetches[name] += 1
            on_device.add(name)
        elif kind == "drop":
            on_device.remove(name)
    offloaded = {key for key in read if fetches[key] > 1}
    return (
        dict.fromkeys(read, "kept")
        | dict.fromkeys(offloaded, "offloaded")
        | dict.fromkeys(recomputed & read, "recomputed")
    )
