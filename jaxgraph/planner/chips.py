"""The GPUs that programs are compiled for on a machine that has none, and the speed of each.

XLA reads such a description in the place of a device. The table says what read the numbers from
a device. XLA keeps such readings in xla/backends/gpu/target_config/specs of openxla/xla.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Link:
    """A way for bytes to leave a device.

    Attributes:
      bandwidth: bytes per second that a device sends, in one direction.
      latency: seconds until the first byte arrives, an assumption.
    """

    bandwidth: float
    latency: float


@dataclasses.dataclass(frozen=True)
class Speed:
    """The speed of a device of a target, and the links from it.

    Attributes:
      memory: bytes of a device.
      bandwidth: bytes per second of its memory.
      flops: floating-point operations per second of dense products of 32-bit numbers, as JAX
        computes them by default (TF32 on GPUs).
      inside: link to the devices of the same host.
      between: link to those of other hosts.
      host: link to the memory of the host.
      per_host: devices of a host.
    """

    memory: int
    bandwidth: float
    flops: float
    inside: Link
    between: Link
    host: Link
    per_host: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip(Speed):
    """A GPU, as its compiler sees it.

    Attributes:
      name: as CUDA reports it.
      capability: compute capability, major and minor.
      cores: streaming multiprocessors.
      cache: bytes of the second-level cache.
      clock: in GHz.
      shared: bytes of shared memory of a multiprocessor.
      block_shared: bytes of it that a block may ask for.
      fpus: units for 32-bit numbers of a multiprocessor.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    cache: int
    clock: float
    shared: int
    block_shared: int
    fpus: int = 128
    per_host: int = 8

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
_IB_NDR = Link(50e9, 5e-6)  # one 400 Gb/s ConnectX-7 per GPU, DGX H100 and B200 user guides
_PCIE_5 = Link(64e9, 10e-6)  # PCIe 5.0 x16, one direction
_HOPPER: dict[str, Any] = {
    "capability": (9, 0),
    "cores": 132,
    "shared": 228 << 10,
    "block_shared": 227 << 10,
    "clock": 1.98,
    # 989.4 TF32 TFLOP/s with sparsity, half without: H100 white paper, SXM5; the H200 has its die.
    "flops": 494.7e12,
    "inside": Link(450e9, 3e-6),  # NVLink 4, 900 GB/s both ways, H100 and H200 datasheets
    "between": _IB_NDR,
    "host": _PCIE_5,
}

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
        flops=156e12,  # A100 datasheet (2021), TF32 without sparsity
        inside=Link(300e9, 3e-6),  # NVLink 3, 600 GB/s both ways, A100 datasheet
        between=Link(25e9, 5e-6),  # one 200 Gb/s ConnectX-6 per GPU, DGX A100 user guide
        host=Link(32e9, 10e-6),  # PCIe 4.0 x16, one direction
    ),
    "h100": Chip(  # XLA's h100_sxm.txtpb
        name="NVIDIA H100 80GB HBM3",
        memory=84_942_979_072,
        bandwidth=3_352_320_000_000,
        cache=50 * _MIB,
        **_HOPPER,
    ),
    # PyTorch's get_device_properties; bandwidth of the H200 datasheet. XLA's h200.txtpb has 141 GiB
    # and the cache of H100, which no device reports.
    "h200": Chip(
        name="NVIDIA H200",
        memory=143_156 * _MIB,
        bandwidth=4_800 * 10**9,
        cache=60 * _MIB,
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
        # 2.2 TF32 PFLOP/s with sparsity, half without: Blackwell brief (2024), HGX B200
        flops=1_100e12,
        inside=Link(900e9, 3e-6),  # NVLink 5, 1.8 TB/s both ways, DGX B200 user guide
        between=_IB_NDR,
        host=_PCIE_5,
    ),
}
"""By the name of a target."""
