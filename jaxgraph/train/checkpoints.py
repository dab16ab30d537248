"""Checkpoints of a run: a file each, written beside the training, whole or not at all.

FOLDER/epoch-00000005 has a line of JSON (epoch, records, kind of run, type and shape of every
array), the bytes of the arrays of the `FitState` in their order, and a line with the CRC-32 of all
before.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxgraph.kinds import kind_of
from jaxgraph.parallel import ShardedGraph
from jaxgraph.train import graph_digest, identity
from jaxgraph.train.agreement import from_first
from jaxgraph.train.arguments import check_model, checked_count
from jaxgraph.train.fit_state import (
    FitState,
    abstract_fit_state,
    check_leaves,
    described,
    restore,
)
from jaxgraph.train.history import EpochRecord, SlowestPart
from jaxgraph.train.objective import split_model
from jaxgraph.train.task import Task
from jaxgraph.written_file import UNFINISHED, alone_in, check_writable, write_atomically

FORMAT = "jaxgraph checkpoint 3"
"""Name and version of the format; a program reads its own version alone."""
_NAME = re.compile(r"epoch-([0-9]{8,})")


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """A folder in which `fit` saves the run, and from which it continues.

    A checkpoint holds the state of the run and the records of its epochs. It is written while
    training goes on, into a file that gets its name once all data is on the disk, so that a killed
    process leaves whole checkpoints alone. Its checksum is compared before it is read.

    Attributes:
      folder: a new folder, or one without checkpoints, or one of a run to resume. Where there are
        several processes, only the first reads and writes it.
      every: save after every so many epochs, and after the last one.
      keep: how many of the newest checkpoints to keep. The one of the lowest validation loss is
        kept beside them.
      resume: whether to continue after the newest checkpoint that is undamaged; without any
        checkpoint the run starts from its beginning. Graph, model, task and kind of optimizer must
        be those of the run, by digests in the checkpoint. Numbers of the optimizer, epochs,
        patience, policies, partition, mode and devices may change.

    Raises:
      ValueError: an attribute is of the wrong kind.
    """

    folder: str | os.PathLike[str]
    every: int = 5
    keep: int = 3
    resume: bool = False

    def __post_init__(self) -> None:
        """Checks the kinds."""
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise ValueError(f"folder is {kind_of(self.folder)}; expected the path of a folder")
        checked_count("every", self.every)
        checked_count("keep", self.keep)
        if not isinstance(self.resume, bool):
            raise ValueError(f"resume is {self.resume!r}; expected True or False")

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)


def load_checkpoint(
    folder: str | os.PathLike[str], model: nnx.Module, *, best: bool = True
) -> EpochRecord:
    """Fills a model with what a run has learned, from the newest checkpoint that is undamaged.

    It needs neither the optimizer nor the graph of the run, which may still train.

    Args:
      folder: the folder of the run's `Checkpoints`.
      model: a module with the variables of the run's model; changed in place.
      best: whether to take the parameters and statistics of the lowest validation loss, which `fit`
        leaves in a model, or those after the last epoch.

    Returns:
      The record of the epoch that they are of.

    Raises:
      ValueError: the folder holds no checkpoint, all are damaged or of another version, or the
        model has other variables: their names are listed.
    """
    check_model(model, ())
    path = Path(folder)
    if not path.is_dir() or not _held(path):
        raise ValueError(
            f"folder: {path} holds no checkpoint; expected the folder of a run that was saved, as "
            "by fit(..., checkpoint=jaxgraph.train.Checkpoints(folder))"
        )
    data = from_first(lambda: _newest(path, lambda each: _undamaged(each)[0]))
    head = json.loads(data.partition(b"\n")[0])
    roots = (".best_params", ".best_statistics") if best else (".params", ".statistics")
    variables = split_model(model)[1:]
    want: dict[str, str] = {}
    for root, tree in zip(roots, variables, strict=True):
        want |= described(tree, root)
    have = {name: text for name, text in head["leaves"].items() if name.startswith(roots)}
    others = [
        f"{name} is {have.get(name, 'missing')} there and {want.get(name, 'missing')} in the model"
        for name in identity.differing(have, want)
    ]
    if others:
        raise ValueError(
            f"{_path(path, head['epoch'])} is of another model: {identity.listed(others)}; make "
            "the model as it was made for that run"
        )
    found = _arrays(data, head["leaves"])
    leaves = [found[name] for name in want]
    restore(model, *jax.tree.unflatten(jax.tree.structure(variables), leaves))
    records = map(_record, head["records"])
    return [record for record in records if record.is_best or not best][-1]


class DamagedError(Exception):
    """A checkpoint is not what was written."""


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A run that was read from a checkpoint; without one, it begins.

    Attributes:
      path: the checkpoint.
      state: the state after its last epoch.
      records: of all its epochs.
      samples: measured times of layers.
    """

    path: Path | None = None
    state: FitState | None = None
    records: tuple[EpochRecord, ...] = ()
    samples: Sequence[dict[str, Any]] = ()

    @property
    def epoch(self) -> int:
        """Number of the last epoch."""
        return 0 if self.state is None else int(self.state.epoch)


