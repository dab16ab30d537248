import inspect
import operator
import re
from pathlib import Path

import pytest

import jaxgraph
from jaxgraph.other_names import ADVICE_ON_NAMES
from tests.interpreter import run_alone

PUBLIC = (Path(__file__).parent / "public_names.txt").read_text().split()
"""All public names: each is documented in full, and changes with a line of the CHANGELOG."""

# One interpreter for all; it reports the imports of each module.
HOST_MODULES = (
    "jaxgraph",
    "jaxgraph.graph",
    "jaxgraph.graph_arrays",
    "jaxgraph.seeds",
    "jaxgraph.transforms",
    "jaxgraph.datasets",
    "jaxgraph.partition",
    "jaxgraph.external",
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


def test_the_public_names_are_those_of_the_list():
    modules = [getattr(jaxgraph, name) for name in jaxgraph.__all__]
    modules = [module for module in modules if inspect.ismodule(module)]
    public = {"jaxgraph.Graph", "jaxgraph.TypedGraph"}
    for module in (jaxgraph, *modules, jaxgraph.parallel.ptags):
        assert dir(module) == sorted(module.__all__), module.__name__
        assert all(getattr(module, name) is not None for name in module.__all__)
        if module is not jaxgraph:
            public |= {f"{module.__name__}.{name}" for name in module.__all__}
    assert sorted(public) == PUBLIC


def test_a_public_function_documents_its_arguments():
    bare = [
        place
        for place in PUBLIC
        if inspect.isfunction(found := operator.attrgetter(place.partition(".")[2])(jaxgraph))
        and inspect.signature(found).parameters
        and "Args:" not in (found.__doc__ or "")
    ]
    assert bare == []


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"no attribute 'fit': it is jaxgraph\.train\.fit"):
        _ = jaxgraph.fit  # pyright: ignore[reportAttributeAccessIssue]
    for name, advice in ADVICE_ON_NAMES.items():
        assert not hasattr(jaxgraph, name)
        (place,) = re.findall(r"jaxgraph\.([\w.]+)", advice)
        assert operator.attrgetter(place)(jaxgraph) is not None
    with pytest.raises(AttributeError, match="no attribute 'grahp'"):
        _ = jaxgraph.grahp  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        ("nn", "FastRGCNConv", r"jaxgraph\.nn\.RGCNConv"),
        ("nn", "MessagePassing", r"jaxgraph\.parallel\.propagate"),
        ("transforms", "RandomLinkSplit", r"jaxgraph\.transforms\.link_split"),
        ("datasets", "Planetoid", r"jaxgraph\.datasets\.load"),
        ("nn", "fit", r"it is jaxgraph\.train\.fit"),
        ("nn", "GCM", r"'GCM'$"),
    ],
)
def test_modules_name_what_they_have_instead(module: str, name: str, ours: str):
    with pytest.raises(AttributeError, match=rf"'jaxgraph\.{module}' has no attribute .*{ours}"):
        getattr(getattr(jaxgraph, module), name)
    with pytest.raises(
        AttributeError, match=r"it is jaxgraph\.Graph|jaxgraph\.sampling\.Loader makes"
    ):
        getattr(jaxgraph, "Data" if module == "nn" else "NeighborLoader")
