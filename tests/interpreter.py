"""Programs in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT

DEVICE_COUNTS = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")


def run_alone(program: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process where jax has not started and no device count is set."""
    kept = {name: value for name, value in os.environ.items() if name not in DEVICE_COUNTS}
    return subprocess.run(
        [sys.executable, *options, "-c", program],
        cwd=ROOT,
        env=kept | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
