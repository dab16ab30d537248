"""Which implementation of an op runs.

An op has up to three: `mosaic_gpu` and `cpu` are kernels for one platform each, `xla` runs wherever
JAX does. The first one that is available here and supports the arguments is taken. An
implementation refuses arguments by raising `NotImplementedError` before it does anything;
`ValueError` is the caller's mistake and is never hidden by trying the next one.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import jax

__all__ = ["PREFERENCE", "Implementation", "by_preference", "call", "first_supporting", "named"]

PREFERENCE = ("mosaic_gpu", "cpu", "xla")
"""The names of implementations, those to try first in front."""

logger = logging.getLogger(__name__)


def _nothing() -> str:
    return ""


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    Attributes:
      op: name of the op.
      name: one of `PREFERENCE`.
      function: what computes it.
      self_check: computes a small example with `function`; what `check` returns.
      platforms: platforms of JAX that it runs on; empty: all.
      missing: says what is missing on this machine ("" if nothing is), such as a compiled library.
    """

    op: str
    name: str
    function: Callable[..., Any]
    self_check: Callable[[Callable[..., Any]], str]
    platforms: tuple[str, ...] = ()
    missing: Callable[[], str] = _nothing

    @property
    def reason(self) -> str:
        """Why it cannot run here, "" where it can."""
        platform = jax.default_backend()
        if self.platforms and platform not in self.platforms:
            return f"runs on {' or '.join(self.platforms)}, and this is {platform}"
        return self.missing()

    @property
    def available(self) -> bool:
        """Whether it can run here."""
        return not self.reason

    def check(self) -> str:
        """Compares values and gradients on a graph of 100 edges with NumPy.

        Returns:
          One line that starts with "ok" or "failed".
        """
        return self.self_check(self.function)


def by_preference(*implementations: Implementation) -> tuple[Implementation, ...]:
    """The implementations of one op in the order in which they are tried.

    Args:
      implementations: at most one of each name.

    Returns:
      The same, ordered.

    Raises:
      ValueError: a name is not one of `PREFERENCE`.
    """
    for implementation in implementations:
        check_name("implementation", implementation.name, PREFERENCE)
    return tuple(sorted(implementations, key=lambda each: PREFERENCE.index(each.name)))


def check_name(argument: str, name: str, names: Iterable[str]) -> None:
    """Raises `ValueError` with the nearest of `names` if `name` is not one of them."""
    names = tuple(names)
    if name in names:
        return
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    advice = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{argument} is {name!r}; expected one of {', '.join(names)}{advice}")


def named(candidates: tuple[Implementation, ...], name: str) -> Implementation:
    """The implementation that was asked for by name.

    Args:
      candidates: the implementations of one op.
      name: its name.

    Returns:
      The implementation.

    Raises:
      ValueError: the op has none of that name.
      NotImplementedError: it cannot run here.
    """
    check_name("implementation", name, [each.name for each in candidates])
    found = next(each for each in candidates if each.name == name)
    if not found.available:
        raise NotImplementedError(
            f"implementation {name!r} of {found.op} cannot run: {found.reason}; "
            "implementation=None takes one that can"
        )
    return found


def first_supporting(
    candidates: tuple[Implementation, ...], attempt: Callable[[Implementation], Any]
) -> tuple[Implementation, Any]:
    """The first implementation that is available and does not refuse.

    Args:
      candidates: the implementations of one op, in order.
      attempt: calls one.

    Returns:
      The implementation and what `attempt` returned.

    Raises:
      NotImplementedError: none can compute this.
    """
    refusals = []
    for candidate in candidates:
        if not candidate.available:
            refusals.append(f"{candidate.name} {candidate.reason}")
            continue
        try:
            result = attempt(candidate)
        except NotImplementedError as refusal:
            refusals.append(f"{candidate.name} refused: {refusal}")
            continue
        because = f" ({'; '.join(refusals)})" if refusals else ""
        _log_once(f"{candidate.op}: {candidate.name}{because}")
        return candidate, result
    raise NotImplementedError(
        f"no implementation of {candidates[0].op} can compute this: {'; '.join(refusals)}"
    )


def call(
    candidates: tuple[Implementation, ...], name: str | None, /, *arguments: Any, **options: Any
) -> Any:
    """Computes an op with the implementation named, or with the first that supports the arguments.

    Args:
      candidates: the implementations of the op, in order.
      name: which one; it is taken or it fails. None: the first that can.
      arguments, options: handed to it.

    Returns:
      What it returns.

    Raises:
      ValueError: there is none of that name, or the arguments are wrong.
      NotImplementedError: the one named, or every one, cannot compute this.
    """
    if name is not None:
        return named(candidates, name).function(*arguments, **options)
    return first_supporting(candidates, lambda each: each.function(*arguments, **options))[1]


@functools.cache
def _log_once(text: str) -> None:
    logger.info(text)
