"""The GPUs that programs are compiled for on a machine that has none, as XLA wants them described.

XLA reads such a description in the place of a device. The table says what read the numbers from
a device. XLA keeps such readings in xla/backends/gpu/target_config/specs of openxla/xla.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """A GPU, as its compiler sees it.

    Attributes:
      name: as CUDA reports it.
      capability: compute capability, major and minor.
      cores: streaming multiprocessors.
      memory: bytes of device memory.
      bandwidth: bytes per second of it.
      cache: bytes of the second-level cache.
      clock: in GHz.
      shared: bytes of shared memory of a multiprocessor.
      block_shared: bytes of it that a block may ask for.
      fpus: units for 32-bit numbers of a multiprocessor.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    memory: int
    bandwidth: int
    cache: int
    clock: float
    shared: int
    block_shared: int
    fpus: int = 128

    def description(self) -> str:
        """The text that XLA's CUDA compiler reads in the place of a device."""
        major, minor = self.capability
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared}
  threads_per_core_limit: 2048
  core_count: {self.cores}
  fpus_per_core: {self.fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.bandwidth}
  l2_cache_size: {self.cache}
  clock_rate_ghz: {self.clock}
  device_memory_size: {self.memory}
  shared_memory_per_block_optin: {self.block_shared}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{self.name}"
"""


_MIB = 1 << 20
_HOPPER = {"capability": (9, 0), "cores": 132, "shared": 228 << 10, "block_shared": 227 << 10}

CHIPS = {
    "a100": Chip(  # XLA's a100_sxm_80.txtpb
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        cores=108,
        memory=85_100_068_864,
        bandwidth=2_039_040_000_000,
        cache=40 * _MIB,
        clock=1.41,
        shared=164 << 10,
        block_shared=163 << 10,
        fpus=64,
    ),
    "h100": Chip(  # XLA's h100_sxm.txtpb
        name="NVIDIA H100 80GB HBM3",
        memory=84_942_979_072,
        bandwidth=3_352_320_000_000,
        cache=50 * _MIB,
        clock=1.98,
        **_HOPPER,
    ),
    # PyTorch's get_device_properties; bandwidth of the H200 datasheet. XLA's h200.txtpb has 141 GiB
    # and the cache of H100, which no device reports.
    "h200": Chip(
        name="NVIDIA H200",
        memory=143_156 * _MIB,
        bandwidth=4_800 * 10**9,
        cache=60 * _MIB,
        clock=1.98,
        **_HOPPER,
    ),
    # XLA's b200.txtpb; the datasheet rounds the bandwidth up to 8 TB/s.
    "b200": Chip(
        name="NVIDIA B200",
        capability=(10, 0),
        cores=148,
        memory=191_514_411_008,
        bandwidth=7_672_320_000_000,
        cache=132_644_864,
        clock=1.965,
        shared=228 << 10,
        block_shared=227 << 10,
    ),
}
"""By the name of a target."""
