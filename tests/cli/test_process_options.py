import socket
from collections.abc import Iterator

import pytest

from jaxgraph.cli import launch
from jaxgraph.cli.options import check_address
from tests.cli.command import refused, run
from tests.interpreter import run_alone

SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}
TWO = "--num-processes 2 --process-id"
TRAIN = ["train", "--dataset", "karate", "--join-timeout", "1.5"]


def fails(*arguments: str, **environment: str) -> str:
    """Standard error of a process of its own that ends with status 2."""
    program = "import sys; from jaxgraph.cli.entry import main; sys.argv[1:] = ARGS; main()"
    result = run_alone(program.replace("ARGS", repr([*TRAIN, *arguments])), **environment)
    assert result.returncode == 2, result.stderr
    return result.stderr


def test_addresses_are_accepted_or_refused():
    for address in ("host:1", "10.0.0.1:65535", "[fe80::1]:99", "a-b.c_d:5"):
        check_address(address)
    for address in ("", "host", ":1", "host:0", "host:70000", "http://h:1", "h h:1", "::1:9"):
        with pytest.raises(ValueError, match="expected HOST:PORT"):
            check_address(address)


def test_a_scheduler_starts_one_process_at_a_time():
    text = refused("launch", "-n", "2", "train", "--dataset", "karate", **OPEN_MPI)
    assert "-n 1 for each, as a scheduler does" in text


def test_a_start_after_a_death_continues_from_a_checkpoint():
    given = {"checkpoint": "ck", "resume": False}
    assert launch._resuming(1, given) == ["--resume"]
    assert not launch._resuming(0, given) and not launch._resuming(1, {"checkpoint": None})
    assert not launch._resuming(1, given | {"resume": True})


@pytest.mark.slow
def test_processes_that_cannot_join_say_how_to_train_alone():
    # As from version 5 on, whose variables jax 0.10 does not read.
    text = fails(**OPEN_MPI, JAX_COORDINATOR_ADDRESS="")
    assert "Open MPI: process 1 of 4 could not join" in text
    assert "--num-processes 1 trains alone" in text
    text = fails(**SLURM)
    assert "joined at the coordinator that SLURM names within 1.5 s" in text
    assert "--num-processes 1 trains alone" in text


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("0", "port PORT cannot be listened to on this host"),
        ("1", "not all processes have joined at 127.0.0.1:PORT within 1.5 s"),
    ],
)
def test_a_port_of_another_program_is_an_error(index: str, message: str, taken_port: int):
    text = fails("--coordinator", f"127.0.0.1:{taken_port}", *TWO.split(), index)
    assert message.replace("PORT", str(taken_port)) in text


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ("--coordinator h:1 --num-processes 1 --process-id 0", {}),
        ("--num-processes 1", SLURM),
        ("--num-processes 1", OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "x"}),
        ("--num-processes 1", KUBERNETES),
    ],
)
def test_a_process_that_trains_alone_does_not_join(
    options: str, environment: dict, monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delattr("jax.distributed.initialize")
    run(*TRAIN, "--epochs", "1", "--layers", "1", *options.split())
