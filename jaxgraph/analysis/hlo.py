"""Optimised HLO text as data: a module of computations of instructions.

Only the text is read, so that a program compiled for another platform can be analysed anywhere. The
grammar differs a little between XLA versions (operands with or without their shapes, names with or
without `%`, replica groups as lists, iota tiles or mesh axes); all of these are read.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\]]')
_SEPARATORS = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')
_INDEX_COMMENT = re.compile(r"/\*index=\d+\*/")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)(?=\()")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_MODULE_COUNT = re.compile(r"\b(num_partitions|replica_count)=(\d+)")

# Attributes that name computations which run as part of the instruction.
_CALLS = ("calls", "to_apply", "called_computations")
_BRANCHES = ("branch_computations", "true_computation", "false_computation")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation: `name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    is_root: bool
    operands_text: str
    attributes_text: str

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the instructions whose results this one takes."""
        if self.opcode in ("constant", "parameter"):
            return ()
        return tuple(part.split()[-1].lstrip("%") for part in split_list(self.operands_text))

    @cached_property
    def attributes(self) -> dict[str, str]:
        """Attributes after the operands: the text of each value, by key."""
        pairs = (part.partition("=") for part in split_list(self.attributes_text))
        return {key: value for key, _, value in pairs}

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations that this instruction runs once."""
        return self._computations(_CALLS)

    @property
    def branches(self) -> tuple[str, ...]:
        """Names of the computations of which a conditional runs one."""
        return self._computations(_BRANCHES)

    def _computations(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        texts = (self.attributes[key] for key in keys if key in self.attributes)
        return tuple(
            name.lstrip("%") for text in texts for name in split_list(text.strip("{}")) if name
        )


@dataclass(frozen=True, eq=False)
class Computation:
    """A named sequence of instructions; in a scheduled module, in the order they run."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def _by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        marked = [instruction for instruction in self.instructions if instruction.is_root]
        return marked[0] if marked else self.instructions[-1]

    def __getitem__(self, name: str) -> Instruction:
        return self._by_name[name]


@dataclass(frozen=True, eq=False)
class Module:
    """A compiled program.

    Attributes:
      computations: by name.
      entry: the computation where the program starts.
      num_partitions: devices among which one SPMD program is split.
      replica_count: copies of that program.
      is_scheduled: whether instructions are in the order in which they run.
    """

    computations: Mapping[str, Computation]
    entry: Computation
    num_partitions: int
    replica_count: int
    is_scheduled: bool

    @property
    def num_devices(self) -> int:
        """Devices on which the program runs."""
        return self.num_partitions * self.replica_count


def parse(text: str) -> Module:
    """Reads the text of one HLO module."""
    header = next((line for line in text.splitlines() if line.startswith("HloModule ")), None)
    if header is None:
        raise ValueError(
            "no 'HloModule' line: expected optimised HLO text, as compiled.as_text() returns it, "
            f"got {text[:60]!r}"
        )
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    for name, is_entry, lines in _bodies(text):
        computation = Computation(name, tuple(parse_instruction(line) for line in lines))
        computations[name] = computation
        entry = computation if is_entry else entry
    if entry is None:
        raise ValueError("the HLO text has no ENTRY computation: it is incomplete")
    counts = {key: int(value) for key, value in _MODULE_COUNT.findall(header)}
    return Module(
        computations,
        entry,
        num_partitions=counts.get("num_partitions", 1),
        replica_count=counts.get("replica_count", 1),
        is_scheduled="is_scheduled=true" in header,
    )


def parse_instruction(line: str) -> Instruction:
    """Reads one instruction."""
    line = _INDEX_COMMENT.sub("", line)
    head = _INSTRUCTION.match(line)
    if head is None:
        raise ValueError(f"not an HLO instruction: {line.strip()[:120]!r}")
    start = head.end()
    shape_end = _closing(line, start) if line[start] == "(" else line.find(" ", start)
    opcode = _OPCODE.match(line, shape_end) if shape_end > 0 else None
    if opcode is None:
        raise ValueError(f"HLO instruction without an opcode: {line.strip()[:120]!r}")
    operands_end = _closing(line, opcode.end())
    return Instruction(
        name=head[2],
        shape=line[start:shape_end],
        opcode=opcode[1],
        is_root=head[1] is not None,
        operands_text=line[opcode.end() + 1 : operands_end - 1],
        attributes_text=line[operands_end:].lstrip(", "),
    )


def num_bytes(shape: str) -> int:
    """Bytes of an array or of a tuple of arrays."""
    return sum(
        -(-_element_bits(element) * math.prod(_dimensions(dimensions)) // 8)
        for element, dimensions in _ARRAY.findall(shape)
    )


def split_list(text: str) -> list[str]:
    """Splits at the commas outside of brackets and strings, and strips the parts."""
    parts, depth, start = [], 0, 0
    for token in _SEPARATORS.finditer(text):
        symbol = token[0]
        if symbol in "([{":
            depth += 1
        elif symbol in ")]}":
            depth -= 1
        elif symbol == "," and depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _bodies(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    name, is_entry, lines = "", False, None
    for line in text.splitlines():
        if lines is not None and line.startswith("}"):
            yield name, is_entry, lines
            lines = None
        elif lines is not None:
            if line.strip():
                lines.append(line)
        elif line.endswith("{") and not line[:1].isspace():
            is_entry = line.startswith("ENTRY ")
            name = re.split(r"[\s(]", line.removeprefix("ENTRY "), maxsplit=1)[0].lstrip("%")
            lines = []


def _closing(text: str, start: int) -> int:
    """The index after the bracket that closes the one at `start`."""
    depth = 0
    for token in _BRACKETS.finditer(text, start):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
            if depth == 0:
                return token.end()
    raise ValueError(f"unbalanced brackets in HLO: {text.strip()[:120]!r}")


def _element_bits(element: str) -> int:
    if element == "pred":
        return 8
    # Every other type that has a size carries it as its first number: bf16, f8e4m3fn, s4, c64.
    digits = re.search(r"\d+", element)
    return int(digits[0]) if digits else 0


def _dimensions(text: str) -> list[int]:
    # A bounded dynamic dimension, `<=16`, is counted at its bound.
    return [int(size.strip().removeprefix("<=")) for size in text.split(",") if size.strip()]
