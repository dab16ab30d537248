"""Bytes counted by hand against bytes read from compiled programs, on eight devices."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxgraph.analysis.traffic import overlapped, overlapped_in_hlo, traffic, traffic_from_hlo
from jaxgraph.parallel.mesh import make_mesh

PROGRAMS = Path(__file__).parent / "hlo"
NUM_DEVICES = 8
ROWS, COLUMNS = 16, 4  # of each device
BLOCK = ROWS * COLUMNS * 4
SHARDED = P("graph")


def ring(shift: int = 1, size: int = NUM_DEVICES) -> list[tuple[int, int]]:
    return [(i, (i + shift) % size) for i in range(size)]


def permute(x: jax.Array, shift: int = 1) -> jax.Array:
    return jax.lax.ppermute(x, "graph", ring(shift))


def compile_sharded(function, *, mesh=None, spec=SHARDED, out=None, dtype=jnp.float32):
    """Compiles a function of each device's [ROWS, COLUMNS]."""
    mesh = make_mesh(NUM_DEVICES) if mesh is None else mesh
    sharded = jax.shard_map(
        function, mesh=mesh, in_specs=spec, out_specs=spec if out is None else out
    )
    rows = jax.ShapeDtypeStruct(
        (mesh.size * ROWS, COLUMNS), dtype, sharding=NamedSharding(mesh, spec)
    )
    return jax.jit(sharded).lower(rows).compile()


def two_axes() -> Mesh:
    devices = np.asarray(jax.devices()[:8]).reshape(2, 4)
    return Mesh(devices, ("hosts", "graph"), axis_types=(AxisType.Auto, AxisType.Auto))


SOME = [(0, 1), (1, 2), (3, 3), (5, 0)]
"""Three of these leave a device."""


