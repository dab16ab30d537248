"""Runs several processes as one: they end together, and start again together after a death."""

import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxgraph.launch.child import Child, Command, Write
from jaxgraph.launch.heartbeat import COUNTED
from jaxgraph.launch.signals import Signals, name_of
from jaxgraph.launch.watchdog import place_text, stuck

CALLERS_MISTAKE = 2
"""Exit status of a process that was asked for something impossible; it would be so again."""
STUCK = 124
"""Exit status of a run that made no progress, as `timeout` has it."""

_SELECT_SECONDS = 0.05
_GRACE_SECONDS = 3.0
"""After a signal, for a run that has nothing to save yet."""
_LAST_SECONDS = 10.0
"""After the first process has ended at a signal, for the others."""
_PAUSE_SECONDS = 2.0
"""Before a new start, in which supervisors of other hosts notice the death, too."""


@dataclass(frozen=True)
class _Ending:
    kind: Literal["done", "mistake", "interrupted", "died", "stuck"]
    status: int
    message: str


def supervise(
    commands: Callable[[int], Sequence[Command]],
    write: Write,
    *,
    step_timeout: float,
    restarts: int = 0,
) -> int:
    """Runs processes until all have ended; if one dies or is stuck, ends all, with its name.

    Whatever happens, no process is left: Ctrl-C, SIGTERM and SIGHUP reach all as SIGTERM, a second
    signal kills them, and if this process is killed, they end.
    """
    received: deque[int] = deque()
    with Signals(received.append):
        for start in range(restarts + 1):
            ending = _run(commands(start), write, received, step_timeout)
            if ending.message:
                write(f"launch: {ending.message}", True)
            if ending.kind not in ("died", "stuck") or start == restarts:
                break
            write(f"launch: starting all again, {start + 1} of {restarts}", True)
            _pause(received)
            if received:
                return 128 + received[0]
    return ending.status


def _pause(received: deque[int]) -> None:
    """Waits before a new start, or until a signal comes."""
    until = time.monotonic() + _PAUSE_SECONDS
    while time.monotonic() < until and not received:
        time.sleep(_SELECT_SECONDS)


def _run(
    commands: Sequence[Command], write: Write, received: deque[int], step_timeout: float
) -> _Ending:
    children: list[Child] = []
    try:
        children.extend(  # One by one, so that those that have started end if one cannot start.
            Child(each, write) for each in commands
        )
        return _watch(children, received, step_timeout)
    finally:
        for child in children:
            child.signal(signal.SIGKILL)
        for child in children:
            child.end()


def _watch(children: Sequence[Child], received: deque[int], step_timeout: float) -> _Ending:
    """Reads what children write until the run is over."""
    ending: _Ending | None = None
    until = float("inf")
    while True:
        _read(children)
        while received:
            number = received.popleft()
            if ending is not None:
                return ending
            ending, until = _interrupted(children, number)
        running = [child for child in children if child.process.poll() is None]
        if not running or time.monotonic() >= until:
            return ending or _ended(children)
        if ending is None and any(child.process.returncode for child in children):
            ending = _ended(children)
            if ending.kind != "interrupted":
                return ending
        if ending is not None and len(running) < len(children):
            until = min(until, time.monotonic() + _LAST_SECONDS)
        message = stuck([child.standing() for child in running], step_timeout)
        if message is not None:
            return ending or _Ending("stuck", STUCK, f"{message}. All processes are ended.")


def _read(children: Sequence[Child]) -> None:
    """Waits a moment for output and signs, and reads them."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            for source in child.sources():
                selector.register(source, selectors.EVENT_READ, child)
        if not selector.get_map():
            time.sleep(_SELECT_SECONDS)
            return
        ready = {id(key.data): key.data for key, _ in selector.select(_SELECT_SECONDS)}
    for child in ready.values():
        child.read()


def _interrupted(children: Sequence[Child], number: int) -> tuple[_Ending, float]:
    """Passes a signal on; returns the ending, and until when the children have time."""
    for child in children:
        # SIGTERM, whatever came: JAX tells it to all processes, which then stop at the same epoch.
        child.signal(signal.SIGTERM)
    trains = all(child.standing().phase in COUNTED for child in children)
    until = float("inf") if trains else time.monotonic() + _GRACE_SECONDS
    return _Ending("interrupted", 128 + number, f"ended by {name_of(number)}."), until


def _ended(children: Sequence[Child]) -> _Ending:
    """The ending by the first of the children that have ended, or by all."""
    states = [(child, child.process.returncode) for child in children]
    failed = [(child, state) for child, state in states if state not in (None, 0)]
    if not failed:
        return _Ending("done", 0, "")
    # Where several ended at once: JAX aborts a process whose peer has died.
    child, state = min(failed, key=lambda each: _rank(each[1]))
    if state in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        return _Ending("interrupted", state, "")
    if state == CALLERS_MISTAKE:
        return _Ending("mistake", state, f"process {child.name} ended with exit status 2.")
    standing = child.standing()
    place = place_text(standing.phase, standing.epoch)
    how = (
        f"was ended by {signal.Signals(-state).name}"
        if state < 0
        else f"ended with exit status {state}"
    )
    silent = "".join(
        f"; process {other.name} had given no sign of life for {other.standing().silent:.0f} s"
        for other, ended in states
        if ended is None and other.standing().is_silent(float("inf"))
    )
    message = f"process {child.name} {how} in {place}{silent}. All processes are ended."
    return _Ending("died", 128 - state if state < 0 else state, message)


def _rank(state: int) -> int:
    if state < 0 and state != -signal.SIGABRT:
        return 0
    return 1 if state == CALLERS_MISTAKE else 2
