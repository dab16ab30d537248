"""The devices that parts visit: transfers to them and back, and the programs that run there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxgraph.parallel.streaming.feeding import Feed, Packing, Threads, Writer
from jaxgraph.parallel.streaming.graph import HostParts
from jaxgraph.parallel.streaming.programs import Executables, Spread, Waiting, spread_type

Pytree = Any


class Devices:
    """The devices, in one run of a streamed function.

    Args:
      host: the parts of the graph.
      executables: the programs that were compiled so far.
      threads: load and write; None: those of the graph.
    """

    def __init__(
        self, host: HostParts, executables: Executables, threads: Threads | None = None
    ) -> None:
        self.host, self.executables = host, executables
        self.moved = host.moved
        self._numbers: dict[tuple[int, ...], Spread] = {}
        self.store = host.store.empty()
        self.packing = Packing(host.pipeline.in_flight)
        self._threads = threads or host.threads
        self._writer = Writer(host.pipeline.in_flight, self._threads.writing)
        devices = list(executables.mesh.devices.flat)
        self._local = [devices[at] for at in host.local]

    def hold(self, tree: Pytree) -> Pytree:
        """Sends arrays that all parts share, where they are not on the devices already."""
        return jax.device_put(tree, self.executables.shared)

    def leaf(self, number: int, turn: int) -> Waiting:
        """An array of each part of a turn, on the host."""
        return Waiting(tuple(self.host.leaf(number, part) for part in self.host.of_turn(turn)))

    def send(self, tree: Pytree) -> Pytree:
        """Sends arrays of the host to the devices; those that are there stay."""
        leaves, structure = jax.tree.flatten(tree)
        waiting = [leaf for leaf in leaves if isinstance(leaf, Waiting)]
        shared = [leaf for leaf in leaves if not isinstance(leaf, Waiting)]
        on_host = [leaf for leaf in shared if isinstance(leaf, np.ndarray)]
        shared = [self._of_all_processes(leaf) for leaf in shared]
        on_host += [array for leaf in waiting for array in leaf.arrays]
        self.moved.sent += sum(array.nbytes for array in on_host)
        sent = iter(self._spread(waiting))
        held = iter(jax.device_put(shared, self.executables.shared) if shared else [])
        return structure.unflatten(
            [next(sent) if isinstance(leaf, Waiting) else next(held) for leaf in leaves]
        )

    def numbers(self, of_devices: tuple[int, ...]) -> Spread:
        """A number of each part of a turn, int32, which is sent once."""
        if of_devices not in self._numbers:
            waiting = Waiting(tuple(np.array(each, np.int32) for each in of_devices))
            self._numbers[of_devices] = self.send(waiting)
        return self._numbers[of_devices]

    def _of_all_processes(self, leaf: Any) -> Any:
        """An array that all parts share, sent where the devices are of several processes.

        There `jax.device_put` compares the arrays of all processes, which no thread may do beside
        the programs.
        """
        sharding = self.executables.shared
        if not isinstance(leaf, np.ndarray) or sharding.is_fully_addressable:
            return leaf
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    def _spread(self, waiting: list[Waiting]) -> list[Spread]:
        """Arrays of each device as one array of all."""
        count, sharding = self.executables.mesh.size, self.executables.spread
        if count == 1:
            arrays = jax.device_put([each.arrays[0] for each in waiting], sharding)
            return [Spread(array, not array.ndim) for array in arrays]
        pieces = [
            jax.device_put([np.atleast_1d(each.arrays[at]) for each in waiting], device)
            for at, device in enumerate(self._local)
        ]
        found = []
        for each, of_devices in zip(waiting, zip(*pieces, strict=True), strict=True):
            like = spread_type(each.arrays[0], count)
            array = jax.make_array_from_single_device_arrays(
                like.array.shape, sharding, list(of_devices)
            )
            found.append(Spread(array, like.is_number))
        return found

    def call(
        self, program: Callable[..., Any], *arguments: Any, donates: bool = False, **options: Any
    ) -> Any:
        """Runs a function, compiled for these arguments; see `Executables.of`."""
        leaves, structure = jax.tree.flatten(arguments)
        made = self.executables.of(program, leaves, structure, donates, tuple(options.items()))
        assert made.run is not None
        return made.run(*leaves)

    def bring(self, value: Spread, write: Callable[[int, Any], None]) -> None:
        """Brings arrays back, in a thread, in order."""
        self.moved.returned += value.array.nbytes * len(self._local) // self.host.devices
        self._writer.submit(lambda: self._write(value, write))

    def _write(self, value: Spread, write: Callable[[int, Any], None]) -> None:
        pieces = {piece.device: piece.data for piece in value.array.addressable_shards}
        for number, device in zip(self.host.local, self._local, strict=True):
            array = np.asarray(pieces[device])
            write(number, array.reshape(()) if value.is_number else array)

    def feed(self, loads: Iterable[Callable[[], Any]]) -> Any:
        """The results of loads, a few of them ahead."""
        return Feed(loads, self.host.pipeline.ahead, self._threads.loading)

    def finish(self) -> None:
        """Waits for all programs and writes."""
        self.packing.finish()
        self._writer.finish()
        self.store.recycle()

    def close(self) -> None:
        """Ends the run."""
        self._writer.close()
        self.store.close()
