"""The mesh of a command, of real devices, or of emulated ones where there are too few."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["mesh_of"]


def mesh_of(parts: int) -> "Mesh":
    """Makes a mesh of `parts` devices, on emulated CPU devices if the machine has fewer.

    Args:
        parts: Number of devices.

    Returns:
        The mesh, of shape [parts].
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
    return make_mesh(parts)
