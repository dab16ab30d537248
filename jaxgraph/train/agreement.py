"""Decisions that all processes of a run make alike, so that none waits for one that has ended."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxgraph.train.identity import differing, listed

_STOP, _ERROR = 1, 2
_KINDS: tuple[type[Exception], ...] = (RuntimeError, ValueError, OSError)
"""Errors that other processes raise in the same kind, by their number beyond `_ERROR`."""
_SIGNAL = 64


class ElsewhereInterrupted(KeyboardInterrupt):
    """A signal ends the run, which this process has not received itself.

    Attributes:
      number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"the run was ended by {signal.Signals(number).name}")
        self.number = number


def together(function: Callable[[], Any]) -> bool:
    """Calls a function in every process; where it raises in one, all raise."""
    if jax.process_count() == 1:
        return bool(function())
    own: BaseException | None = None
    result = False
    try:
        result = bool(function())
    except BaseException as error:
        own = error
    codes = _gathered(np.int32(_STOP * result if own is None else _code(own)))
    if codes.max() <= _STOP:
        return bool(codes.max() == _STOP)
    texts = from_all("" if own is None else f"{type(own).__name__}: {own}")
    if own is not None:
        raise own
    first = int(np.flatnonzero(codes > _STOP)[0])
    code = int(codes[first])
    if code > _SIGNAL:
        raise ElsewhereInterrupted(code - _SIGNAL)
    raise _KINDS[code - _ERROR](f"process {first} has ended the run: {texts[first]}")


def from_first(function: Callable[[], bytes]) -> bytes:
    """Returns the bytes of a function that the first process alone calls."""
    found: list[bytes] = []
    is_first = jax.process_index() == 0
    together(lambda: found.append(function() if is_first else b""))
    if jax.process_count() == 1:
        return found[0]
    from jax.experimental import multihost_utils

    size = from_all(len(found[0]))[0]
    buffer = np.frombuffer(found[0], np.uint8) if is_first else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()


def check_alike(entries: Mapping[str, str], advice: str) -> None:
    """Compares entries in all processes, which must call it with equal names or not."""
    if jax.process_count() == 1:
        return
    if jax.device_count() != jax.process_count() * jax.local_device_count():
        raise ValueError(
            f"the {jax.process_count()} processes have {jax.device_count()} devices, and this one "
            f"has {jax.local_device_count()}; expected as many in each. {advice}"
        )
    found = from_all(dict(entries))
    for process, others in enumerate(found):
        names = differing(found[0], others)
        if names:
            raise ValueError(
                f"process {process} does not run what process 0 runs; they differ in "
                f"{listed(names)}. {advice}"
            )


def from_all(value: Any) -> list[Any]:
    """Gathers a value that JSON can hold from every process."""
    if jax.process_count() == 1:
        return [value]
    own = json.dumps(value).encode()
    size = int(_gathered(np.int32(len(own))).max())
    rows = _gathered(np.frombuffer(own.ljust(size), np.uint8))
    return [json.loads(row.tobytes()) for row in rows]


def preempted(epoch: int) -> bool:
    """True where the run is to end after an epoch, since a process got SIGTERM; alike in all."""
    if not jax.config.jax_enable_preemption_service:  # pyright: ignore[reportAttributeAccessIssue]
        return False
    from jax.experimental import multihost_utils

    # False where jax.distributed is not initialized.
    return multihost_utils.reached_preemption_sync_point(epoch)


def _code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _SIGNAL + int(getattr(error, "number", signal.SIGINT))
    kinds = [kind for kind in _KINDS[1:] if isinstance(error, kind)]
    return _ERROR + (_KINDS.index(kinds[0]) if kinds else 0)


def _gathered(value: Any) -> np.ndarray:
    """The values of all processes, [processes, ...]."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(value))
