"""The device mesh, and emulated CPU devices for one."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxgraph.kinds import kind_of

_HOW_TO_EMULATE = (
    "call jaxgraph.parallel.emulate_devices({n}) before the first use of jax, or start Python with "
    "XLA_FLAGS=--xla_force_host_platform_device_count={n}"
)


def make_mesh(
    num_devices: int | None = None,
    *,
    hosts: int = 1,
    devices: Sequence[Any] | None = None,
    axis: str = "graph",
) -> Mesh:
    """A mesh of one axis, or of hosts and their devices: shard i lives on device i.

    The axis is of type `Auto` whatever the version of jax defaults to, so that code outside of the
    sharded functions (an optimizer, a loss on gathered outputs) needs no shardings in its types.

    Args:
      num_devices: number of devices; None takes all.
      hosts: number of hosts that they are spread over, in runs of equal length, such as
        `jax.process_count()` with a process per host. With several, schedules send inside of hosts
        first, and `jaxgraph.analysis.traffic_by_link(program, num_devices // hosts)` reports the
        bytes inside and between hosts.
      devices: jax devices to take them from, in this order; None takes `jax.devices()`, those of
        all processes.
      axis: name of the axis.

    Returns:
      The mesh, of shape [num_devices] and axis `axis`, or [hosts, num_devices / hosts] and axes
      `axis`_hosts and `axis`.

    Raises:
      ValueError: there are fewer devices than asked for, a device is listed twice, the devices do
        not divide over the hosts, or an argument is not of its kind.
    """
    if not isinstance(axis, str) or not axis:
        raise ValueError(f"axis must be a name, got {axis!r}")
    available = list(jax.devices() if devices is None else devices)
    if len(set(available)) != len(available):
        raise ValueError("devices lists a device twice: each shard needs a device of its own")
    if not available:
        raise ValueError("devices is empty: a mesh needs at least one device")
    count = len(available) if num_devices is None else _checked_count(num_devices)
    if count > len(available):
        source = "available" if devices is None else "in devices"
        platform = available[0].platform
        raise ValueError(
            f"num_devices={count}, but only {len(available)} {platform} device(s) are {source}. "
            f"To emulate them on CPU, {_HOW_TO_EMULATE.format(n=count)}"
        )
    chosen, hosts = np.asarray(available[:count]), _checked_count(hosts, "hosts")
    if count % hosts:
        raise ValueError(
            f"hosts={hosts} do not have equally many of {count} device(s); expected a number that "
            "divides them"
        )
    if hosts == 1:
        return Mesh(chosen, (axis,), axis_types=(AxisType.Auto,))
    # By hand: jax.make_mesh fails on GPUs across slices (jax issue 37863).
    names, kinds = (f"{axis}_hosts", axis), (AxisType.Auto,) * 2
    return Mesh(chosen.reshape(hosts, -1), names, axis_types=kinds)


def emulate_devices(num_devices: int) -> None:
    """Makes this process run on `num_devices` CPU devices, whatever hardware it has.

    Emulated devices share the cores and the memory of the CPU: programs for a mesh run and can be
    checked, but not faster. Must come before the first use of a device. Where jax already runs on
    at least as many CPU devices, nothing is left to do.

    The devices wait less for each other if `jaxgraph.process.add_threads` is called before.

    Args:
      num_devices: number of devices to make.

    Raises:
      ValueError: `num_devices` is not a positive integer.
      RuntimeError: jax has already started, on fewer devices or on another platform.
    """
    count = _checked_count(num_devices)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        platform, started = jax.default_backend(), len(jax.local_devices())
        if platform == "cpu" and started >= count:
            return
        raise RuntimeError(
            f"it is too late to emulate {count} devices: jax has already started on {started} "
            f"{platform} device(s). In a new process, {_HOW_TO_EMULATE.format(n=count)}"
        ) from error
    jax.config.update("jax_platforms", "cpu")


def check_mesh(mesh: Any) -> None:
    """Raises ValueError unless the value is a mesh of devices."""
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"mesh: got {kind_of(mesh)}; expected a mesh of devices, as "
            "jaxgraph.parallel.make_mesh(num_devices) makes it. The order is "
            "shard(graph, partition, mesh)"
        )


def _checked_count(count: int, name: str = "num_devices") -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        remedy = ""
        if name == "num_devices":
            remedy = "; of a partition pass its num_parts, and devices by name, "
            remedy += "devices=jax.devices()[:2]"
        raise ValueError(f"{name} must be an integer, got {kind_of(count)}{remedy}")
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}")
    return int(count)
