"""The options of the checkpoints of a run."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxgraph.cli.limits import Number, option_name

__all__ = ["CheckpointOptions"]

_option = partial(typer.Option, rich_help_panel="Checkpoints")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The options of the checkpoints of a run."""

    checkpoint: Annotated[
        Path | None,
        _option(help="Save the run in this folder, so that --resume can continue it."),
    ] = None
    checkpoint_every: Annotated[
        int | None,
        _option(help="Save after every so many epochs, and at the end; 5 where not given."),
        Number(least=1),
    ] = None
    keep: Annotated[
        int | None,
        _option(
            help="The newest checkpoints to keep, beside that of the lowest validation loss; 3 "
            "where not given."
        ),
        Number(least=1),
    ] = None
    resume: Annotated[
        bool,
        _option(
            "--resume",
            help="Continue after the newest checkpoint that is undamaged, up to --epochs; where "
            "there is none, start from the beginning.",
        ),
    ] = False

    def check_checkpoints(self) -> None:
        """Raises ValueError where an option needs the folder, which is not given."""
        for name in ("checkpoint_every", "keep", "resume"):
            if self.checkpoint is None and getattr(self, name):
                raise ValueError(f"{option_name(name)}: needs the folder of the run, --checkpoint.")

    def checkpoints(self) -> Any:
        """The request to `jaxgraph.train.fit`, or None."""
        from jaxgraph.train import Checkpoints

        if self.checkpoint is None:
            return None
        return Checkpoints(self.checkpoint, self.checkpoint_every or 5, self.keep or 3, self.resume)
