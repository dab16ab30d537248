"""Ctrl-C and SIGTERM end a command: at once before the first epoch, then after an epoch.

This module is imported before Ctrl-C is handled, and imports the standard library only.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

__all__ = ["Interrupted", "Signals", "end_quietly", "raised"]

_GRACE_SECONDS = 1.0
_SHOW_CURSOR = "\x1b[?25h"


class Interrupted(KeyboardInterrupt):
    """A signal ends the command.

    Args:
        number: The signal.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(f"Interrupted by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}.")
        self.number = number

    @property
    def status(self) -> int:
        """Returns the exit status of a program that a signal ended."""
        return 128 + self.number


def end_quietly() -> None:
    """From now on Ctrl-C ends the process with one line, even during an import.

    Python would show a traceback. Where Ctrl-C is ignored, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)


@contextmanager
def raised() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt while a command runs, after `end_quietly`."""
    if signal.getsignal(signal.SIGINT) != _end_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end_at_once)


class Signals:
    """Handles Ctrl-C and SIGTERM while the context is entered.

    At first a signal raises `Interrupted` in the main thread, which then cleans up; if that takes
    long, the signal ends the process. From `compilation_begins` on it ends the process at once: a
    compiler does not check for signals, JAX swallows exceptions in callbacks of the garbage
    collector, and there is nothing to save. From `epochs_begin` on it is only recorded, so that the
    epoch ends and the results are saved; a second signal ends the process.

    A thread reads the signals: Python's own handlers wait while the main thread runs a compiled
    program. Signals that the parent process told this one to ignore stay ignored, and outside of
    the main thread nothing changes.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._raises, self._in_epochs = True, False
        self._previous = {}
        self._forced_end: threading.Timer | None = None
        self._pipe: tuple[int, int] | None = None

    def compilation_begins(self) -> None:
        """From now on the main thread cannot react to a signal."""
        self._raises = False

    def epochs_begin(self) -> None:
        """From now on there are results to save."""
        self._raises, self._in_epochs = False, True

    def epoch_ended(self) -> None:
        """Raises `Interrupted` if a signal has arrived in the meantime."""
        if self.received is not None:
            raise Interrupted(self.received)

    def __enter__(self) -> "Signals":
        if threading.current_thread() is not threading.main_thread():
            return self
        reading, writing = self._pipe = os.pipe()
        os.set_blocking(writing, False)
        self._previous_descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._in_main_thread)
        self._watcher = threading.Thread(target=self._watch, args=(reading,), daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pipe is None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_descriptor)
        os.close(self._pipe[1])
        self._watcher.join()  # A signal that it reads last must not end later code.
        if self._forced_end is not None:
            self._forced_end.cancel()

    def _in_main_thread(self, number: int, frame: FrameType | None) -> None:
        if self._raises:
            raise Interrupted(number)

    def _watch(self, reading: int) -> None:
        """Reads the number of every signal, as Python's handler in C writes it."""
        while number := int.from_bytes(os.read(reading, 1)):
            if number in self._previous:
                self._receive(number)
        os.close(reading)

    def _receive(self, number: int) -> None:
        if self.received is not None:
            _end(number, "Ended at once.")
        self.received = number
        if self._in_epochs:
            _say("Ending after this epoch; Ctrl-C again ends at once, and saves nothing.")
        elif self._raises:
            end = threading.Timer(_GRACE_SECONDS, _end, (number, str(Interrupted(number))))
            end.daemon = True
            self._forced_end = end
            end.start()
        else:
            _end(number, str(Interrupted(number)))


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    _end(number, str(Interrupted(number)))


def _end(number: int, line: str) -> None:
    _say(line)
    terminal = sys.__stderr__
    if terminal is not None and terminal is not sys.stderr and terminal.isatty():
        # A progress bar has replaced the stream. It hides the cursor.
        terminal.write(f"\n{_SHOW_CURSOR}")
        terminal.flush()
    os._exit(128 + number)
