"""Who wrote an equation of a traced function: the user, jaxgraph, or JAX."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import flax
import jax
import optax

import jaxgraph
import pallas_kernels


def _folder(module: Any) -> Path:
    return Path(str(module.__file__)).parent


_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_LIBRARIES = tuple(map(_folder, (jax, flax, optax)))
_OURS = (_folder(jaxgraph), _folder(pallas_kernels))
_SHARD_METHODS = [_folder(jaxgraph) / "parallel" / name for name in ("shard.py", "node_table.py")]
"""Their methods count as if the user had written them."""


def user_line(equation: Any) -> str:
    """Finds the line of the user's code that made an equation."""
    for frame in _frames(equation):
        path = Path(frame.file_name)
        if not _is_outside(path) and not _is_ours(path) and path.is_file():
            return f"{path.name}:{frame.line_num}"
    return ""


def is_users(equation: Any) -> bool:
    """Tells whether the user's code made an equation, other than as a derivative."""
    if is_derivative(equation):
        return False
    for frame in _frames(equation):
        path = Path(frame.file_name)
        if path not in _SHARD_METHODS and not _is_outside(path):
            return not _is_ours(path)
    return False


def is_derivative(equation: Any) -> bool:
    """Tells whether JAX made an equation by transposing another one."""
    return "transpose(" in str(equation.source_info.name_stack)


def is_of_jax(body: Any) -> bool:
    """Tells whether a jaxpr is that of a function of JAX, or of an unknown one."""
    debug_info = getattr(getattr(body, "jaxpr", body), "debug_info", None)
    filename = getattr(debug_info, "func_filename", None)
    return filename is None or Path(filename).is_relative_to(_LIBRARIES[0])


def is_raised_by_jax(error: BaseException) -> bool:
    """Tells whether a line of JAX raised an error."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    path = "" if frame is None else frame.tb_frame.f_code.co_filename
    return Path(path).is_relative_to(_LIBRARIES[0])


def is_within(equation: Any, function: str) -> bool:
    """Tells whether a given function of JAX made an equation."""
    for frame in _frames(equation):
        if not Path(frame.file_name).is_relative_to(_LIBRARIES[0]):
            return False
        if frame.function_name == function:
            return True
    return False


def _frames(equation: Any) -> Any:
    traceback = getattr(getattr(equation, "source_info", None), "traceback", None)
    return getattr(traceback, "frames", ())


def _is_outside(path: Path) -> bool:
    """Tells whether a file belongs to JAX, Flax, Optax or Python."""
    return path.parent == _STANDARD or any(path.is_relative_to(home) for home in _LIBRARIES)


def _is_ours(path: Path) -> bool:
    return any(path.is_relative_to(home) for home in _OURS)
