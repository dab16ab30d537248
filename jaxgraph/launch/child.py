"""A process that a supervisor has started: its output, its signs of life and its end."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from jaxgraph.launch.heartbeat import PHASES, Sign, sign_of
from jaxgraph.launch.watchdog import Standing

Write = Callable[[str, bool], None]
"""Shows a line of text, without its end; the flag says whether it belongs to standard error."""

_START_SECONDS = 120.0
"""Time in which Python starts and imports what gives the first sign."""
_OF_LIBRARIES = re.compile(
    rb"\[Gloo\] Rank \d+ is connected to |W\d{4} .* preemption_notifier\.cc:"
)
"""Beginnings of lines in which XLA and Gloo report a normal state."""
_LONGEST_LINE = 1 << 16
_READ = 1 << 16


@dataclass(frozen=True)
class Command:
    """A command to start.

    Args:
        name: The number of the process in the run, as text.
        arguments: The command; its process gives signs of life by `Heartbeat`, on the socket that
            the last two arguments, `--heartbeat-fd N`, name.
        environment: Variables that it gets where this process has none of the name.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A process in a session of its own, with its output as lines under its name.

    Lines of Gloo and of XLA about connections and signals, which say nothing new, are left out.

    Args:
        command: The command.
        write: Shows a line of its output.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, command: Command, write: Write) -> None:
        self.name, self._write = command.name, write
        self._link, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*command.arguments, "--heartbeat-fd", str(theirs.fileno())],
                env={**command.environment, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                # Ctrl-C in a terminal reaches the supervisor alone, which passes it on.
                start_new_session=True,
            )
        assert self.process.stdout is not None and self.process.stderr is not None
        self._streams: dict[IO[bytes], bytes] = {self.process.stdout: b"", self.process.stderr: b""}
        self._signs = b""
        self._place = Sign(0, PHASES[0], 0)
        self._began = self._seen = self._entered = time.monotonic()
        self._link.setblocking(False)
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)

    def sources(self) -> list[IO[bytes] | socket.socket]:
        """The files and the socket that bring output and signs, which `read` reads."""
        return [*self._streams, *([] if self._link.fileno() < 0 else [self._link])]

    def read(self) -> bool:
        """Shows some of the output that has come, and notes the signs of life."""
        more = [self._read_output(stream) for stream in list(self._streams)]
        return self._read_signs() or any(more)

    def standing(self) -> Standing:
        """Where it stands now."""
        now = time.monotonic()
        silent = now - self._seen if self._place.count else now - self._began - _START_SECONDS
        place = self._place
        return Standing(self.name, place.phase, place.epoch, silent, now - self._entered)

    def signal(self, number: int) -> None:
        """Sends a signal to the process and the processes that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kills it with all that it has started, and shows the rest of its output."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        while self.read():
            pass
        for stream, rest in self._streams.items():
            if rest:
                self._show(stream, rest)
            stream.close()
        self._streams = {}
        self._link.close()

    def _read_signs(self) -> bool:
        if self._link.fileno() < 0:
            return False
        try:
            received = self._link.recv(_READ)
        except BlockingIOError:
            return False
        except ConnectionError:
            received = b""
        if not received:
            self._link.close()
            return False
        *lines, self._signs = (self._signs + received).split(b"\n")
        for line in lines:
            sign = sign_of(line.decode("ascii", "replace"))
            if sign is None:
                continue
            self._seen = time.monotonic()
            if sign.count != self._place.count:
                self._entered = self._seen
            self._place = sign
        return True

    def _read_output(self, stream: IO[bytes]) -> bool:
        try:
            received = os.read(stream.fileno(), _READ)
        except BlockingIOError:
            return False
        *lines, rest = (self._streams[stream] + received).split(b"\n")
        if rest and (not received or len(rest) > _LONGEST_LINE):
            lines, rest = [*lines, rest], b""
        for line in lines:
            if not _OF_LIBRARIES.match(line):
                self._show(stream, line)
        self._streams[stream] = rest
        if not received:
            del self._streams[stream]
            stream.close()
        return bool(received)

    def _show(self, stream: IO[bytes], line: bytes) -> None:
        text = line.rstrip(b"\r").decode("utf-8", "backslashreplace")
        self._write(f"[{self.name}] {text}", stream is self.process.stderr)
