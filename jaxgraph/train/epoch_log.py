"""A log of training: one line of JSON for each epoch, written and readable while training runs."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import jax

from jaxgraph.analysis import traffic, traffic_by_link
from jaxgraph.run_log import append_line, check_log, plain
from jaxgraph.train.history import EpochRecord

PROCESS = "{process}"
"""Text in the name of a log that stands for the number of the process."""


class EpochLog:
    """Appends a line of JSON to a file after every epoch.

        log = EpochLog("run.jsonl")
        fit(model, sharded, optimizer, epochs=100, on_epoch=log, on_compile=log.compiled)

    A line holds `epoch`, `loss`, `val_loss`, `seconds`, `is_best` and `metrics` as `EpochRecord`
    does, with null for NaN, and

    - `slowest_part`: the number of the part whose layers take longest and their `seconds`; null
      unless `fit` measures, until every part has been measured.
    - `waited`, `copied`: as `EpochRecord` has them, the share of time in which devices waited for
      mini-batches, and the share of other devices' features that they read from copies.
    - `memory`: bytes of `program`, those that the epoch takes of each device, of `resident`, those
      that this process takes of its host, and of `device_peak`, the most that its first device has
      held, as far as they are known.
    - `bytes_sent`: bytes that leave each device in an epoch, of them `between_hosts`.

    A continued run appends to the log; `read_log` drops what it repeats. If a line cannot be
    written, training goes on, with one warning.

    Args:
      path: the file. The first process of a run writes it; where the name contains "{process}",
        every process writes a file of its own.
      per_host: devices of a host, for `between_hosts`; None: there is one host.
      steps: batches of an epoch, `len(loader)` of a `jaxgraph.sampling.Loader`.

    Raises:
      ValueError: the file exists and is no log, or there is no such folder.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, per_host: int | None = None, steps: int = 1
    ) -> None:
        check_log("path", Path(path))
        self._path, self._per_host = os.fspath(path), per_host
        self._steps = steps
        self._program: int | None = None
        self._sent: dict[str, int] | None = None
        self._is_writable = True

    def compiled(self, programs: Sequence[jax.stages.Compiled]) -> None:
        """Notes the memory and the traffic of the programs of an epoch, for every line.

        Args:
          programs: as `fit` gives them to `on_compile`. After a move to other parts they are no
            longer those that run.
        """
        self._program = max(_bytes_taken(program) for program in programs)
        with suppress(ValueError):  # A program may send in a way that is not counted.
            sent = [_bytes_sent(program, self._per_host) for program in programs]
            sent[0] = {name: self._steps * count for name, count in sent[0].items()}
            self._sent = {name: sum(each[name] for each in sent) for name in sent[0]}

    def __call__(self, record: EpochRecord) -> None:
        """Appends the line of an epoch.

        Args:
          record: its record.
        """
        process = jax.process_index()
        if not self._is_writable or (process and PROCESS not in self._path):
            return
        slowest = record.slowest_part
        line = {
            "epoch": record.epoch,
            "loss": record.loss,
            "val_loss": record.val_loss,
            "seconds": record.seconds,
            "is_best": record.is_best,
            "metrics": {split: dict(values) for split, values in record.metrics.items()},
            "slowest_part": slowest and {"part": slowest.part, "seconds": slowest.seconds},
            "waited": record.waited,
            "copied": record.copied,
            "memory": {
                "program": self._program,
                "resident": _resident_bytes(),
                "device_peak": _device_peak(),
            },
            "bytes_sent": self._sent,
        }
        path = Path(self._path.replace(PROCESS, str(process)))
        try:
            append_line(path, json.dumps(plain(line), allow_nan=False))
        except OSError as error:
            self._is_writable = False
            reason = error.strerror or str(error)
            message = f"{path} could not be written ({reason}); training goes on without its log"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def _bytes_taken(program: jax.stages.Compiled) -> int:
    found = program.memory_analysis()
    assert found is not None
    held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return held + found.temp_size_in_bytes


def _bytes_sent(program: jax.stages.Compiled, per_host: int | None) -> dict[str, int]:
    if per_host is None:
        return {"total": sum(traffic(program).values()), "between_hosts": 0}
    sent = traffic_by_link(program, per_host)
    return {"total": sent.total, "between_hosts": sum(sent.between.values())}


def _resident_bytes() -> int | None:
    """The memory that this process takes of its host; None where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _device_peak() -> int | None:
    """The most bytes that the first device of this process has held; None where it is unknown."""
    found = jax.local_devices()[0].memory_stats()
    return None if found is None else found.get("peak_bytes_in_use")
