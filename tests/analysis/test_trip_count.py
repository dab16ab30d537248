"""Trip counts that XLA did not annotate, against loops run in Python."""

import operator
import re

import jax
import jax.numpy as jnp
import pytest

from jaxgraph.analysis.hlo import parse
from jaxgraph.analysis.trip_count import trip_count

COMPARE = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "NE": operator.ne,
    "EQ": operator.eq,
}

LOOP = """HloModule m, is_scheduled=true

%step (i: s32[], d: s32[]) -> s32[] {{
  %i = s32[] parameter(0)
  %d = s32[] parameter(1)
  ROOT %sum = s32[] add(%i, %d)
}}

%body (s: (f32[], s32[])) -> (f32[], s32[]) {{
  %s = (f32[], s32[]) parameter(0)
  %x = f32[] get-tuple-element(%s), index=0
  %i.1 = s32[] get-tuple-element(%s), index=1
  %d.1 = s32[] constant({step})
  %i.2 = s32[] fusion(%d.1, %i.1), kind=kLoop, calls=%step
  ROOT %t = (f32[], s32[]) tuple(%x, %i.2)
}}

%condition (s.1: (f32[], s32[])) -> pred[] {{
  %s.1 = (f32[], s32[]) parameter(0)
  %i.3 = s32[] get-tuple-element(%s.1), index=1
  %limit = s32[] constant({limit})
  ROOT %c = pred[] compare({operands}), direction={direction}
}}

ENTRY %main (y: f32[]) -> (f32[], s32[]) {{
  %y = f32[] parameter(0)
  %start = s32[] constant({start})
  %copy = s32[] copy(%start)
  %t.1 = (f32[], s32[]) tuple(%y, %copy)
  ROOT %loop = (f32[], s32[]) while(%t.1), condition=%condition, body=%body{config}
}}
"""


def count_in(text: str) -> int | None:
    """Trip count of the only loop of a program."""
    module = parse(text)
    loops = [
        (computation, instruction)
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "while"
    ]
    assert len(loops) == 1
    return trip_count(module, *loops[0])


def loop_text(start, step, limit, direction, operands="%i.3, %limit", config=""):
    return LOOP.format(
        start=start, step=step, limit=limit, direction=direction, operands=operands, config=config
    )


def run_in_python(start: int, step: int, limit: int, direction: str, flipped: bool) -> int | None:
    index, turns = start, 0
    while COMPARE[direction](*((limit, index) if flipped else (index, limit))):
        index, turns = index + step, turns + 1
        if turns > 100:
            return None
    return turns


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("direction", COMPARE)
@pytest.mark.parametrize("step", [1, 3, -1, -2, 0])
def test_derived_counts_equal_those_of_the_loop(direction, step, flipped):
    operands = "%limit, %i.3" if flipped else "%i.3, %limit"
    for start in (-4, 0, 5, 12):
        for limit in (-7, 0, 5, 6):
            text = loop_text(start, step, limit, direction, operands)
            assert count_in(text) == run_in_python(start, step, limit, direction, flipped)


def test_annotation_is_believed():
    config = ', backend_config={"known_trip_count":{"n":"11"},"other":[]}'
    assert count_in(loop_text(0, 1, 7, "LT", config=config)) == 11
    config = r', backend_config="{\"known_trip_count\":{\"n\":\"13\"}}"'
    assert count_in(loop_text(0, 1, 7, "LT", config=config)) == 13


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%start = s32[] constant(0)", "%start = s32[] convert(%y)"),
        ("%sum = s32[] add(%i, %d)", "%sum = s32[] multiply(%i, %d)"),
        ("%limit = s32[] constant(7)", "%limit = s32[] convert(%z)\n  %z = f32[] sine(%z)"),
        ("%c = pred[] compare(%i.3, %limit), direction=LT", "%c = pred[] constant(true)"),
    ],
)
def test_loops_that_depend_on_data_have_no_count(old, new):
    text = loop_text(0, 1, 7, "LT")
    assert count_in(text) == 7
    assert old in text
    assert count_in(text.replace(old, new)) is None


WHILE_LOOPS = {
    "step of 3, limit in the state": (
        lambda s: s[0] < s[1],
        lambda s: (s[0] + 3, s[1], s[2]),
        (1, 11),
        4,
    ),
    "downwards": (lambda s: s[0] >= 0, lambda s: (s[0] - 2, s[1], s[2]), (9, 0), 5),
    "two counters": (lambda s: s[0] + s[1] < 20, lambda s: (s[0] + 1, s[1] + 1, s[2]), (2, 1), 9),
    "until equal": (lambda s: s[0] != 64, lambda s: (s[0] + 2, s[1], s[2]), (2, 0), 31),
}


@pytest.mark.parametrize("annotated", [True, False])
@pytest.mark.parametrize("name", WHILE_LOOPS)
def test_compiled_while_loops(name, annotated):
    condition, body, start, expected = WHILE_LOOPS[name]

    def program(x):
        def step(state):
            first, second, x = body(state)
            return first, second, jnp.sin(x)

        return jax.lax.while_loop(condition, step, (*map(jnp.int32, start), x))[2]

    text = jax.jit(program).lower(jnp.ones(3)).compile().as_text()
    assert text is not None
    if not annotated:
        text = re.sub(r'"known_trip_count":\{"n":"\d+"\},?', "", text)
        assert "known_trip_count" not in text
    assert count_in(text) == expected
