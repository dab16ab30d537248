"""Signs of life that a process gives to its supervisor, with the place where it stands.

A sign is a line "COUNT PHASE EPOCH" on a socket. COUNT grows with every place that is entered, so
that the supervisor tells a process that lives and waits from one that gets on.
"""

import ctypes
import logging
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import NamedTuple

PHASES = ("start", "join", "read", "place", "compile", "meet", "epoch", "evaluate", "end")
"""The phases of a run in their order. All processes wait for each other in "join", for the slowest
compiler in "meet"."""

COUNTED = frozenset({"epoch", "evaluate"})
"""Phases whose time is limited. The others may take as long as the graph or the compiler needs."""

SECONDS_BETWEEN_SIGNS = 0.5
_ORPHANED = 1
_PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)


class Sign(NamedTuple):
    """A sign of life: how many places were entered, and the place."""

    count: int
    phase: str
    epoch: int


def sign_of(line: str) -> Sign | None:
    """Returns the sign that a line holds, or None if it holds none.

    >>> sign_of("9 epoch 3")
    Sign(count=9, phase='epoch', epoch=3)
    """
    words = line.split(" ")
    if len(words) != 3 or words[1] not in PHASES or not (words[0] + words[2]).isdecimal():
        return None
    return Sign(int(words[0]), words[1], int(words[2]))


class Heartbeat:
    """Tells a supervisor where this process stands; ends it when the supervisor has ended.

    Without a supervisor it only logs the places. A thread gives the signs, so that a process that
    waits in a compiled program still lives. One that is stopped gives none.

    Args:
        descriptor: The socket to the supervisor, inherited from it, or None.

    Raises:
        ValueError: The descriptor is no socket.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._sign = Sign(0, PHASES[0], 0)
        self._socket = None
        if descriptor is None:
            return
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError as error:
            raise ValueError(
                f"--heartbeat-fd: {descriptor} is no socket; jaxgraph launch gives this option."
            ) from error
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)
        _end_with_parent()
        threading.Thread(target=self._beat, args=(self._socket,), daemon=True).start()

    def enter(self, phase: str, epoch: int = 0) -> None:
        """Says that the process has got to a place."""
        self._sign = Sign(self._sign.count + 1, phase, epoch)
        _log.info("%s %d" if epoch else "%s", *([phase, epoch] if epoch else [phase]))
        if self._socket is not None:
            self._send(self._socket)

    def _beat(self, link: socket.socket) -> None:
        while True:
            readable, _, _ = select.select([link], [], [], SECONDS_BETWEEN_SIGNS)
            if readable:
                with suppress(BlockingIOError, ConnectionError):
                    if link.recv(64):
                        continue
                # The supervisor never closes its end while it lives.
                os._exit(_ORPHANED)
            self._send(link)

    def _send(self, link: socket.socket) -> None:
        # A supervisor that is stopped reads nothing. Signs are dropped then.
        with suppress(BlockingIOError, ConnectionError):
            link.send(" ".join(map(str, self._sign)).encode() + b"\n")


def _end_with_parent() -> None:
    """On Linux, has the kernel kill this process when its parent ends, even while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
