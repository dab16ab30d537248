"""Checkpoints of a run: written beside the training, whole or not at all, checked before use.

FOLDER/epoch-00000005/manifest.json   epoch, records, the kind of run, a CRC-32 of every file
FOLDER/epoch-00000005/state/          the `FitState`, written by Orbax
"""

from jaxgraph.train.checkpoints.request import Checkpoints

__all__ = ["Checkpoints"]
