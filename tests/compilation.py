"""XLA's optimisation in tests: little of it, except where a test checks XLA's choices."""

import os
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core

# Later versions have no other emitters, and XLA ends the process at an unknown flag.
_CHOOSES_EMITTERS = jax.__version_info__ < (0, 11)

AS_USERS_DO: dict[str, str | bool] = {
    "xla_backend_optimization_level": "3",
    "xla_llvm_disable_expensive_passes": False,
} | ({"xla_cpu_use_fusion_emitters": True} if _CHOOSES_EMITTERS else {})
"""`compiler_options` for tests that depend on XLA's own choices: its rounding or rewrites."""


def compile_quickly() -> None:
    """Makes XLA optimise the programs of this process less, to save time, with 8 CPU devices.

    Compilation is most of the suite's cost, and its programs are small. Processes that tests start
    compile as users do; so does this process if its user sets flags.
    """
    if "XLA_FLAGS" in os.environ or "JAX_DISABLE_MOST_OPTIMIZATIONS" in os.environ:
        return
    jax.config.update("jax_disable_most_optimizations", True)
    if _CHOOSES_EMITTERS:
        os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"
        # A backend reads the flags once, when it starts; child processes would inherit them.
        jax.devices()
        del os.environ["XLA_FLAGS"]


def equations(jaxpr: Any) -> Iterator[Any]:
    """All operations of a traced program, nested ones included."""
    for equation in jaxpr.eqns:
        yield equation
        values = list(equation.params.values())
        for value in jax.tree.leaves(values, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
            if hasattr(inner, "eqns"):
                yield from equations(inner)
