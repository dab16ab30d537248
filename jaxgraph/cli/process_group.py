"""The processes of a run, joined by jax.distributed before anything uses a device."""

import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jaxgraph.cli.display import drop_output
from jaxgraph.cli.options import ProcessOptions
from jaxgraph.launch.heartbeat import Heartbeat
from jaxgraph.launch.scheduler import BY_HAND, Scheduled, scheduled
from jaxgraph.launch.signals import say

_SHUTDOWN_SECONDS = 3600
"""Process 0 writes results while the others wait for it to end."""
_LAST_SECONDS = 2.0
"""Process 0 waits so long after a failure, since the others fail alike."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of this run, seen from one of them.

    Args:
        count: The number of processes.
        index: The number of this one.
        heartbeat: The signs that it gives to its supervisor.
    """

    count: int
    index: int
    heartbeat: Heartbeat

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
    """
    place = None
    if options.num_processes is None:
        place = scheduled(os.environ)
    elif options.num_processes > 1:
        place = Scheduled("", options.process_id or 0, options.num_processes)
    heartbeat = Heartbeat(options.heartbeat_fd)
    if options.process_log is not None:
        _log_to(options.process_log, 0 if place is None else place.index)
    group = ProcessGroup(1, 0, heartbeat)
    if place is not None:
        heartbeat.enter("join")
        group = ProcessGroup(_join(place, options), place.index, heartbeat)
        if not group.is_first:
            drop_output()
    heartbeat.enter("read")
    try:
        yield group
    except Exception:
        if group.is_first and group.count > 1:
            # When the first process ends, jax aborts the others, which may still read why.
            time.sleep(_LAST_SECONDS)
        raise
    heartbeat.enter("end")


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Lets a process of several that failed end without waiting for the others.

    jax waits at the end of a process until all others end, too. They wait in a collective for the
    one that failed.
    """
    try:
        yield
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        # After a signal all processes end together.
        is_failure, jax = code not in (None, 0, 129, 130, 143), sys.modules.get("jax")
        if is_failure and jax is not None and jax.distributed.is_initialized():
            if not isinstance(error, SystemExit):
                sys.excepthook(type(error), error, error.__traceback__)
            _leave(code if isinstance(code, int) else 1)
        raise


def _leave(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


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
    except (ImportError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{place.scheduler or 'jax'}: process {place.index} of {place.count or 'several'} "
            f"could not join the others ({error}). Give {BY_HAND}."
        ) from error
    finally:
        limit.cancel()
    # jax knows the number where only the scheduler's server does; asked, it starts its devices.
    return jax.process_count() if place.count is None else place.count


def _check_port(coordinator: str) -> None:
    """Raises OSError if the port is taken, which would crash jax."""
    port = int(coordinator.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise OSError(
            f"--coordinator: port {port} cannot be listened to on this host ({error.strerror}); "
            "expected a free port of the host of process 0."
        ) from error


def _not_joined(place: Scheduled, options: ProcessOptions) -> None:
    """Ends the process, whose main thread waits in jax."""
    wanted = options.coordinator or f"the coordinator that {place.scheduler} names"
    say(
        f"Error: --coordinator: not all processes have joined at {wanted} within "
        f"{options.join_timeout:g} s (--join-timeout). Check that process 0 runs there, and that "
        "all processes have its address and the same --num-processes. --num-processes 1 trains "
        "alone."
    )
    _leave(2)


class _LogFile(logging.FileHandler):
    """A file of lines that ends where the disk is full, while the run goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Says once that the file ends."""
        logging.getLogger().removeHandler(self)
        reason = str(getattr(sys.exc_info()[1], "strerror", "")).lower()
        say(f"Warning: --process-log: {self.baseFilename} ends here ({reason}); the run goes on.")


def _log_to(folder: Path, index: int) -> None:
    """From now on writes what this process logs to FOLDER/process-INDEX.log."""
    folder.mkdir(parents=True, exist_ok=True)
    to_file = _LogFile(folder / f"process-{index}.log", encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger().addHandler(to_file)
