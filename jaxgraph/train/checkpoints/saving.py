"""The checkpoints of one run: where it continues, and what it saves beside its training."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxgraph.kinds import kind_of
from jaxgraph.parallel import ShardedGraph
from jaxgraph.train import graph_digest, identity
from jaxgraph.train.agreement import from_first
from jaxgraph.train.checkpoints import folder as folders
from jaxgraph.train.checkpoints import manifest
from jaxgraph.train.checkpoints.manifest import Contents, DamagedError
from jaxgraph.train.checkpoints.request import Checkpoints
from jaxgraph.train.fit_state import (
    FitState,
    abstract_fit_state,
    check_leaves,
    checked_fit_state,
    described,
)
from jaxgraph.train.history import EpochRecord
from jaxgraph.train.task import Task

__all__ = ["Resumed", "Saving", "saving_of"]


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A run that was read from a checkpoint.

    Attributes:
      path: the checkpoint.
      state: the state after its last epoch.
      records: of all its epochs.
      samples: measured times of layers.
    """

    path: Path
    state: FitState
    records: tuple[EpochRecord, ...]
    samples: list[dict[str, Any]]

    @property
    def epoch(self) -> int:
        """Number of the last epoch."""
        return int(self.state.epoch)


class Saving:
    """Saves one run; the first process writes, in a thread, one checkpoint at a time.

    Args:
      request: what the caller asked for; None: nothing is saved.
      resumed: the checkpoint that the run continues, or None.
      digests: what must be the same where the run is resumed, by name.

    Attributes:
      resumed: as given.
      last: the newest checkpoint that is whole on the disk, or None. In other processes than the
        first: that will be whole.
    """

    def __init__(
        self,
        request: Checkpoints | None = None,
        resumed: Resumed | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        self.resumed, self._request = resumed, request
        self._digests = digests or {}
        self.last = None if resumed is None else resumed.path
        self._epoch = 0 if resumed is None else resumed.epoch
        is_first = request is not None and jax.process_index() == 0
        self._thread = ThreadPoolExecutor(1, "checkpoints") if is_first else None
        self._pending: Future[Path] | None = None

    @property
    def earlier(self) -> tuple[EpochRecord, ...]:
        """The records of the epochs before the run was resumed."""
        return () if self.resumed is None else self.resumed.records

    def due(self, epoch: int) -> bool:
        """True where the run is to be saved after an epoch."""
        return self._request is not None and epoch % self._request.every == 0

    def check(self) -> None:
        """Raises OSError if a checkpoint could not be written; does not wait."""
        if self._pending is not None and self._pending.done():
            self._wait()

    def save(
        self,
        state: FitState,
        records: Sequence[EpochRecord],
        graphs: Sequence[ShardedGraph],
        samples: Sequence[Any] = (),
    ) -> None:
        """Begins to write a checkpoint, once the one before is written.

        Args:
          state: the state after the last record, on the host.
          records: of this call's epochs.
          graphs: those on which it trains.
          samples: measured times of layers, `jaxgraph.planner.Sample`.

        Raises:
          OSError: the one before could not be written.
        """
        self._wait()
        epoch = int(state.epoch)
        if self._request is None or epoch <= self._epoch:
            return
        self._epoch = epoch
        folder, keep = self._request.path, self._request.keep
        if self._thread is None:
            self.last = folders.path_of(folder, epoch)
            return
        records = (*self.earlier, *records)
        contents = Contents(
            epoch=epoch,
            val_loss=records[-1].val_loss,
            keeps_best=state.best_params is not None,
            leaves=dict(described(state)),
            layout=_layout(graphs),
            records=records,
            samples=[dataclasses.asdict(sample) for sample in samples],
            files={},
            identity=self._digests,
        )

        def write() -> Path:
            path = folders.save(folder, state, contents)
            folders.prune(folder, keep, {each.epoch: each.val_loss for each in records})
            return path

        self._pending = self._thread.submit(write)

    def finish(self, *saved: Any) -> None:
        """Saves the end of the run unless it is saved, and waits until it is written.

        Args:
          saved: as for `save`.

        Raises:
          OSError: it could not be written.
        """
        self.save(*saved)
        self._wait()

    def close(self) -> None:
        """Waits for the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self.last = pending.result()


@contextmanager
def saving_of(
    request: Checkpoints | None,
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    task: Task,
    graphs: Sequence[ShardedGraph],
) -> Iterator[Saving]:
    """Opens the folder of a run, reads where it continues, and waits at the end for what it writes.

    Args:
      request: as `fit` was given it.
      model, optimizer, task, graphs: of the run.

    Raises:
      ValueError: the request is no `Checkpoints`, the folder cannot be used, or a checkpoint is of
        another model, optimizer, task or graph.
    """
    if request is None:
        yield Saving()
        return
    if not isinstance(request, Checkpoints):
        raise ValueError(
            f"checkpoint is {kind_of(request)}; expected jaxgraph.train.Checkpoints(folder)"
        )
    digests = identity.of_run(model, optimizer, task) | graph_digest.of_graphs(graphs)
    with ExitStack() as stack:

        def opened() -> bytes:
            stack.enter_context(folders.alone_with(request.path, resume=request.resume))

            def read(path: Path) -> bytes:
                return _read(path, model, optimizer, digests)

            return folders.newest(request.path, read) or b""

        found = from_first(opened)
        resumed = _resumed(found, model, optimizer) if found else None
        saving = Saving(request, resumed, digests)
        try:
            yield saving
        finally:
            saving.close()


def _read(
    path: Path,
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    digests: Mapping[str, str],
) -> bytes:
    """Reads and checks a checkpoint, for all processes."""
    contents = manifest.read(path)
    manifest.check_files(path, contents.files)
    if path.name != folders.path_of(path.parent, contents.epoch).name:
        raise DamagedError(f"it holds epoch {contents.epoch}")
    target = abstract_fit_state(model, optimizer, restore_best=contents.keeps_best)
    others = identity.differing(contents.identity, digests)
    if "jax_enable_x64" not in others:
        check_leaves(contents.leaves, target, str(path))  # It names the array.
    if others:
        raise ValueError(
            f"{path} is of another run, which differs in {identity.listed(others)}; give what that "
            "run was begun with, or take another folder"
        )
    state = folders.load_state(path, target)
    checked_fit_state(state, target)
    if int(state.epoch) != contents.epoch:
        raise DamagedError(f"its state is of epoch {int(state.epoch)}")
    head = json.dumps([str(path), manifest.as_json(contents)]).encode()
    return b"".join((head, b"\n", *(leaf.tobytes() for leaf in jax.tree.leaves(state))))


def _resumed(data: bytes, model: nnx.Module, optimizer: optax.GradientTransformation) -> Resumed:
    """Undoes `_read`, in every process."""
    head, numbers = data.split(b"\n", 1)
    path, fields = json.loads(head)
    contents = manifest.from_json(fields)
    target = abstract_fit_state(model, optimizer, restore_best=contents.keeps_best)
    leaves, first = [], 0
    for leaf in jax.tree.leaves(target):
        flat = np.frombuffer(numbers, leaf.dtype, leaf.size, first)
        leaves.append(flat.reshape(leaf.shape).copy())
        first += leaf.nbytes
    state = jax.tree.unflatten(jax.tree.structure(target), leaves)
    return Resumed(Path(path), state, contents.records, contents.samples)


def _layout(graphs: Sequence[ShardedGraph]) -> dict[str, Any]:
    """A fingerprint: runs with equal ones on equal devices end with equal bits."""
    manifests = repr([(graph.manifest, graph.shards.nodes.__class__) for graph in graphs])
    return {
        "parts": [graph.num_parts for graph in graphs],
        "devices": graphs[0].mesh.size,
        "processes": jax.process_count(),
        "mode": [graph.manifest.mode for graph in graphs],
        "jax": jax.__version__,
        "sha256": hashlib.sha256(manifests.encode()).hexdigest(),
    }
