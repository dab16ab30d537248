"""Processes that a scheduler started for one run, as their environment tells."""

from collections.abc import Mapping
from dataclasses import dataclass

BY_HAND = "--coordinator, --num-processes and --process-id (--num-processes 1 trains alone)"

_SLURM = (
    *("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS"),
    *("SLURM_PROCID", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Scheduled:
    """A process among those that a scheduler started.

    Args:
        scheduler: Its name.
        index: The number of this process.
        count: The number of processes, at least 2; None where only the scheduler's server knows.
    """

    scheduler: str
    index: int
    count: int | None


def scheduled(environment: Mapping[str, str]) -> Scheduled | None:
    """Finds what SLURM, Open MPI or an indexed job of Kubernetes says of this process."""
    found = None
    if all(name in environment for name in _SLURM):
        # The shell of salloc is a step of one task, though SLURM_NTASKS counts those of the job.
        is_shell = environment.get("SLURM_STEP_NUM_TASKS") == "1"
        found = None if is_shell else _read("SLURM", environment, "SLURM_PROCID", "SLURM_NTASKS")
    elif "OMPI_COMM_WORLD_SIZE" in environment:
        found = _read("Open MPI", environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    elif {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= environment.keys():
        found = _read("Kubernetes", environment, "JOB_COMPLETION_INDEX", None)
    return None if found is not None and found.count == 1 else found


def _read(
    scheduler: str, environment: Mapping[str, str], index: str, count: str | None
) -> Scheduled:
    def number(name: str) -> int:
        text = environment.get(name, "")
        if not text.isdecimal():
            raise ValueError(
                f"{scheduler} started this process, but {name} is {text!r}; expected a number. "
                f"Give {BY_HAND} instead."
            )
        return int(text)

    return Scheduled(scheduler, number(index), None if count is None else number(count))
