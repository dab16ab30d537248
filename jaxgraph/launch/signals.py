"""Signals that end a program: a thread reads them, since Python's handlers wait for compiled code.

It imports the standard library only.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_READ = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = "\x1b[?25h"


class Signals:
    """Gives Ctrl-C, SIGTERM and SIGHUP to a function while the context is entered.

    It is entered in the main thread, and may be entered within another. Signals that the parent
    process told this one to ignore stay ignored.

    Args:
        act: Called with the number of each signal, in a thread.
    """

    def __init__(self, act: Callable[[int], object]) -> None:
        self._act = act

    def __enter__(self) -> "Signals":
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._outer = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._handlers = {
            number: signal.signal(number, lambda number, frame: None)
            for number in _READ
            if signal.getsignal(number) != signal.SIG_IGN
        }
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._outer)
        os.close(self._writing)
        self._reader.join()  # A signal that it reads last must not end later code.

    def _read(self, reading: int) -> None:
        # Python's handler in C writes the number of every signal.
        while number := int.from_bytes(os.read(reading, 1)):
            if number in self._handlers:
                self._act(number)
        os.close(reading)


def name_of(number: int) -> str:
    """Names a signal for people."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def say(line: str) -> None:
    """Prints a line on standard error, if there is one."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def end_at_once(number: int, line: str | None = None) -> None:
    """Ends the process with the exit status of a signal, and a line on standard error."""
    say(line or f"Interrupted by {name_of(number)}.")
    terminal = sys.__stderr__
    if terminal is not None and terminal is not sys.stderr and terminal.isatty():
        # A progress bar has replaced the stream. It hides the cursor.
        terminal.write(f"\n{_SHOW_CURSOR}")
        terminal.flush()
    os._exit(128 + number)
