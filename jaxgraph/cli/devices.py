"""The mesh of a command, of real devices, or of emulated ones where there are too few."""

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["mesh_of"]


def mesh_of(parts: int, processes: int = 1) -> "Mesh":
    """Makes a mesh of `parts` devices, on emulated CPU devices if the machine has fewer.

    Args:
        parts: Number of devices.
        processes: Number of processes of the run; each gives an equal share of the devices.

    Returns:
        The mesh, of shape [parts].

    Raises:
        ValueError: Several processes cannot share the parts equally, or lack devices.
    """
    if processes > 1:
        return _mesh_of_processes(parts, processes)
    import jax
    from jax.extend.backend import clear_backends

    from jaxgraph.parallel import emulate_devices, make_mesh
    from jaxgraph.process import tune_process

    tune_process(num_devices=parts)
    # The number of devices is known only once jax has started. jax can start again, as nothing has
    # been placed on a device yet.
    if jax.device_count() < parts:
        clear_backends()
        emulate_devices(parts)
    return make_mesh(parts)


def _mesh_of_processes(parts: int, processes: int) -> "Mesh":
    import jax

    from jaxgraph.parallel import make_mesh
    from jaxgraph.process import tune_process

    share = parts // processes
    if parts % processes:
        raise ValueError(
            f"--parts: got {parts} for {processes} processes, each with as many devices; expected "
            f"a multiple of {processes}."
        )
    tune_process(num_devices=share)
    # Of several processes jax cannot start again: devices are emulated before it starts, and not
    # used where there are others. Too late where the number of processes was asked of jax.
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", share)
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
    return make_mesh(devices=chosen)
