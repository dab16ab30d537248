"""Gradients of NumPy in float64, by reverse mode: operations note how to pull a gradient back.

An oracle is a function of arrays, and says nothing of gradients. Given `Value`s it returns a
`Value`; `differentiate` makes them. Finite differences check every operation, in `test_tape.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Pull = Callable[[np.ndarray], np.ndarray]
_NUMBERS = itertools.count()


class Value:
    """An array that was computed, with the values that it was computed of."""

    # Arrays leave operations with a value to the value.
    __array_ufunc__ = None

    def __init__(self, array: Any, pulls: Sequence[tuple[Value, Pull]] = ()) -> None:
        self.array = np.asarray(array, np.float64)
        self.pulls = pulls
        self.number = next(_NUMBERS)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    def __len__(self) -> int:
        return len(self.array)

    def __add__(self, other: Any) -> Any:
        return _made(self.array + plain(other), (self, _same), (other, _same))

    def __mul__(self, other: Any) -> Any:
        left, right = self.array, plain(other)
        return _made(left * right, (self, lambda g: g * right), (other, lambda g: g * left))

    def __matmul__(self, other: Any) -> Any:
        left, right = self.array, plain(other)
        return _made(left @ right, (self, lambda g: g @ right.T), (other, lambda g: left.T @ g))

    def __rmatmul__(self, other: Any) -> Any:
        return Value(other) @ self

    def __pow__(self, exponent: float) -> Any:
        slope = exponent * self.array ** (exponent - 1)
        return _made(self.array**exponent, (self, lambda g: g * slope))

    def __getitem__(self, index: Any) -> Any:
        def pull(gradient: np.ndarray) -> np.ndarray:
            total = np.zeros(self.shape)
            np.add.at(total, index, gradient)
            return total

        return _made(self.array[index], (self, pull))

    def reshape(self, *shape: int) -> Any:
        return _made(self.array.reshape(*shape), (self, lambda g: g.reshape(self.shape)))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        def pull(gradient: np.ndarray) -> np.ndarray:
            if axis is not None and not keepdims:
                gradient = np.expand_dims(gradient, axis)
            return np.broadcast_to(gradient, self.shape)

        return _made(self.array.sum(axis, keepdims=keepdims), (self, pull))

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        total = self.sum(axis, keepdims)
        return total * (total.array.size / self.array.size)

    def __neg__(self) -> Any:
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __truediv__(self, other: Any) -> Any:
        return self * other**-1.0

    def __rtruediv__(self, other: Any) -> Any:
        return self**-1.0 * other

    __radd__, __rmul__ = __add__, __mul__


def plain(value: Any) -> Any:
    """The array of a value, and everything else as it is."""
    return value.array if isinstance(value, Value) else value


def _same(gradient: np.ndarray) -> np.ndarray:
    return gradient


def _made(array: Any, *inputs: tuple[Any, Pull]) -> Any:
    """The result of an operation: a value if an input is one."""

    def summed(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Over the axes that were broadcast."""
        gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
        axes = tuple(at for at, size in enumerate(shape) if size == 1 != gradient.shape[at])
        return gradient.sum(axes, keepdims=True)

    pulls = [
        (value, lambda g, pull=pull, shape=value.shape: summed(pull(g), shape))
        for value, pull in inputs
        if isinstance(value, Value)
    ]
    return Value(array, pulls) if pulls else array


def exp(x: Any) -> Any:
    y = np.exp(plain(x))
    return _made(y, (x, lambda g: g * y))


def tanh(x: Any) -> Any:
    return 2 / (1 + exp(-2 * x)) - 1


def log(x: Any) -> Any:
    return _made(np.log(plain(x)), (x, lambda g: g / plain(x)))


def concatenate(parts: Sequence[Any], axis: int = 0) -> Any:
    arrays = [plain(part) for part in parts]
    ends = np.cumsum([each.shape[axis] for each in arrays])[:-1]
    inputs = [(part, lambda g, at=at: np.split(g, ends, axis)[at]) for at, part in enumerate(parts)]
    return _made(np.concatenate(arrays, axis), *inputs)


def sum_at(rows: np.ndarray, values: Any, count: int) -> Any:
    """[count, ...], where row i is the sum of `values[rows == i]`."""
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, rows, plain(values))
    return _made(total, (values, lambda g: g[rows]))


def differentiate(
    function: Callable[..., Any], *arguments: Any, **options: Any
) -> tuple[np.ndarray, Callable[[Any], tuple[Any, ...]]]:
    """What a function returns, and the pull of a gradient of it to the function's arguments.

    Arguments are arrays, or dicts, lists and dataclasses that hold some. The gradients have the
    same form, with None for what is no array of floating numbers.
    """
    given = [_mapped(_lifted, argument) for argument in arguments]
    y = function(*given, **options)

    def backward(gradient: Any) -> tuple[Any, ...]:
        found = {y: np.broadcast_to(np.asarray(gradient, np.float64), y.shape)}
        waiting = {y}
        while waiting:
            value = max(waiting, key=lambda each: each.number)
            waiting.remove(value)
            for of, pull in value.pulls:
                found[of] = found.get(of, 0) + pull(found[value])
                waiting.add(of)

        def of(leaf: Any) -> Any:
            is_value = isinstance(leaf, Value)
            return np.asarray(found.get(leaf, np.zeros(leaf.shape))) if is_value else None

        return tuple(_mapped(of, each) for each in given)

    return plain(y), backward


def _lifted(leaf: Any) -> Any:
    is_floating = isinstance(leaf, np.ndarray | np.floating) and leaf.dtype.kind == "f"
    return Value(leaf) if is_floating else leaf


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree of other leaves."""
    if isinstance(tree, dict):
        return {name: _mapped(function, branch) for name, branch in tree.items()}
    if isinstance(tree, list | tuple):
        return [_mapped(function, branch) for branch in tree]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {each.name: getattr(tree, each.name) for each in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **_mapped(function, fields))
    return function(tree)
