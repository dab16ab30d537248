"""Signals that are noted while a supervisor runs, for it to pass on."""

import signal
from collections import deque
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Received"]

_NOTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Received:
    """Notes Ctrl-C, SIGTERM and SIGHUP while the context is entered, in the main thread.

    Signals that the parent process told this one to ignore stay ignored.
    """

    def __init__(self) -> None:
        self.numbers: deque[int] = deque()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Received":
        for number in _NOTED:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)
