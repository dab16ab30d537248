"""Programs in a separate interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT

LEFT_OUT = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC")


def run_alone(program: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a new process, without jax or counts of devices or threads."""
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return subprocess.run(
        [sys.executable, *options, "-c", program],
        cwd=ROOT,
        env=kept | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
