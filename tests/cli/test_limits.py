import math
from dataclasses import dataclass, fields
from typing import Annotated, get_type_hints

import pytest

from jaxgraph.cli import model_options, train_options
from jaxgraph.cli.limits import Number, OneOf, check_limits
from jaxgraph.cli.partition import PartitionOptions
from jaxgraph.cli.train_options import TrainOptions
from jaxgraph.nn.layer import NORMS
from jaxgraph.ops.core.choice import PREFERENCE

UNLIMITED = ("coordinator", "dataset", "memory_limit", "option", "weight_column")
"""Options checked by the registry of data sets, or by a reader of files, bytes or addresses."""


@dataclass(frozen=True, kw_only=True)
class Options:
    mean_degree: Annotated[float | None, Number(above=0)] = None
    count: Annotated[int, Number(least=1, below=4)] = 1
    mode: Annotated[str, OneOf(("sar", "domain"))] = "sar"
    free: str = ""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean_degree": 0.0}, r"^--mean-degree: got 0.0; expected a finite number above 0\.$"),
        ({"mean_degree": math.nan}, "got nan"),
        ({"mean_degree": math.inf}, "got inf"),
        ({"count": 0}, r"^--count: got 0; expected an integer at least 1 and below 4\.$"),
        ({"count": 4}, "got 4"),
        ({"mode": "domian"}, "--mode: got 'domian'; .* Did you mean 'domain'"),
    ],
)
def test_what_is_outside_of_its_limits_is_refused(wrong: dict, message: str):
    check_limits(Options(mean_degree=0.5, count=3, mode="domain", free="any"))
    with pytest.raises(ValueError, match=message):
        check_limits(Options(**wrong))


@pytest.mark.parametrize("wrong", [{"layers": 100_000}, {"epochs": 10**20}, {"layers": 1001}])
def test_counts_that_no_run_ends_with_are_refused(wrong: dict):
    check_limits(TrainOptions(dataset="karate", layers=1000, epochs=10**6))
    with pytest.raises(ValueError, match=f"--{min(wrong)}: got .* and below"):
        check_limits(TrainOptions(dataset="karate", **wrong))


@pytest.mark.parametrize("options", [TrainOptions, PartitionOptions])
def test_every_option_that_is_a_number_or_a_name_has_limits(options: type):
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        hint = hints[field.name]
        kinds = {hint.__origin__, *getattr(hint.__origin__, "__args__", ())} - {list[str]}
        limited = any(isinstance(each, Number | OneOf) for each in hint.__metadata__)
        assert limited or not kinds & {int, float, str} or field.name in UNLIMITED, field.name


def test_names_are_those_of_the_library():
    assert set(train_options.IMPLEMENTATIONS) == set(PREFERENCE)
    assert set(model_options.NORMS) == {"none", *NORMS}