class Saving:
    """Saves one run; the first process writes, in a thread, one checkpoint at a time.

    Args:
      request: what the caller asked for; None: nothing is saved.
      resumed: the checkpoint that the run continues.
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
        self.resumed = Resumed() if resumed is None else resumed
        self._request, self._digests = request, digests
        self.last, self._epoch = self.resumed.path, self.resumed.epoch
        is_first = request is not None and jax.process_index() == 0
        self._thread = ThreadPoolExecutor(1, "checkpoints") if is_first else None
        self._pending: Future[Path] | None = None

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
        samples: Sequence[Any],
        *,
        wait: bool,
    ) -> None:
        """Begins to write a checkpoint unless it is saved, once the one before is written."""
        self._wait()
        epoch = int(state.epoch)
        if self._request is None or epoch <= self._epoch:
            return
        self._epoch = epoch
        path = _path(self._request.path, epoch)
        if self._thread is None:
            self.last = path
            return
        records = (*self.resumed.records, *records)
        head = {
            "format": FORMAT,
            "epoch": epoch,
            "keeps_best": True,  # of this format, whose other kind no run writes
            "leaves": described(state),
            "identity": self._digests,
            "samples": [dataclasses.asdict(sample) for sample in samples],
            "records": [dataclasses.asdict(record) for record in records],
        }
        losses = {record.epoch: record.val_loss for record in records}
        self._pending = self._thread.submit(_write, path, head, state, self._request.keep, losses)
        if wait:
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
    further: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Saving]:
    """Opens the folder of a run, reads where it continues, and waits at the end for its writes."""
    if request is None:
        yield Saving()
        return
    if not isinstance(request, Checkpoints):
        raise ValueError(
            f"checkpoint is {kind_of(request)}; expected jaxgraph.train.Checkpoints(folder)"
        )
    digests = identity.of_run(model, optimizer, task) | graph_digest.of_graphs(graphs)
    digests |= further
    target = abstract_fit_state(model, optimizer)
    with ExitStack() as stack:

        def opened() -> bytes:
            stack.enter_context(_alone_in(request.path, resume=request.resume))
            return _newest(request.path, lambda path: _read(path, target, digests))

        found = from_first(opened)
        resumed = _resumed(found, request.path, target) if found else None
        saving = Saving(request, resumed, digests)
        stack.callback(saving.close)
        yield saving


@contextmanager
def _alone_in(folder: Path, *, resume: bool) -> Iterator[None]:
    """Makes the folder of a run, and keeps it from other runs while the context lasts."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        reason = str(error.strerror).lower()
        raise ValueError(f"{folder} cannot be a folder of checkpoints ({reason})") from error
    held = _held(folder)
    if held and not resume:
        raise ValueError(
            f"{folder} holds checkpoints of a run, the last after epoch {held[0]}; resume "
            "that run (resume, or --resume on the command line), or take another folder"
        )
    check_writable("checkpoint", folder / "epoch")
    with alone_in(folder):
        for left in folder.iterdir():  # of a killed run
            if UNFINISHED.fullmatch(left.name):
                left.unlink()
        yield


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:08d}"


