"""The processes of a run, joined by jax.distributed before anything uses a device."""

import logging
import math
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from jaxgraph.cli.output import drop_output
from jaxgraph.cli.process_options import ProcessOptions
from jaxgraph.launch.heartbeat import Heartbeat
from jaxgraph.launch.scheduler import BY_HAND, Scheduled, scheduled

__all__ = ["ProcessGroup", "joined", "leaving_at_once"]

_CALLERS_MISTAKE = 2
_SHUTDOWN_SECONDS = 3600
"""Process 0 writes results while the others wait for it to end."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of this run, seen from one of them.

    Args:
        count: The number of processes.
        index: The number of this one.
        heartbeat: The signs that it gives to its supervisor.
    """

    count: int = 1
    index: int = 0
    heartbeat: Heartbeat = field(default_factory=Heartbeat)

    @property
    def is_first(self) -> bool:
        """True for the process that prints, and writes the results."""
        return self.index == 0

    def default_parts(self) -> int:
        """The number of parts where no option gives it: the devices of several processes, or 1."""
        if self.count == 1:
            return 1
        import jax

        return jax.device_count()

    def meet(self) -> None:
        """Waits until all processes have compiled, so that no epoch waits for a compiler."""
        if self.count > 1:
            from jax.experimental.multihost_utils import sync_global_devices

            self.heartbeat.enter("meet")
            sync_global_devices("jaxgraph train: compiled")


@contextmanager
def joined(options: ProcessOptions) -> Iterator[ProcessGroup]:
    """Joins the other processes of the run, if there are any, and yields the group.

    Processes other than the first drop their standard output.

    Args:
        options: Which of them this is; None for what a scheduler says.

    Raises:
        ValueError: The scheduler's account of this process cannot be used, or the log cannot be
            written.
        OSError: The port of the coordinator is taken.
    """
    place = _place_in_run(options)
    group = ProcessGroup(heartbeat=Heartbeat(options.heartbeat_fd))
    with _logging(options.process_log, 0 if place is None else place.index):
        if place is not None:
            group.heartbeat.enter("join")
            count = _join(place, options)
            group = ProcessGroup(count, place.index, group.heartbeat)
            if not group.is_first:
                drop_output()
        group.heartbeat.enter("read")
        yield group
        group.heartbeat.enter("end")


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Lets a process of several that failed end without waiting for the others.

    jax waits at the end of a process until all others end, too. They wait in a collective for the
    one that failed.
    """
    try:
        yield
    except SystemExit as error:
        if _is_failure(error.code) and _is_one_of_several():
            _leave(error.code if isinstance(error.code, int) else 1)
        raise
    except BaseException as error:
        if _is_one_of_several():
            sys.excepthook(type(error), error, error.__traceback__)
            _leave(1)
        raise


def _is_failure(code: object) -> bool:
    # After a signal all processes end together.
    return code not in (None, 0, 130, 143)


def _is_one_of_several() -> bool:
    if "jax" not in sys.modules:
        return False
    import jax

    return jax.distributed.is_initialized()


def _leave(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)


def _place_in_run(options: ProcessOptions) -> Scheduled | None:
    """This process among several, by its options or by its scheduler; None if it is alone."""
    if options.num_processes == 1:
        return None
    if options.num_processes is not None and options.process_id is not None:
        return Scheduled("", options.process_id, options.num_processes)
    place = scheduled(os.environ)
    if place is not None and place.scheduler == "Kubernetes" and find_spec("kubernetes") is None:
        raise ValueError(
            f"Kubernetes started this process as number {place.index} of a job; jax finds the "
            "others with the package kubernetes, which is missing. Install jax[k8s], or give "
            f"{BY_HAND}."
        )
    return place


def _join(place: Scheduled, options: ProcessOptions) -> int:
    """Joins the others and returns the number of processes."""
    import jax

    if options.coordinator is not None and place.index == 0:
        _check_port(options.coordinator)
    # jax aborts the process at its own timeouts, without a Python exception.
    limit = threading.Timer(options.join_timeout, _not_joined, (place, options))
    limit.daemon = True
    limit.start()
    try:
        jax.distributed.initialize(
            coordinator_address=options.coordinator,
            num_processes=options.num_processes,
            process_id=options.process_id,
            cluster_detection_method=None if options.coordinator is None else "deactivate",
            initialization_timeout=math.ceil(options.join_timeout) + 60,
            # The supervisor, which names the process that is stuck, comes first.
            heartbeat_timeout_seconds=math.ceil(1.5 * options.step_timeout) + 5,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        known = "its server" if place.count is None else f"{place.count} processes"
        raise ValueError(
            f"{place.scheduler or 'jax'} ({known}): the processes could not join ({error}). Give "
            f"{BY_HAND}."
        ) from error
    finally:
        limit.cancel()
    return jax.process_count() if place.count is None else place.count


def _check_port(coordinator: str) -> None:
    """Raises OSError if the port is taken, which would crash jax."""
    port = int(coordinator.rpartition(":")[2])
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6
        ).close()
    except OSError as error:
        raise OSError(
            f"--coordinator: port {port} cannot be listened to on this host ({error.strerror}); "
            "expected a free port of the host of process 0."
        ) from error


def _not_joined(place: Scheduled, options: ProcessOptions) -> None:
    """Ends the process, whose main thread waits in jax."""
    wanted = options.coordinator or f"the coordinator that {place.scheduler} names"
    fault = f"not all processes have joined at {wanted}"
    if place.index and options.coordinator is not None and not _answers(options.coordinator):
        fault = f"nothing answers at {wanted}"
    print(
        f"Error: --coordinator: {fault} within {options.join_timeout:g} s (--join-timeout). Check "
        "that process 0 runs there, and that all processes have its address and the same "
        "--num-processes. --num-processes 1 trains alone.",
        file=sys.stderr,
    )
    _leave(_CALLERS_MISTAKE)


def _answers(coordinator: str) -> bool:
    host, _, port = coordinator.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError:
        return False
    return True


class _LogFile(logging.FileHandler):
    """A file of lines that ends where the disk is full, while the run goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Says once that the file ends."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.getLogger().removeHandler(self)
        reason = (error.strerror or str(error)).lower()
        print(
            f"Warning: --process-log: {self.baseFilename} ends here ({reason}); the run goes on.",
            file=sys.stderr,
        )

    def close(self) -> None:
        """Closes the file, whose last lines may have no room."""
        with suppress(OSError):
            super().close()


@contextmanager
def _logging(folder: Path | None, index: int) -> Iterator[None]:
    """Writes what this process logs to FOLDER/process-INDEX.log."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        to_file = _LogFile(folder / f"process-{index}.log", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"--process-log: {folder} cannot be written ({error.strerror}); expected a folder."
        ) from error
    to_file.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(to_file)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(to_file)
        to_file.close()
