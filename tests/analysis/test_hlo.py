"""The HLO parser, on lines of several versions of XLA and on stored programs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxgraph.analysis.hlo import num_bytes, parse, parse_instruction

PROGRAMS = Path(__file__).parent / "hlo"


class TestNumBytes:
    @pytest.mark.parametrize(
        ("shape", "expected"),
        [
            ("f32[16,4]{1,0}", 256),
            ("bf16[3,5]{1,0:T(8,128)(2,1)}", 30),
            ("pred[9]", 9),
            ("s32[2]", 8),
            ("c64[2]", 16),
            ("f8e4m3fn[5]", 5),
            ("s4[3]", 2),
            ("f32[0,4]{1,0}", 0),
            ("f32[<=6,2]", 48),
            ("token[]", 0),
            ("((f32[2]{0}), f32[2]{0}, u32[], token[])", 20),
        ],
    )
    def test_of_a_shape(self, shape, expected):
        assert num_bytes(shape) == expected


class TestParseInstruction:
    def test_names_alone_and_names_with_shapes(self):
        bare = parse_instruction("  %r.1 = f32[2]{0} add(%x.2, %y)")
        shaped = parse_instruction("  ROOT r.1 = f32[2]{0} add(f32[2]{0} x.2, f32[2]{0} %y)")
        assert bare.operands == shaped.operands == ("x.2", "y")
        assert bare.name == shaped.name == "r.1"
        assert (bare.is_root, shaped.is_root) == (False, True)

    def test_tuple_shape_with_index_comments(self):
        line = (
            "  %t = (f32[1]{0}, /*index=1*/(s32[], pred[])) all-to-all(%a, /*index=1*/%b), "
            "channel_id=1, replica_groups={{0,1},{2,3}}"
        )
        instruction = parse_instruction(line)
        assert instruction.shape == "(f32[1]{0}, (s32[], pred[]))"
        assert instruction.opcode == "all-to-all"
        assert instruction.operands == ("a", "b")
        assert instruction.attributes == {"channel_id": "1", "replica_groups": "{{0,1},{2,3}}"}

    def test_attributes_after_a_string_full_of_punctuation(self):
        line = '  %w = s32[] while(%s), metadata={op_name="a, b={" n=1}, condition=%c, body=%b'
        attributes = parse_instruction(line).attributes
        assert attributes["condition"] == "%c"
        assert attributes["metadata"] == '{op_name="a, b={" n=1}'

    def test_literals_are_not_operands(self):
        constant = parse_instruction("  %c = s32[2]{0} constant({1, 2})")
        assert constant.operands == ()
        assert constant.operands_text == "{1, 2}"
        assert parse_instruction("  %p = f32[] parameter(3), sharding={replicated}").operands == ()

    def test_computations_it_runs(self):
        line = "  %c = f32[] conditional(%i, %a, %b), branch_computations={%first, %second.1}"
        assert parse_instruction(line).branches == ("first", "second.1")
        line = "  %c = f32[] conditional(%i, %a, %b), true_computation=%t, false_computation=%f"
        assert parse_instruction(line).branches == ("t", "f")
        line = "  %f = f32[] fusion(%x), kind=kLoop, calls=%fused"
        assert parse_instruction(line).calls == ("fused",)
        line = "  %f = f32[] custom-call(%x), called_computations={%one, %two}"
        assert parse_instruction(line).calls == ("one", "two")

    @pytest.mark.parametrize(
        "line",
        ["  something else", "  %x = f32[2]", "  %x = f32[2] add(%a", "  %x = (f32[2] add(%a)"],
    )
    def test_anything_else_is_an_error(self, line):
        with pytest.raises(ValueError, match="HLO"):
            parse_instruction(line)


class TestParse:
    def test_replicas_and_partitions(self):
        body = "\n\nENTRY main {\n  ROOT p = f32[] parameter(0)\n}\n"
        module = parse("HloModule m, replica_count=2, num_partitions=4" + body)
        assert module.num_devices == 8
        assert not module.is_scheduled
        assert parse("HloModule m" + body).num_devices == 1

    def test_every_instruction_of_a_compiled_program(self):
        def program(x):
            total, _ = jax.lax.scan(lambda c, row: (jnp.sin(c) + row, None), x[0], x)
            return jax.lax.cond(total.sum() > 0, jnp.cos, lambda v: jnp.sort(v) @ x.T @ x, total)

        text = jax.jit(program).lower(jnp.ones((5, 3))).compile().as_text()
        assert text is not None
        module = parse(text)
        assert module.entry.root.shape.startswith("f32[3]")
        parsed = [i for c in module.computations.values() for i in c.instructions]
        assert len(parsed) == sum(" = " in line and line[:1] == " " for line in text.splitlines())
        for computation in module.computations.values():
            for instruction in computation.instructions:
                for operand in instruction.operands:
                    assert computation[operand].name == operand

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("module @jit_f {}", "no 'HloModule' line"),
            ("HloModule m\n\n%c () -> f32[] {\n  ROOT %p = f32[] constant(1)\n}\n", "no ENTRY"),
        ],
    )
    def test_anything_else_is_an_error(self, text, message):
        with pytest.raises(ValueError, match=message):
            parse(text)