def _held(folder: Path) -> list[int]:
    """The epochs of the checkpoints, the newest first."""
    found = (_NAME.fullmatch(each.name) for each in folder.iterdir())
    return sorted((int(match[1]) for match in found if match), reverse=True)


def _write(
    path: Path, head: dict[str, Any], state: FitState, keep: int, losses: Mapping[int, float]
) -> Path:
    """Writes a checkpoint, and deletes all but the newest and that of the lowest loss."""
    arrays = [leaf.tobytes() for leaf in jax.tree.leaves(state)]
    parts = [json.dumps(head).encode(), b"\n", *arrays]
    crc32 = functools.reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)
    write_atomically(path, b"".join((*parts, b"\n", _text(crc32))))
    held = _held(path.parent)
    finite = [epoch for epoch in held if math.isfinite(losses.get(epoch, math.nan))]
    best = min(finite, key=lambda epoch: (losses[epoch], epoch), default=None)
    for epoch in held[keep:]:
        if epoch != best:
            _path(path.parent, epoch).unlink(missing_ok=True)
    return path


def _text(crc32: int) -> bytes:
    return b"%08x" % crc32


def _newest(folder: Path, read: Callable[[Path], bytes]) -> bytes:
    """The newest checkpoint that is undamaged, with a warning of those that are not; or nothing."""
    damaged: list[str] = []
    for epoch in _held(folder):
        path = _path(folder, epoch)
        try:
            found = read(path)
        except DamagedError as error:
            damaged.append(f"{path} is damaged: {error}")
            continue
        if damaged:
            warnings.warn(
                f"{'; '.join(damaged)}. In its place {path} is read, after epoch {epoch}",
                stacklevel=2,
            )
        return found
    if damaged:
        raise ValueError(
            f"no checkpoint can be read: {'; '.join(damaged)}. Move them away to start from the "
            "beginning"
        )
    return b""


def _undamaged(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a checkpoint without the checksum, and its head."""
    try:
        data, _, crc32 = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise DamagedError(str(error.strerror).lower()) from error
    if crc32 != _text(zlib.crc32(data)):
        raise DamagedError("it has another checksum than when it was written")
    head = json.loads(data.partition(b"\n")[0])
    if head["format"] != FORMAT:
        raise ValueError(
            f"{path} has the format {head['format']!r}, and this version of jaxgraph reads "
            f"{FORMAT!r}; resume with the version that wrote it, or take another folder"
        )
    if path != _path(path.parent, head["epoch"]):
        raise DamagedError(f"it holds epoch {head['epoch']}")
    return data, head


def _read(path: Path, target: FitState, digests: Mapping[str, str]) -> bytes:
    """The bytes of a checkpoint that is undamaged and of this run, without the checksum."""
    data, head = _undamaged(path)
    others = identity.differing(head["identity"], digests)
    if others:
        raise ValueError(
            f"{path} is of another run, which differs in {identity.listed(others)}; give what that "
            "run was begun with, or take another folder"
        )
    check_leaves(head["leaves"], target, str(path))
    return data


def _resumed(data: bytes, folder: Path, target: FitState) -> Resumed:
    """The run that a checkpoint holds, in every process."""
    head = json.loads(data.partition(b"\n")[0])
    leaves = [leaf.copy() for leaf in _arrays(data, head["leaves"]).values()]
    state = jax.tree.unflatten(jax.tree.structure(target), leaves)
    records = tuple(map(_record, head["records"]))
    return Resumed(_path(folder, head["epoch"]), state, records, head["samples"])


def _arrays(data: bytes, leaves: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by name, given the type and the shape of each."""
    found, first = {}, data.index(b"\n") + 1
    for name, text in leaves.items():
        dtype, _, shape = text.partition("[")
        sizes = json.loads(f"[{shape}")
        flat = np.frombuffer(data, np.dtype(dtype), math.prod(sizes), first)
        found[name] = flat.reshape(sizes)
        first += flat.nbytes
    return found


def _record(fields: dict[str, Any]) -> EpochRecord:
    slowest: Any = fields["slowest_part"] and SlowestPart(**fields["slowest_part"])
    return EpochRecord(**{**fields, "slowest_part": slowest})
