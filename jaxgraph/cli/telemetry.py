"""The log and the profiler trace of a training run, as `TelemetryOptions` ask for them."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jaxgraph.cli.telemetry_options import TelemetryOptions
from jaxgraph.run_log import check_log

if TYPE_CHECKING:
    from jaxgraph.parallel import ShardedGraph

__all__ = ["Telemetry", "check_telemetry"]


def check_telemetry(options: TelemetryOptions) -> None:
    """Checks before the work that what the options ask for can be written.

    Raises:
        ValueError: The file or the folder cannot be used; the message names the option.
    """
    if options.profile is not None:
        _check_folder("--profile", options.profile)
    if options.log is not None:
        check_log("--log", options.log)


def _check_folder(option: str, path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"{option}: {path} is no folder; expected a new one, or one that exists.")
    if not path.is_dir() and not path.parent.is_dir():
        raise ValueError(f"{option}: there is no folder {path.parent}; make it first.")


class Telemetry:
    """The log and the trace of a run. Use as a context manager around training.

    Args:
        options: The options.
        sharded: The graph on its mesh.
    """

    def __init__(self, options: TelemetryOptions, sharded: "ShardedGraph") -> None:
        from jaxgraph.train import EpochLog

        hosts = sharded.shards.hosts
        per_host = sharded.mesh.size // hosts if hosts > 1 else None
        log = options.log
        self._log = None if log is None else EpochLog(log, per_host=per_host)
        self._folder, self._left = options.profile, options.profile_epochs
        self._traces = False

    def begin(self, programs: Sequence[Any]) -> None:
        """Begins the trace before the first epoch, whose programs are compiled."""
        if self._log is not None:
            self._log.compiled(programs)
        if self._folder is not None:
            import jax

            # Processes of one host would write the same file.
            several = jax.process_count() > 1
            of_process = f"process-{jax.process_index()}" if several else "."
            jax.profiler.start_trace(self._folder / of_process)
            self._traces = True

    def epoch_ended(self, record: Any) -> None:
        """Writes the line of an epoch, and ends the trace after the last that it holds."""
        if self._log is not None:
            self._log(record)
        self._left -= 1
        if self._left == 0:
            self._end_trace()

    def _end_trace(self) -> None:
        if self._traces:
            import jax

            self._traces = False
            jax.profiler.stop_trace()

    def __enter__(self) -> "Telemetry":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_trace()
