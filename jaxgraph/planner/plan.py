"""The way to run a model on a graph: mode, partitioner, and the cost of a training step."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from jaxgraph.graph import Graph
from jaxgraph.layers import RematPolicy
from jaxgraph.partition import Partition, partition
from jaxgraph.typed_graph import TypedGraph

FORMAT = 3
"""Version of the file."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One way to run a model on devices.

    Attributes:
      mode: "domain", "sar", "p3" or "stream".
      method: the partitioner.
      prefetch: whether the next part is fetched while one is aggregated.
      rest: in mode "p3", the schedule after the first layer, else None.
      topology: in mode "p3", where the edges of the first layer are, else None.
      chunks: in mode "p3", into how many chunks the rows of a part are cut, else None.
      parts: in mode "stream", into how many parts the graph is cut; None: one for each device.
    """

    mode: str
    method: str
    prefetch: bool = False
    rest: str | None = None
    topology: str | None = None
    chunks: int | None = None
    parts: int | None = None

    @property
    def schedule(self) -> str:
        """Of the layers after the first in mode "p3", of all layers in the others."""
        return self.mode if self.rest is None else self.rest

    @property
    def label(self) -> str:
        """In words, without the partitioner."""
        found = self.mode + (" pushed" if self.topology == "pushed" else "")
        found += "" if self.rest is None else f", {self.rest}"
        if self.parts is not None:
            found += f", {self.parts} part{'s' if self.parts > 1 else ''}"
        return found + (" prefetch" if self.prefetch else "")

    def shard_options(self) -> dict[str, Any]:
        """The keyword arguments of `jaxgraph.parallel.shard` that it stands for."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if name not in ("method", "parts")}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A way to run a model on devices, and the cost of a training step there.

    Attributes:
      option: mode, partitioner and their settings.
      target: chip and number of devices, such as "h200x8".
      hosts: over how many hosts they are spread.
      memory_limit: bytes of a device that were allowed.
      arguments, temporary, host: bytes of a device's memory, and of its share of the host's.
      inside, between: bytes that leave a device in a step, inside a host and between hosts.
      seconds: of a step, by a roofline.
      compiled_for: the platform of the compiled program; None: memory and bytes are predicted.
      policy: what layers save for the backward, which `jaxgraph.train.fit(plan=)` takes; None: the
        default.
    """

    option: Option
    target: str
    hosts: int
    memory_limit: int
    arguments: int
    temporary: int
    host: int
    inside: int
    between: int
    seconds: float
    compiled_for: str | None
    policy: tuple[RematPolicy, ...] | None = None

    @property
    def mode(self) -> str:
        """Of the schedule."""
        return self.option.mode

    @property
    def memory(self) -> int:
        """Bytes of a device."""
        return self.arguments + self.temporary

    @property
    def num_devices(self) -> int:
        """Devices of the target."""
        return int(self.target.rpartition("x")[2])

    @property
    def num_parts(self) -> int:
        """Parts of the graph."""
        return self.option.parts or self.num_devices

    def shard_options(self) -> dict[str, Any]:
        """The keyword arguments of `jaxgraph.parallel.shard` that the plan stands for."""
        return self.option.shard_options()

    @overload
    def partition(self, graph: Graph, seed: int = ...) -> Partition: ...

    @overload
    def partition(self, graph: TypedGraph, seed: int = ...) -> dict[str, Partition]: ...

    def partition(
        self, graph: Graph | TypedGraph, seed: int = 0
    ) -> Partition | dict[str, Partition]:
        """Cuts a graph as planned.

        Args:
          graph: the graph.
          seed: from 0 to 2**32 - 1.

        Returns:
          The partition; of a `TypedGraph` one for each set of nodes, by name.
        """
        return partition(graph, self.num_parts, method=self.option.method, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """As numbers, texts and mappings of them, with the version of the format."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def save(self, path: str | Path) -> None:
        """Writes the plan to a file in JSON.

        Args:
          path: of the file.
        """
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n")


def load_plan(path: str | Path) -> Plan:
    """Reads a plan from a file.

    Args:
      path: of the file.

    Returns:
      The plan.

    Raises:
      ValueError: the file is no plan, or of another version.
    """
    try:
        found = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file; expected what Plan.save wrote") from error
    version = found.pop("format", None) if isinstance(found, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{path} holds a plan of format {version!r}; expected {FORMAT}: plan again with this "
            "version of jaxgraph"
        )
    try:
        option, policy = Option(**found.pop("option")), found.pop("policy")
        policy = None if policy is None else tuple(map(_policy, policy))
        return Plan(option=option, policy=policy, **found)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no plan: {error}") from error


def _policy(contents: Mapping[str, Any]) -> RematPolicy:
    lists = {name: tuple(value) for name, value in contents.items() if name != "rest"}
    return RematPolicy(**lists, rest=contents["rest"])
