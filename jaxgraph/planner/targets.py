"""Machines that a plan is made for: chips, how many, on how many hosts, and the links between them.

A target is named by chip and count, such as "h200x8" or "h200x64". Programs for GPUs compile on a
machine that has none, where jax's CUDA plugin is installed (`pip install 'jaxgraph[cuda]'`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxgraph.byte_amounts import host_memory
from jaxgraph.parallel import make_mesh
from jaxgraph.partition.choices import checked_choice
from jaxgraph.planner.chips import CHIPS, Link, Speed

TARGETS: dict[str, Speed] = {
    **CHIPS,
    "cpu": Speed(
        memory=0,  # that of the host, shared: `Target.memory`
        bandwidth=20e9,
        flops=100e9,  # assumed: two cores of a server, shared by all emulated devices
        inside=Link(5e9, 20e-6),  # a copy in the host's memory, with both ends on shared cores
        between=Link(1.25e9, 50e-6),  # 10 Gb/s Ethernet
        host=Link(5e9, 0.0),  # the device's memory is the host's
        per_host=1 << 30,
    ),
}
"""The speed of a device of each chip, by its name."""

_NAME = re.compile(r"([a-z0-9]*?[a-z][a-z0-9]*?)(?:x(\d+))?")


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind, on one host or more.

    Attributes:
      chip: one of `TARGETS`.
      devices: how many in all.
      hosts: over how many hosts they are spread; host h has the h-th run of equal length.
    """

    chip: str
    devices: int
    hosts: int

    @property
    def name(self) -> str:
        """Chip and count, such as "h200x8"."""
        return f"{self.chip}x{self.devices}"

    @property
    def speed(self) -> Speed:
        """Of a device."""
        return TARGETS[self.chip]

    @property
    def per_host(self) -> int:
        """Devices of a host."""
        return self.devices // self.hosts

    @property
    def memory(self) -> int:
        """Bytes of a device; of emulated ones, each one's share of this machine's memory."""
        if self.chip != "cpu":
            return self.speed.memory
        return host_memory() // self.devices

    @property
    def is_emulated(self) -> bool:
        """True where programs compile for emulated CPU devices in the place of the chip."""
        return self.chip == "cpu" or importlib.util.find_spec("jax_plugins") is None

    @property
    def compiled_for(self) -> str:
        """Names the machine that programs are compiled for."""
        if not self.is_emulated:
            return f"{CHIPS[self.chip].name}, without a device"
        missing = "" if self.chip == "cpu" else " (for GPUs: pip install 'jaxgraph[cuda]')"
        return f"emulated CPU devices{missing}"

    def mesh(self, *, emulate: bool | None = None) -> Mesh:
        """Makes a mesh of the devices, for compilation only unless they are CPU devices.

        Args:
          emulate: whether to take CPU devices in the place of the chip; None: where jax cannot
            compile for it.

        Returns:
          The mesh, as `jaxgraph.parallel.make_mesh` makes it for so many hosts.

        Raises:
          ValueError: jax has fewer CPU devices, or cannot compile for the chip.
        """
        if self.is_emulated if emulate is None else emulate or self.chip == "cpu":
            devices = jax.devices("cpu")
            return make_mesh(self.devices, hosts=self.hosts, devices=devices)
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        try:
            topology = topologies.get_topology_desc(
                platform="cuda",
                topology_name=self.chip,
                target_config=CHIPS[self.chip].description(),
                topology=f"1x{self.hosts}x{self.per_host}",
            )
        except Exception as error:
            raise ValueError(
                "jax cannot compile for CUDA here; install it with: pip install 'jaxgraph[cuda]', "
                "and where there is no GPU set JAX_PLATFORMS=cpu before Python starts"
            ) from error
        devices = topologies.make_mesh(topology, (self.devices,), ("graph",)).devices
        return make_mesh(hosts=self.hosts, devices=list(devices))


def find_target(name: str, *, hosts: int | None = None) -> Target:
    """Finds the target of a name.

    Args:
      name: chip and number of devices, such as "h200x8"; without a number, one device.
      hosts: over how many hosts they are spread; None: as many as hold 8 GPUs each, one for CPUs.

    Returns:
      The target.

    Raises:
      ValueError: there is no such chip, the name is not of that form, or the devices do not divide
        over the hosts.
    """
    found = _NAME.fullmatch(name.strip().lower()) if isinstance(name, str) else None
    if found is None:
        raise ValueError(
            f"target: got {name!r}; expected a chip and a number of devices, as h200x8: "
            f"{', '.join(TARGETS)}"
        )
    chip = checked_choice("target", found[1], list(TARGETS))
    devices = int(found[2] or 1)
    if devices < 1:
        raise ValueError(f"target: got {name!r}; expected at least 1 device, as {chip}x1")
    per_host = TARGETS[chip].per_host
    least = -(-devices // per_host)
    hosts = _divisor(devices, least) if hosts is None else hosts
    if isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 1 or devices % hosts:
        raise ValueError(
            f"hosts is {hosts!r}; expected a number that divides the {devices} device(s) of "
            f"{name}, such as {_divisor(devices, least)}"
        )
    return Target(chip, devices, hosts)


def _divisor(devices: int, least: int) -> int:
    return next(each for each in range(max(least, 1), devices + 1) if devices % each == 0)
