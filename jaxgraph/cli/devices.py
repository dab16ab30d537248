"""The mesh of a command, of real devices, or of emulated ones where there are too few."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["mesh_of"]


def mesh_of(parts: int, hosts: int | None = None) -> "Mesh":
    """Makes a mesh of `parts` devices, on emulated CPU devices if the machine has fewer.

    Args:
        parts: Number of devices.
        hosts: Number of hosts that they are spread over; None: as many as processes, where these
            have equally many devices.

    Returns:
        The mesh, of shape [parts] or [hosts, parts / hosts].

    Raises:
        ValueError: The devices do not divide over the hosts.
    """
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
    if hosts is None:
        hosts = 1 if parts % jax.process_count() else jax.process_count()
    return make_mesh(parts, hosts=hosts)
