import pytest

from jaxgraph import nn
from jaxgraph.cli.recipes import RECIPES, recipe


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_a_model(name: str):
    assert hasattr(nn, recipe(name).class_name)


def test_an_unknown_model_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"--model: got 'gta'.* Did you mean 'gat'\?"):
        recipe("gta")
    with pytest.raises(ValueError, match=r"expected one of gcn, sage, gat, gatv2, gin, deepgcn\.$"):
        recipe("transformer")
