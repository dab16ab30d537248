"""Meshes of H200 GPUs on a machine without any: programs compile for them, nothing runs.

XLA's CUDA compiler needs a description of the chip but no device; `pip install jaxgraph[cuda]`
installs it.
"""

from __future__ import annotations

import os

from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 62914560
  clock_rate_ghz: 1.98
  device_memory_size: 150754820096
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 12 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H200"
"""


def h200_mesh(devices: int, *, hosts: int = 1, axis: str = "graph") -> Mesh:
    """A mesh of H200s for compilation only.

    Args:
      devices: number of GPUs in all.
      hosts: number of hosts that share them.
      axis: name of the mesh axis.

    Returns:
      The mesh.

    Raises:
      ValueError: the devices do not divide over the hosts, or the CUDA plugin of jax is missing.
    """
    if devices % hosts:
        raise ValueError(f"{devices} devices do not divide over {hosts} hosts")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        topology = topologies.get_topology_desc(
            platform="cuda",
            topology_name="h200",
            target_config=H200,
            topology=f"1x{hosts}x{devices // hosts}",
        )
    except Exception as error:
        raise ValueError(
            "jax cannot compile for CUDA here; install it with: pip install 'jaxgraph[cuda]'"
        ) from error
    return Mesh(
        topologies.make_mesh(topology, (devices,), (axis,)).devices,
        (axis,),
        axis_types=(AxisType.Auto,),
    )
