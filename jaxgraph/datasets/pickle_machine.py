"""An interpreter of pickles that can build data and nothing else.

A pickle is a program for a stack machine. Python's own machine looks names up, calls what it finds,
and lets BUILD set any attribute of any object on the stack. This one knows a list of names; each
stands for a function of ours that checks its arguments. BUILD completes only objects that those
functions made. Memory is bounded to about 100 times the size of the file: memo indices are keys of
a dictionary, lengths are compared with the remaining bytes, and copies are charged to a budget.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ForbiddenNameError", "Machine", "Name", "Unbuilt"]

_NEWEST_PROTOCOL = 5
_LONGEST_NUMBER = 1000  # characters of a number in a text protocol, and bytes of an integer
_COPIES = 8
"""Copies that a file may cause, in multiples of its size."""
_ALWAYS_COPIED = 1 << 20


class ForbiddenNameError(ValueError):
    """A pickle asks for a name that is not on the list."""


class Name:
    """A name on the list: a pickle may call it, or pass it to a call.

    Args:
        call: makes an object from the machine and the arguments; None: it cannot be called.
        new: makes an object for BUILD to complete; None: it is no such class.
    """

    def __init__(
        self, call: Callable[..., Any] | None = None, new: Callable[[], Unbuilt] | None = None
    ) -> None:
        self.call = call
        self.new = new


class Unbuilt:
    """An object without its state; BUILD replaces it by the result of ``built``."""

    def __init__(self) -> None:
        self.memo_keys: list[int] = []

    def built(self, machine: Machine, state: Any) -> Any:
        """Returns the object that a state makes."""
        raise NotImplementedError


class Machine:
    """Runs one pickle.

    Args:
        content: the pickle.
        names: those that it may ask for, by module and name.
    """

    def __init__(self, content: bytes, names: Mapping[tuple[str, str], Name]) -> None:
        self._content = content
        self._names = names
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._budget = _ALWAYS_COPIED + _COPIES * len(content)

    def run(self) -> Any:
        """Returns the object that the pickle builds.

        Raises:
            ForbiddenNameError: it asks for a name that is not on the list.
            ValueError: it is broken, truncated, or builds anything but data.
        """
        content, size = self._content, len(self._content)
        while True:
            if self._at >= size:
                raise ValueError("it ends before the instruction STOP")
            code = content[self._at]
            self._at += 1
            if code == _STOP:
                break
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise ValueError(f"data needs no instruction {bytes([code])!r}")
            operation(self)
        if len(self._stack) != 1 or self._marks:
            raise ValueError(f"it ends with {len(self._stack)} objects; expected one")
        return self._stack[0]

    def spend(self, num_bytes: int) -> None:
        """Charges a copy to the budget of the file.

        Args:
            num_bytes: the size of the copy.

        Raises:
            ValueError: the budget is used up.
        """
        self._budget -= num_bytes
        if self._budget < 0:
            raise ValueError(
                f"it asks for more memory than {_COPIES} times its {len(self._content)} bytes"
            )

    # ------------------------------------------------------------ the content

    def _take(self, size: int) -> bytes:
        start, stop = self._at, self._at + size
        if size < 0 or stop > len(self._content):
            raise ValueError(f"it ends within an object of {size} bytes")
        self._at = stop
        return self._content[start:stop]

    def _unpacked(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _line(self) -> bytes:
        stop = self._content.find(b"\n", self._at)
        if stop < 0:
            raise ValueError("it ends within a line")
        line = self._content[self._at : stop]
        self._at = stop + 1
        return line

    def _number_line(self) -> str:
        line = self._line()
        if len(line) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(line)} characters")
        return line.decode("ascii")

    # ------------------------------------------------------------ the stack

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        # Objects below the last mark belong to an outer object.
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("an instruction finds too few objects")
        return self._stack.pop()

    def _top(self, kind: type) -> Any:
        value = self._pop()
        self._stack.append(value)
        if type(value) is not kind:
            raise ValueError(f"got a {type(value).__name__}; expected a {kind.__name__}")
        return value

    def _popped_to_mark(self) -> list[Any]:
        if not self._marks:
            raise ValueError("an instruction finds no mark")
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    # ------------------------------------------------------------ instructions

    def _proto(self) -> None:
        if self._take(1)[0] > _NEWEST_PROTOCOL:
            raise ValueError(f"it is of a protocol above {_NEWEST_PROTOCOL}")

    def _frame(self) -> None:
        size = self._unpacked(_UINT64)
        if size > len(self._content) - self._at:
            raise ValueError(f"it ends within a frame of {size} bytes")

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _pop_one(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._pop()

    def _dup(self) -> None:
        value = self._pop()
        self._stack += (value, value)

    def _int_line(self) -> None:
        line = self._number_line()
        self._push({"00": False, "01": True}[line] if line in ("00", "01") else int(line))

    def _long(self, size: int) -> None:
        if not 0 <= size <= _LONGEST_NUMBER:
            raise ValueError(f"an integer of {size} bytes")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _string_line(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
            raise ValueError("a string without quotes")
        self._push(codecs.escape_decode(line[1:-1])[0].decode("latin1"))  # pyright: ignore

    def _unicode(self, size: int) -> None:
        self._push(self._take(size).decode("utf-8", "surrogatepass"))

    def _tuple(self, size: int) -> None:
        values = [self._pop() for _ in range(size)]
        self._push(tuple(reversed(values)))

    def _append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def _appends(self) -> None:
        values = self._popped_to_mark()
        self._top(list).extend(values)

    def _setitem(self) -> None:
        value, key = self._pop(), self._pop()
        _set_items(self._top(dict), [key, value])

    def _setitems(self) -> None:
        items = self._popped_to_mark()
        _set_items(self._top(dict), items)

    def _dict(self) -> None:
        made: dict[Any, Any] = {}
        _set_items(made, self._popped_to_mark())
        self._push(made)

    def _get(self, key: int) -> None:
        if key not in self._memo:
            raise ValueError(f"it asks for object {key}, which was never stored")
        self._push(self._memo[key])

    def _put(self, key: int) -> None:
        if key < 0:
            raise ValueError(f"it stores an object at {key}")
        value = self._pop()
        self._push(value)
        self._memo[key] = value
        if isinstance(value, Unbuilt):
            value.memo_keys.append(key)

    def _global(self, module: str, name: str) -> None:
        found = self._names.get((module, name))
        if found is None:
            raise ForbiddenNameError(
                f"the pickle asks for {module[:80]}.{name[:80]}, which data of graphs does not "
                "use; only numpy arrays, CSR matrices, lists and dictionaries are read. Do not "
                "open this file with another program unless you trust its source."
            )
        self._push(found)

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise ValueError("a name that is no text")
        self._global(module, name)

    def _reduce(self) -> None:
        args, function = self._pop(), self._pop()
        if not isinstance(function, Name) or function.call is None or type(args) is not tuple:
            raise ValueError("it calls an object that cannot be called")
        self._push(function.call(self, *args))

    def _newobj(self) -> None:
        args, kind = self._pop(), self._pop()
        if not isinstance(kind, Name) or kind.new is None or type(args) is not tuple or args:
            raise ValueError("it makes an object of a class that is not one of data")
        self._push(kind.new())

    def _build(self) -> None:
        state, unbuilt = self._pop(), self._pop()
        if not isinstance(unbuilt, Unbuilt):
            raise ValueError(f"it sets the state of a {type(unbuilt).__name__}, which has none")
        built = unbuilt.built(self, state)
        self._push(built)
        for key in unbuilt.memo_keys:
            if self._memo.get(key) is unbuilt:
                self._memo[key] = built


def _set_items(target: dict[Any, Any], items: list[Any]) -> None:
    if len(items) % 2:
        raise ValueError("a key without a value")
    for key in items[::2]:
        # Data uses no other keys, and those could be made to collide.
        if type(key) is not str and not (type(key) is int and -(2**63) <= key < 2**63):
            raise ValueError(f"a {type(key).__name__} is a key; expected integers and strings")
    target.update(zip(items[::2], items[1::2], strict=True))


_STOP = ord(".")
_INT32, _UINT32, _UINT16 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<H")
_UINT64, _DOUBLE = struct.Struct("<Q"), struct.Struct(">d")

_OPERATIONS: dict[int, Callable[[Machine], object]] = {
    0x80: Machine._proto,
    0x95: Machine._frame,
    ord("("): Machine._mark,
    ord("0"): Machine._pop_one,
    ord("1"): Machine._popped_to_mark,
    ord("2"): Machine._dup,
    ord("N"): lambda m: m._push(None),
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("I"): Machine._int_line,
    ord("L"): lambda m: m._push(int(m._number_line().removesuffix("L"))),
    ord("J"): lambda m: m._push(m._unpacked(_INT32)),
    ord("K"): lambda m: m._push(m._take(1)[0]),
    ord("M"): lambda m: m._push(m._unpacked(_UINT16)),
    0x8A: lambda m: m._long(m._take(1)[0]),
    0x8B: lambda m: m._long(m._unpacked(_INT32)),
    ord("F"): lambda m: m._push(float(m._number_line())),
    ord("G"): lambda m: m._push(m._unpacked(_DOUBLE)),
    ord("S"): Machine._string_line,
    ord("T"): lambda m: m._push(m._take(m._unpacked(_INT32)).decode("latin1")),
    ord("U"): lambda m: m._push(m._take(m._take(1)[0]).decode("latin1")),
    ord("V"): lambda m: m._push(m._line().decode("raw-unicode-escape")),
    ord("X"): lambda m: m._unicode(m._unpacked(_UINT32)),
    0x8C: lambda m: m._unicode(m._take(1)[0]),
    0x8D: lambda m: m._unicode(m._unpacked(_UINT64)),
    ord("B"): lambda m: m._push(m._take(m._unpacked(_UINT32))),
    ord("C"): lambda m: m._push(m._take(m._take(1)[0])),
    0x8E: lambda m: m._push(m._take(m._unpacked(_UINT64))),
    0x96: lambda m: m._push(m._take(m._unpacked(_UINT64))),
    ord(")"): lambda m: m._push(()),
    ord("t"): lambda m: m._push(tuple(m._popped_to_mark())),
    0x85: lambda m: m._tuple(1),
    0x86: lambda m: m._tuple(2),
    0x87: lambda m: m._tuple(3),
    ord("]"): lambda m: m._push([]),
    ord("l"): lambda m: m._push(m._popped_to_mark()),
    ord("a"): Machine._append,
    ord("e"): Machine._appends,
    ord("}"): lambda m: m._push({}),
    ord("d"): Machine._dict,
    ord("s"): Machine._setitem,
    ord("u"): Machine._setitems,
    ord("g"): lambda m: m._get(int(m._number_line())),
    ord("h"): lambda m: m._get(m._take(1)[0]),
    ord("j"): lambda m: m._get(m._unpacked(_UINT32)),
    ord("p"): lambda m: m._put(int(m._number_line())),
    ord("q"): lambda m: m._put(m._take(1)[0]),
    ord("r"): lambda m: m._put(m._unpacked(_UINT32)),
    0x94: lambda m: m._put(len(m._memo)),
    ord("c"): lambda m: m._global(m._line().decode("ascii"), m._line().decode("ascii")),
    0x93: Machine._stack_global,
    ord("R"): Machine._reduce,
    0x81: Machine._newobj,
    ord("b"): Machine._build,
}
"""The instructions that data needs, by code. Other kinds of calls (INST, OBJ, NEWOBJ_EX), sets, and
references to other files (PERSID, EXT) are left out."""
