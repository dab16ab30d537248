"""XLA's optimisation in tests: little of it, except where a test checks what XLA does."""

import os

import jax

# Later versions have no other emitters, and a flag that XLA does not know ends the process.
_CHOOSES_EMITTERS = jax.__version_info__ < (0, 11)

AS_USERS_DO: dict[str, str | bool] = {
    "xla_backend_optimization_level": "3",
    "xla_llvm_disable_expensive_passes": False,
} | ({"xla_cpu_use_fusion_emitters": True} if _CHOOSES_EMITTERS else {})
"""`compiler_options` for what depends on XLA's own choices: how it rounds, or what it rewrites."""


def compile_quickly() -> None:
    """Lets XLA make programs of this process fast rather than fast programs, with 8 CPU devices up.

    Compiling is most of what the suite costs, and its programs are small. Processes that tests
    start compile as users do, and so does this one under flags of its user.
    """
    if "XLA_FLAGS" in os.environ or "JAX_DISABLE_MOST_OPTIMIZATIONS" in os.environ:
        return
    jax.config.update("jax_disable_most_optimizations", True)
    if _CHOOSES_EMITTERS:
        os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"
        # Starting a backend reads the flags, once; left there, they would be inherited.
        jax.devices()
        del os.environ["XLA_FLAGS"]
