"""Dispatch: the first implementation that can, refusals, names, and what is logged."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from jaxgraph.ops import dispatch
from jaxgraph.ops.dispatch import Implementation, by_preference, call


def make(name: str, result: Any = None, **options: Any) -> Implementation:
    def function(value: int) -> str:
        if isinstance(result, Exception):
            raise result
        return f"{name} {value}"

    return Implementation("op", name, function, lambda function: f"ok {function(1)}", **options)


@pytest.fixture(autouse=True)
def forget_what_was_logged() -> None:
    dispatch._log_once.cache_clear()


def test_order_is_that_of_preference() -> None:
    ordered = by_preference(make("xla"), make("mosaic_gpu"), make("cpu"))
    assert [each.name for each in ordered] == ["mosaic_gpu", "cpu", "xla"]


def test_names_of_implementations_are_fixed() -> None:
    with pytest.raises(ValueError, match="did you mean 'mosaic_gpu'"):
        by_preference(make("mosaic"))


def test_takes_the_first_that_can() -> None:
    assert call(by_preference(make("cpu"), make("xla")), None, 3) == "cpu 3"


def test_a_refusal_passes_to_the_next() -> None:
    candidates = by_preference(make("cpu", NotImplementedError("heads > 64")), make("xla"))
    assert call(candidates, None, 3) == "xla 3"


def test_what_is_for_another_platform_or_missing_is_passed_over() -> None:
    elsewhere = make("mosaic_gpu", platforms=("gpu",))
    unbuilt = make("cpu", missing=lambda: "no compiler was found")
    assert call(by_preference(elsewhere, unbuilt, make("xla")), None, 3) == "xla 3"
    assert not elsewhere.available and "runs on gpu, and this is cpu" in elsewhere.reason
    assert not unbuilt.available and unbuilt.reason == "no compiler was found"
    assert make("cpu", platforms=("gpu", "cpu")).available
    assert make("xla").available and make("xla").reason == ""


def test_the_callers_mistake_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="wrong shape"):
        call(by_preference(make("cpu", ValueError("wrong shape")), make("xla")), None, 3)


def test_one_that_is_named_never_falls_back() -> None:
    refusing = make("cpu", NotImplementedError("heads > 64"))
    with pytest.raises(NotImplementedError, match="heads > 64"):
        call(by_preference(refusing, make("xla")), "cpu", 3)
    unbuilt = make("cpu", missing=lambda: "no compiler was found")
    with pytest.raises(NotImplementedError, match=r"no compiler was found.*implementation=None"):
        call(by_preference(unbuilt, make("xla")), "cpu", 3)
    assert call(by_preference(make("cpu"), make("xla")), "xla", 3) == "xla 3"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'xal'; expected one of cpu, xla; did you mean 'xla'\?"):
        call(by_preference(make("cpu"), make("xla")), "xal", 3)


def test_all_refusals_are_reported() -> None:
    candidates = by_preference(
        make("mosaic_gpu", platforms=("gpu",)),
        make("cpu", missing=lambda: "not built"),
        make("xla", NotImplementedError("no complex numbers")),
    )
    with pytest.raises(NotImplementedError, match=r"runs on gpu.*not built.*no complex"):
        call(candidates, None, 3)


def test_the_choice_is_logged_once_with_its_reasons(caplog: pytest.LogCaptureFixture) -> None:
    candidates = by_preference(make("cpu", NotImplementedError("heads > 64")), make("xla"))
    with caplog.at_level(logging.INFO, logger="jaxgraph"):
        for value in range(3):
            call(candidates, None, value)
    assert [record.getMessage() for record in caplog.records] == [
        "op: xla (cpu refused: heads > 64)"
    ]


def test_check_runs_the_self_check_on_the_function() -> None:
    check: Callable[[], str] = make("xla").check
    assert check() == "ok xla 1"
