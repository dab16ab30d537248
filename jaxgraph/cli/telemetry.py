"""The profiler trace of a training run."""

from pathlib import Path

__all__ = ["Trace"]


class Trace:
    """A trace of the first epochs. Use as a context manager around training.

    Args:
        folder: Where it is written; None: nowhere.
        epochs: How many.
    """

    def __init__(self, folder: Path | None, epochs: int) -> None:
        if folder and not folder.is_dir() and (folder.exists() or not folder.parent.is_dir()):
            raise ValueError(f"--profile: {folder} is no folder, and none can be made there.")
        self._folder, self._left, self._is_on = folder, epochs, False

    def __enter__(self) -> "Trace":
        return self

    def begin(self) -> None:
        """Begins the trace, before the first epoch and after the compilation."""
        if self._folder is not None:
            import jax

            # Processes of one host would write the same file.
            is_alone = jax.process_count() == 1
            name = "." if is_alone else f"process-{jax.process_index()}"
            jax.profiler.start_trace(self._folder / name)
            self._is_on = True

    def epoch_ended(self) -> None:
        """Ends the trace after the last epoch that it holds."""
        self._left -= 1
        if self._left == 0:
            self.__exit__()

    def __exit__(self, *error: object) -> None:
        if self._is_on:
            import jax

            self._is_on = False
            jax.profiler.stop_trace()
