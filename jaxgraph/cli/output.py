"""The standard output: a terminal, a file, `head`, in UTF-8 or not."""

import io
import os
import sys
from contextlib import suppress
from typing import Any

from rich.console import Console

__all__ = ["Output", "drop_output", "tolerate_other_encodings"]


class Output(Console):
    """A console of the standard output that continues without a reader (`jaxgraph ... | head`)."""

    def on_broken_pipe(self) -> None:
        """Drops all further output; rich would end the program."""
        self.quiet = True
        drop_output()

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints as rich does; a reader that has gone is no error."""
        try:
            super().print(*objects, **options)
        except BrokenPipeError:  # rich before 13.8 does not call on_broken_pipe
            self.on_broken_pipe()


def drop_output() -> None:
    """Discards the standard output, so that the rest of its buffer raises no error."""
    with suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)


def tolerate_other_encodings() -> None:
    """Escapes characters that the standard output's encoding lacks, instead of raising."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