@pytest.mark.parametrize(
    ("function", "devices", "out", "sent"),
    [
        (jnp.sin, 8, None, {}),
        (lambda x: jax.lax.all_gather(x, "graph"), 8, P(None, "graph"), {"all-gather": 7 * BLOCK}),
        (lambda x: jax.lax.psum(x, "graph"), 8, P(), {"all-reduce": 2 * 7 * BLOCK // 8}),
        (
            lambda x: jax.lax.psum_scatter(x, "graph", tiled=True),
            *(8, None, {"reduce-scatter": 7 * BLOCK // 8}),
        ),
        (
            lambda x: jax.lax.all_to_all(x, "graph", 0, 0, tiled=True),
            *(8, None, {"all-to-all": 7 * BLOCK // 8}),
        ),
        (
            lambda x: jax.lax.ppermute(x, "graph", SOME),
            *(8, None, {"collective-permute": 3 * BLOCK // 8}),
        ),
        (
            lambda x: jax.lax.psum(jax.lax.ppermute(x, "graph", ring(1, 3)), "graph"),
            *(3, P(), {"all-reduce": round(2 * 2 / 3 * BLOCK), "collective-permute": BLOCK}),
        ),
        (lambda x: jax.lax.psum(x, "graph"), 1, P(), {}),
    ],
)
def test_one_collective(function, devices, out, sent):
    assert traffic(compile_sharded(function, mesh=make_mesh(devices), out=out)) == sent


# The CPU backend sends bfloat16 as float32.
@pytest.mark.parametrize(("dtype", "size"), [(jnp.bfloat16, 4), (jnp.float16, 2), (jnp.bool_, 1)])
def test_element_types(dtype, size):
    compiled = compile_sharded(permute, dtype=dtype)
    assert traffic(compiled) == {"collective-permute": ROWS * COLUMNS * size}


class TestGroups:
    SPEC = P(("hosts", "graph"))

    @pytest.mark.parametrize(
        ("axes", "size"), [("hosts", 2), ("graph", 4), (("hosts", "graph"), 8)]
    )
    def test_reduce_and_gather_over_one_axis_of_two(self, axes, size):
        def program(x):
            total = jax.lax.psum(x, axes)
            gathered = jax.lax.all_gather(x, axes, tiled=True)
            return total, gathered

        left = {"hosts": P("graph"), "graph": P("hosts")}.get(axes, P())
        compiled = compile_sharded(program, mesh=two_axes(), spec=self.SPEC, out=(left, self.SPEC))
        assert traffic(compiled) == {
            "all-gather": (size - 1) * BLOCK,
            "all-reduce": 2 * (size - 1) * BLOCK // size,
        }

    def test_permute_over_one_axis_of_two(self):
        def program(x):
            return jax.lax.ppermute(x, "graph", [(0, 1), (1, 2)])

        compiled = compile_sharded(program, mesh=two_axes(), spec=self.SPEC)
        assert traffic(compiled) == {"collective-permute": BLOCK // 2}

    def test_collectives_of_automatic_sharding(self):
        mesh = two_axes()
        rows = jax.ShapeDtypeStruct(
            (64, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, "graph"))
        )
        replicated = NamedSharding(mesh, P())
        compiled = jax.jit(lambda x: 2.0 * x, out_shardings=replicated).lower(rows).compile()
        assert traffic(compiled) == {"all-gather": 3 * 64 * 16 * 4}

    @pytest.mark.parametrize(
        ("attributes", "sent"),
        [
            ("channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true", 96),
            ("channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true", 64),
            ("channel_id=1, replica_groups={}, use_global_device_ids=true", 112),
            ("channel_id=1, use_global_device_ids=true", 112),
            ("channel_id=1, replica_groups={{0}}", 112),  # one replica, all its partitions
            ("channel_id=1, replica_groups={{0,1,2,3,4,5},{6,7}}, use_global_device_ids=true", 96),
            ("channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b','a'}", 112),
            ("channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", 64),
            ("replica_groups=mesh[a=2,b=4], device_ids=([2,4]<=[4,2]T(1,0)) {b}", 96),
        ],
    )
    def test_as_written(self, attributes, sent):
        text = f"""HloModule m, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}}

ENTRY %main (p: f32[16]) -> f32[16] {{
  %p = f32[16] parameter(0)
  ROOT %r = f32[16] all-reduce(%p), {attributes}, to_apply=%add
}}
"""
        assert traffic_from_hlo(text) == {"all-reduce": sent}


class TestLoops:
    @pytest.mark.parametrize("unroll", [1, 3, True])
    def test_unrolled_scan(self, unroll):
        def program(x):
            step = lambda c, _: (permute(jnp.sin(c)), None)  # noqa: E731
            return jax.lax.scan(step, x, None, length=7, unroll=unroll)[0]

        assert traffic(compile_sharded(program)) == {"collective-permute": 7 * BLOCK}

    def test_nested_scans_and_loops(self):
        def program(x):
            def inner(carry, _):
                return permute(jnp.sin(carry)), None

            def outer(carry, _):
                carry = jax.lax.scan(inner, carry, None, length=3)[0]
                return permute(jnp.cos(carry), 2), None

            x = jax.lax.scan(outer, x, None, length=5)[0]
            return jax.lax.fori_loop(2, 6, lambda _, c: jax.lax.psum(c, "graph") * x, x)

        expected = {"all-reduce": 4 * 2 * 7 * BLOCK // 8, "collective-permute": 5 * 4 * BLOCK}
        assert traffic(compile_sharded(program)) == expected

    def test_loop_per_device_without_collectives_needs_no_count(self):
        def program(x):
            turns = jax.lax.axis_index("graph")
            x = jax.lax.while_loop(
                lambda s: s[0] < turns, lambda s: (s[0] + 1, jnp.sin(s[1])), (0 * turns, x)
            )[1]
            return permute(x)

        assert traffic(compile_sharded(program)) == {"collective-permute": BLOCK}

    def test_collective_in_a_loop_that_depends_on_data(self):
        def program(x):
            return jax.lax.while_loop(
                lambda s: jax.lax.psum(s.sum(), "graph") > 1.0, lambda s: permute(s) / 2, x
            )

        with pytest.raises(
            ValueError, match=r"trip count of loop .*all-reduce, collective-permute"
        ):
            traffic(compile_sharded(program))


class TestBranches:
    def test_switch_over_permutations_counts_once(self):
        def program(x):
            branches = [lambda c, k=k: permute(c, k) for k in range(1, 8)]
            step = lambda c, k: (jax.lax.switch(k, branches, jnp.sin(c)), None)  # noqa: E731
            return jax.lax.scan(step, x, jnp.arange(7))[0]

        assert traffic(compile_sharded(program)) == {"collective-permute": 7 * BLOCK}

    def test_cond_counts_the_larger_branch(self):
        def program(x):
            total = jax.lax.psum(x.sum(), "graph")
            small = lambda v: v + jnp.pad(permute(v[:2]), ((0, 14), (0, 0)))  # noqa: E731
            large = lambda v: permute(jax.lax.all_to_all(v, "graph", 0, 0, tiled=True))  # noqa: E731
            return jax.lax.cond(total > 0.0, small, large, x)

        expected = {
            "all-reduce": 2 * 7 * 4 // 8,
            "all-to-all": 7 * BLOCK // 8,
            "collective-permute": BLOCK,
        }
        assert traffic(compile_sharded(program)) == expected


class TestStoredPrograms:
    BLOCK = 64 * 128 * 4

    def test_asynchronous_collectives_count_once(self):
        sent = traffic_from_hlo((PROGRAMS / "gpu_asynchronous.hlo").read_text())
        assert sent == {
            "all-gather": 7 * self.BLOCK,
            "all-reduce": self.BLOCK + self.BLOCK // 2,  # groups of two: 2 (2-1)/2 = 1
            "all-to-all": 3 * self.BLOCK // 4,
            "collective-permute": self.BLOCK // 2 * 4 // 8,
            "reduce-scatter": 7 * self.BLOCK // 8,
        }

    def test_ring_in_a_loop(self):
        text = (PROGRAMS / "gpu_ring.hlo").read_text()
        sent = {"collective-permute": 7 * 16 * 64 * 4 + 16 * 64 * 4 // 8}
        assert traffic_from_hlo(text) == sent
        assert traffic_from_hlo(text.replace('"', '\\"')) == sent
        with pytest.raises(ValueError, match="trip count of loop"):
            traffic_from_hlo(text.replace("known_trip_count", "other"))

    def test_broadcast_and_ragged_exchange(self):
        text = """HloModule m, num_partitions=8

ENTRY %main (p: f32[16], o: f32[32], t: s32[8]) -> f32[32] {
  %p = f32[16] parameter(0)
  %o = f32[32] parameter(1)
  %t = s32[8] parameter(2)
  %b = f32[16] collective-broadcast(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}
  ROOT %r = f32[32] ragged-all-to-all(%b, %o, %t, %t, %t, %t), replica_groups=[1,8]<=[8]
}
"""
        assert traffic_from_hlo(text) == {"collective-broadcast": 48, "ragged-all-to-all": 56}

    def test_sends_outside_of_collectives_are_refused(self):
        text = """HloModule m, num_partitions=2

ENTRY %main (p: f32[16], t: token[]) -> f32[16] {
  %p = f32[16] parameter(0)
  %t = token[] parameter(1)
  %s = (f32[16], u32[], token[]) send(%p, %t), channel_id=1HOST
  ROOT %c = f32[16] copy(%p)
}
"""
        with pytest.raises(ValueError, match="outside of a collective"):
            traffic_from_hlo(text.replace("HOST", ""))
        assert traffic_from_hlo(text.replace("HOST", ", is_host_transfer=true")) == {}


class TestOverlapped:
    def test_aggregation_between_start_and_end(self):
        in_loop, alone = overlapped_in_hlo((PROGRAMS / "gpu_ring.hlo").read_text())
        assert (in_loop.name, in_loop.computation) == ("collective-permute-start.3", "body")
        assert in_loop.asynchronous
        assert in_loop.between == ("get-tuple-element", "custom-call", "fusion")
        assert in_loop.between.count("fusion") == 1 and in_loop.loops_between == 0
        assert in_loop.custom_calls_between == 1
        assert (alone.name, alone.computation) == ("ppermute.2", "main")
        assert not alone.asynchronous
        assert alone.between == ()

    def test_aggregation_behind_the_end(self):
        text = (PROGRAMS / "gpu_ring.hlo").read_text()
        lines = text.splitlines()
        done = next(i for i, line in enumerate(lines) if " collective-permute-done(" in line)
        start = next(i for i, line in enumerate(lines) if " collective-permute-start(" in line)
        lines.insert(start + 1, lines.pop(done))
        assert overlapped_in_hlo("\n".join(lines))[0].between == ()

    def test_pair_that_runs_synchronously(self):
        text = (PROGRAMS / "gpu_ring.hlo").read_text().replace('"is_sync":false', '"is_sync":true')
        assert not overlapped_in_hlo(text)[0].asynchronous

    def test_wrapped_permute_with_an_update(self):
        (permuted,) = overlapped_in_hlo((PROGRAMS / "gpu_asynchronous.hlo").read_text())
        assert permuted.name == "async-start.1"
        assert permuted.between == ("sine", "async-update")

    def test_start_without_end_and_program_without_schedule(self):
        text = (PROGRAMS / "gpu_ring.hlo").read_text()
        with pytest.raises(
            ValueError, match=r"'collective-permute-start.3' starts .* does not end"
        ):
            overlapped_in_hlo(text.replace("collective-permute-done(", "copy("))
        with pytest.raises(ValueError, match="not scheduled"):
            overlapped_in_hlo(text.replace("is_scheduled=true, ", ""))

    def test_compiled_for_cpu_nothing_overlaps(self):
        (permuted,) = overlapped(compile_sharded(lambda x: permute(x) + jnp.sin(x)))
        assert not permuted.asynchronous
