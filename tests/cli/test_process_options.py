import socket
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from jaxgraph.cli import launch
from jaxgraph.cli.main import app
from jaxgraph.cli.train_options import check_address
from tests.cli.command import refused
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--num-processes 2", "expected all three, none"),
        ("--num-processes 1 --process-id 1", "--process-id: got 1; expected 0 to 0"),
        (f"--coordinator h {TWO} 0", "--coordinator: got 'h'; expected HOST:PORT"),
        (f"--coordinator h:70000 {TWO} 0", "a port from 1 to 65535"),
        (f"--coordinator h:1 {TWO} 2", "--process-id: got 2; expected 0 to 1"),
        ("--heartbeat-fd 999", "--heartbeat-fd: 999 is no socket"),
    ],
)
def test_mistakes_of_train_are_one_line(options: str, message: str):
    assert message in refused("train", "--dataset", "karate", *options.split())


@pytest.mark.parametrize("address", ["host:1", "10.0.0.1:65535", "[fe80::1]:99", "a-b.c_d:5"])
def test_addresses_are_accepted(address: str):
    check_address(address)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:0", "http://h:1", "h h:1", "::1:9"])
def test_no_addresses_are_refused(address: str):
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-n 2 -- plan", "launch: got the command 'plan'; expected train"),
        ("-n 0 -- train", "--num-processes: got 0; expected at least 1"),
        ("--restarts -1 -- train", "--restarts: got -1"),
        (f"-n 2 -- train --dataset karate --coordinator h:1 {TWO} 0", "leave these out"),
    ],
)
def test_mistakes_of_launch_are_one_line(arguments: str, message: str):
    assert message in refused("launch", *arguments.split())


def test_a_wrong_option_of_train_is_found_before_a_process_starts():
    result = CliRunner().invoke(app, ["launch", "-n", "2", "--", "train", "--epoch", "3"])
    assert result.exit_code == 2 and "No such option: --epoch" in result.output


@pytest.mark.parametrize(
    ("start", "given", "added"),
    [
        (0, {"checkpoint": "ck", "resume": False}, []),
        (1, {"checkpoint": "ck", "resume": False}, ["--resume"]),
        (1, {"checkpoint": "ck", "resume": True}, []),
        (1, {"checkpoint": None, "resume": False}, []),
        (1, {}, []),
    ],
)
def test_a_start_after_a_death_continues_from_a_checkpoint(start: int, given: dict, added: list):
    assert launch._resuming(start, given) == added


def test_a_scheduler_starts_one_process_at_a_time():
    text = refused("launch", "-n", "2", "train", "--dataset", "karate", **OPEN_MPI)
    assert "-n 1 for each, as a scheduler does" in text


@pytest.mark.slow
def test_open_mpi_that_jax_does_not_know_is_refused():
    """As from version 5 on, whose variables jax 0.10 does not read."""
    program = "from jaxgraph.cli.entry import main; import sys\nsys.argv[1:] = ARGS; main()"
    arguments = ["train", "--dataset", "karate"]
    result = run_alone(
        program.replace("ARGS", repr(arguments)),
        OMPI_COMM_WORLD_SIZE="2",
        OMPI_COMM_WORLD_RANK="1",
        JAX_COORDINATOR_ADDRESS="",
    )
    assert result.returncode == 2 and "Open MPI: process 1 of 2 could not join" in result.stderr
    assert "--num-processes 1 trains alone" in result.stderr


@pytest.mark.slow
def test_the_time_out_under_slurm_says_how_to_train_alone():
    program = "from jaxgraph.cli.entry import main; import sys\nsys.argv[1:] = ARGS; main()"
    arguments = ["train", "--dataset", "karate", "--join-timeout", "1.5"]
    result = run_alone(program.replace("ARGS", repr(arguments)), **SLURM)
    assert result.returncode == 2, result.stderr
    assert "joined at the coordinator that SLURM names within 1.5 s" in result.stderr
    assert "--num-processes 1 trains alone" in result.stderr


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def joining(port: int, index: int) -> list[str]:
    processes = ["--num-processes", "2", "--process-id", str(index), "--join-timeout", "1.5"]
    return ["train", "--dataset", "karate", "--coordinator", f"127.0.0.1:{port}", *processes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (0, "port PORT cannot be listened to on this host"),
        (1, "not all processes have joined at 127.0.0.1:PORT within 1.5 s"),
    ],
)
def test_a_port_of_another_program_is_an_error(index: int, message: str, taken_port: int):
    program = "import sys; from jaxgraph.cli.entry import main; sys.argv[1:] = ARGS; main()"
    result = run_alone(program.replace("ARGS", repr(joining(taken_port, index))))
    assert result.returncode == 2, result.stderr
    assert message.replace("PORT", str(taken_port)) in result.stderr


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ("--coordinator h:1 --num-processes 1 --process-id 0", {}),
        ("--num-processes 1", SLURM),
        ("--num-processes 1", OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "x"}),
        ("--num-processes 1", KUBERNETES),
        ("", {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "2"}),
        ("", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
    ],
)
def test_a_process_that_trains_alone_does_not_join(
    options: str, environment: dict, monkeypatch: pytest.MonkeyPatch
):
    def no_joining(*arguments: object, **options: object) -> None:
        raise AssertionError("jax.distributed.initialize was called")

    monkeypatch.setattr("jax.distributed.initialize", no_joining)
    one = "train --dataset karate --epochs 1 --layers 1"
    result = CliRunner().invoke(app, [*one.split(), *options.split()], env=environment)
    assert result.exit_code == 0, result.output
