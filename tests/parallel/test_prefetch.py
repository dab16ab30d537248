"""With prefetch, a partition travels while the one before it is aggregated."""

import importlib.util
import itertools

import jax
import jax.numpy as jnp
import pytest

import jaxgraph as jg
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.planner.targets import find_target

PARTS = 4


@pytest.fixture(scope="module")
def tables():
    graph = jg.datasets.load("random", num_nodes=256, degree=8, num_features=4, seed=0)
    return tabulate(graph, jg.partition.partition(graph, PARTS, method="hash"), "sar")


def total(kernel, shard):
    sums = jg.parallel.propagate(shard, lambda sender, receiver, edge: sender, shard.nodes @ kernel)
    return shard.sum(jnp.sum(jnp.sin(shard.mask_rows(sums))))


def place(tables, *, prefetch, mesh=None, abstract=False):
    mesh = mesh or jg.parallel.make_mesh(PARTS)
    source = AbstractSource(tables.manifest) if abstract else tables
    return jg.parallel.place(source, mesh, prefetch=prefetch)


def compiled_for_h200(*, prefetch):
    """One sum over the neighbours on eight H200s that are not here."""
    graph = jg.datasets.load("random", num_nodes=32_768, degree=8, num_features=64, seed=0)
    tables = tabulate(graph, jg.partition.partition(graph, 8, method="hash"), "sar")
    mesh = find_target("h200x8").mesh(emulate=False)
    sharded = place(tables, prefetch=prefetch, mesh=mesh, abstract=True)
    replicated = jax.sharding.NamedSharding(mesh, jax.P())
    kernel = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=replicated)
    return jg.parallel.spmd(total).lower(kernel, sharded).compile()


def bodies(jaxpr):
    """The jaxpr and those of the calls in it that are not loops."""
    yield jaxpr
    for equation in jaxpr.eqns:
        if equation.primitive.name in (
            "jit",
            "pjit",
            "shard_map",
            "custom_jvp_call",
            "custom_vjp_call",
            "closed_call",
        ):
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from bodies(inner)


def dependencies(jaxpr):
    """For each permute and loop, by position, the positions of the permutes and loops it needs."""
    behind, found = {}, []
    for equation in jaxpr.eqns:
        needs = set().union(
            *(behind.get(v, set()) for v in equation.invars if not hasattr(v, "val"))
        )
        if equation.primitive.name in ("ppermute", "while"):
            found.append((equation.primitive.name, needs))
            needs = needs | {len(found) - 1}
        behind |= dict.fromkeys(equation.outvars, needs)
    return found


def test_fetch_and_work_of_neighbouring_steps_do_not_need_each_other(tables):
    sharded = place(tables, prefetch=True)
    jaxpr = jax.make_jaxpr(jg.parallel.spmd(total))(jnp.eye(4), sharded).jaxpr
    unrolled = max(bodies(jaxpr), key=lambda j: sum(e.primitive.name == "ppermute" for e in j.eqns))
    found = dependencies(unrolled)
    permutes = [i for i, (name, _) in enumerate(found) if name == "ppermute"]
    loops = [i for i, (name, _) in enumerate(found) if name == "while"]
    assert len(permutes) >= PARTS - 1

    def work_on(permute):
        # Loops that need this permute's rows and none that arrive later.
        later = {p for p in permutes if p > permute}
        return [i for i in loops if permute in found[i][1] and not later & found[i][1]]

    for current, following in itertools.pairwise(permutes):
        if not work_on(current):
            continue  # the two segments of one message
        assert work_on(current)
        assert not any(i in found[following][1] for i in work_on(current))
        assert not any(following in found[i][1] for i in work_on(current))


@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None,
    reason="compiling for H200 needs the CUDA plugin of jax: pip install 'jaxgraph[cuda]'",
)
def test_compiled_for_h200_every_permute_has_a_loop_under_it():
    plain, ahead = (
        jg.analysis.overlapped(compiled_for_h200(prefetch=prefetch)) for prefetch in (False, True)
    )
    assert plain
    assert all(permute.loops_between == 0 for permute in plain)
    assert sum(permute.loops_between > 0 for permute in ahead) >= 6
