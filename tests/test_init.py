import pytest

import jaxgraph
from tests.interpreter import run_alone

# One interpreter for all, each module imported with what it pulls in reported.
HOST_MODULES = (
    "jaxgraph",
    "jaxgraph.graph",
    "jaxgraph.graph_arrays",
    "jaxgraph.seeds",
    "jaxgraph.transforms",
    "jaxgraph.datasets",
    "jaxgraph.partition",
    "jaxgraph.planner",
)


def test_host_modules_never_import_jax():
    program = (
        "import importlib, sys\n"
        f"for name in {HOST_MODULES!r}:\n"
        "    importlib.import_module(name)\n"
        "    found = {'jax', 'jaxlib', 'flax', 'optax'} & set(sys.modules)\n"
        "    assert not found, f'{name} imports {sorted(found)}'\n"
        "import jaxgraph\n"
        "jaxgraph.datasets, jaxgraph.partition, jaxgraph.planner, jaxgraph.transforms\n"
        "assert 'jax' not in sys.modules\n"
    )
    result = run_alone(program)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", jaxgraph.__all__)
def test_every_public_name_is_there(name: str):
    assert getattr(jaxgraph, name) is not None
    assert name in dir(jaxgraph)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'grahp'"):
        _ = jaxgraph.grahp  # pyright: ignore[reportAttributeAccessIssue]
