"""Orbax's own reports of a checkpoint that it could not write."""

import logging
import sys

__all__ = ["keep_off_terminal"]


def keep_off_terminal() -> None:
    """Keeps tracebacks of failed writes from standard error, until the process ends.

    Orbax logs the error in each of its threads before it raises it. Its unfinished writes end
    later, perhaps after the last line of the command, and find their event loop closed.
    """
    # As Python shows warnings where nothing handles them; absl would add a handler of its own.
    to_terminal = logging.StreamHandler()
    to_terminal.setLevel(logging.WARNING)
    to_terminal.addFilter(lambda record: not _is_of_orbax(record))
    logging.getLogger().addHandler(to_terminal)
    show = sys.unraisablehook

    def show_others(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            show(unraisable)

    sys.unraisablehook = show_others


def _is_of_orbax(record: logging.LogRecord) -> bool:
    # A warning has no traceback.
    return record.exc_info is not None and "orbax" in record.pathname
