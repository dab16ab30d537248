"""The mesh of a command, of real devices, or of emulated ones where there are too few."""

import socket
import zlib
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.sharding import Mesh


def mesh_of(parts: int, processes: int = 1, hosts: int | None = None) -> "Mesh":
    """Makes a mesh of `parts` devices, on emulated CPU devices if the machine has fewer."""
    if parts % processes:
        raise ValueError(
            f"--parts: got {parts} for {processes} processes, each with as many devices; expected "
            f"a multiple of {processes}."
        )
    share = start_share(parts, processes)
    import jax
    from jax.extend.backend import clear_backends

    from jaxgraph.parallel import emulate_devices, make_mesh

    if processes == 1:
        # The number of devices is known only once jax has started. jax can start again, as nothing
        # has been placed on a device yet.
        if jax.device_count() < parts:
            clear_backends()
            emulate_devices(parts)
        return make_mesh(parts, hosts=hosts or 1)
    chosen = []
    for process in range(processes):
        own = [device for device in jax.devices() if device.process_index == process]
        if len(own) < share:
            raise ValueError(
                f"--parts: {parts} parts are {share} for each of {processes} processes, and "
                f"process {process} has {len(own)} {jax.default_backend()} device(s); expected as "
                "many. Start more processes, or write fewer parts."
            )
        chosen += own[:share]
    return make_mesh(devices=chosen, hosts=_hosts_of_processes() if hosts is None else hosts)


def start_share(parts: int, processes: int) -> int:
    """Starts jax with this process's share of the devices, and returns how many these are."""
    import jax

    from jaxgraph.process import tune_process

    share = parts // processes
    tune_process(num_devices=share)
    if processes > 1:
        # Of several processes jax cannot start again: devices are emulated before it starts, and
        # not used where there are others. Too late where the number of processes was asked of jax.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", share)
    return share


def _hosts_of_processes() -> int:
    """The number of hosts, or 1 where they have different numbers of processes, or in turn."""
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    own = np.uint32(zlib.crc32(socket.gethostname().encode()))
    names = np.ravel(process_allgather(own)).tolist()
    runs = [len(list(run)) for _, run in groupby(names)]
    is_even = len(set(runs)) == 1 and len(runs) == len(set(names))
    return len(runs) if is_even else 1
