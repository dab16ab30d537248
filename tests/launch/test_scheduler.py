import pytest

from jaxgraph.launch.scheduler import Scheduled, scheduled

SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (SLURM, Scheduled("SLURM", 5, 8)),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
        # A shell of salloc, where srun has not started the process.
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8"}, None),
        # The same shell where SLURM runs it as a step of its own.
        (SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "8"}, Scheduled("SLURM", 5, 8)),
        (OPEN_MPI, Scheduled("Open MPI", 0, 4)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        (KUBERNETES, Scheduled("Kubernetes", 3, None)),
        # A pod of no indexed job, as a notebook has it.
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
    ],
)
def test_processes_of_schedulers_are_found(environment: dict, found: Scheduled | None):
    assert scheduled(environment) == found


def test_a_broken_environment_is_refused_by_name():
    with pytest.raises(ValueError, match=r"SLURM started .* SLURM_PROCID is 'x'; expected a num"):
        scheduled(SLURM | {"SLURM_PROCID": "x"})
