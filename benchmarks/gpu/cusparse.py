"""cuSPARSE's SpMM, called directly, with reused descriptors and buffers."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cpu.tasks import SpMM
from benchmarks.gpu.contestant import SHOWN_ROWS, Contestant
from benchmarks.gpu.graphs import Placed

ALGORITHMS = {"cuSPARSE": 0, "cuSPARSE ALG1": 4, "cuSPARSE ALG2": 6, "cuSPARSE ALG3": 12}
"""CUSPARSE_SPMM_ALG_DEFAULT and CUSPARSE_SPMM_CSR_ALG1 to 3."""

_NO_TRANSPOSE, _INT32, _FROM_ZERO, _FLOAT32, _ROW_MAJOR = 0, 2, 0, 0, 2


def load_library() -> ctypes.CDLL:
    """The library, from jax[cuda]'s packages or from the system.

    Raises:
      OSError: the library is not installed.
    """
    spec = importlib.util.find_spec("nvidia")
    folders = map(Path, spec.submodule_search_locations or ()) if spec else ()
    found = [str(path) for folder in folders for path in folder.glob("**/libcusparse.so.*")]
    for name in (*sorted(found), "libcusparse.so.12", "libcusparse.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("there is no libcusparse; pip install 'jaxgraph[cuda]' brings it")


def cusparse_contestant(task: SpMM, placed: Placed, algorithm: int) -> Contestant:
    """One of cuSPARSE's algorithms, on jaxgraph's rows, in the same order.

    Args:
      task: the task.
      placed: the graph.
      algorithm: one of `ALGORITHMS`.

    Returns:
      The contestant.

    Raises:
      OSError: the library is not installed.
      RuntimeError: a call fails.
    """
    multiply = Multiply(task, placed, algorithm, load_library(), ctypes.CDLL("libcuda.so.1"))
    return Contestant(
        take=multiply.take,
        call=multiply.call,
        wait=multiply.wait,
        numbers=lambda y: {"y": np.asarray(y[:SHOWN_ROWS])},
        memory=multiply.memory,
    )


class Multiply:
    """y = A x, row major.

    Args:
      task, placed, algorithm: as for `cusparse_contestant`.
      library: cuSPARSE.
      driver: CUDA's driver library.
    """

    def __init__(
        self, task: SpMM, placed: Placed, algorithm: int, library: Any, driver: Any
    ) -> None:
        self._library, self._driver = library, driver
        self._algorithm, self._rows, self._features = algorithm, placed.num_rows, task.features
        pointers, senders = placed.compressed
        self._edges = len(senders)
        self._pointers, self._senders = jnp.asarray(pointers), jnp.asarray(senders)
        self._ones = None if task.weighted else jnp.ones(len(senders), jnp.float32)
        self._y = jax.block_until_ready(jnp.zeros((self._rows, self._features), jnp.float32))
        self._handle = ctypes.c_void_p()
        self._check("Create", ctypes.byref(self._handle))
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._result = self._dense(self._y)

    def take(self, arrays: Sequence[jax.Array]) -> tuple[Any, ...]:
        """The descriptors of the matrix and of x, the buffer filled by the preprocessing."""
        x, values = arrays[0], self._ones if len(arrays) == 1 else arrays[1][: self._edges]
        assert values is not None
        x, values = jax.block_until_ready((x, values))
        matrix = ctypes.c_void_p()
        sizes = map(ctypes.c_int64, (self._rows, self._rows, self._edges))
        data = map(_address, (self._pointers, self._senders, values))
        kinds = (_INT32, _INT32, _FROM_ZERO, _FLOAT32)
        self._check("CreateCsr", ctypes.byref(matrix), *sizes, *data, *kinds)
        taken = (matrix, self._dense(x))
        size = ctypes.c_size_t()
        self._check("SpMM_bufferSize", *self._operands(*taken), ctypes.byref(size))
        space = jax.block_until_ready(jnp.zeros(max(size.value, 1), jnp.uint8))
        buffer = _address(space)
        self._check("SpMM_preprocess", *self._operands(*taken), buffer)
        self.wait(None)
        # The arrays stay alive as long as their descriptors.
        multiply = partial(self._check, "SpMM", *self._operands(*taken), buffer)
        return multiply, x, values, space

    def call(self, taken: tuple[Any, ...]) -> jax.Array:
        """Starts the product, which overwrites the same result every time."""
        taken[0]()
        return self._y

    def wait(self, _: Any) -> None:
        """Waits for the device."""
        if status := self._driver.cuCtxSynchronize():
            raise RuntimeError(f"cuCtxSynchronize returned {status}")

    def memory(self, taken: tuple[Any, ...]) -> int:
        """Bytes of the matrix, x, y and the buffer."""
        arrays = (self._pointers, self._senders, self._y, *taken[1:])
        return sum(array.nbytes for array in arrays)

    def _operands(self, matrix: ctypes.c_void_p, x: ctypes.c_void_p) -> tuple[Any, ...]:
        one, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        operations = (_NO_TRANSPOSE, _NO_TRANSPOSE)
        return (
            *(self._handle, *operations, one, matrix, x, zero, self._result),
            *(_FLOAT32, self._algorithm),
        )

    def _dense(self, array: jax.Array) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        sizes = map(ctypes.c_int64, (self._rows, self._features, self._features))
        kinds = (_FLOAT32, _ROW_MAJOR)
        self._check("CreateDnMat", ctypes.byref(made), *sizes, _address(array), *kinds)
        return made

    def _check(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, f"cusparse{name}")(*arguments):
            raise RuntimeError(f"cusparse{name} returned {status}")


def _address(array: jax.Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.unsafe_buffer_pointer())
