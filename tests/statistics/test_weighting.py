"""The weights of benchmarks: what the option accepts, what it means, and the mean that it makes."""

import numpy as np
import pytest

from evals.core.errors import InvalidInput
from evals.statistics.weighting import parse_weighting, weighted_mean, weighting_text, weights_of, weights_or_alike

PROBLEMS = {"aime": 30, "math": 500}


@pytest.mark.parametrize(
    ("text", "parsed", "weights"),
    [
        ("benchmarks", "benchmarks", [1.0, 1.0]),
        ("problems", "problems", [30.0, 500.0]),
        ("math=1,aime=2.5", {"math": 1.0, "aime": 2.5}, [2.5, 1.0]),
        ("math=1e-300,aime=1", {"math": 1e-300, "aime": 1.0}, [1.0, 1e-300]),
    ],
)
def test_weights_are_read_and_put_in_order(text: str, parsed: object, weights: list[float]) -> None:
    assert parse_weighting(text) == parsed
    assert weights_of(parse_weighting(text), PROBLEMS) == weights
    assert weighting_text(parse_weighting(text))


def test_a_name_may_hold_an_equals_sign() -> None:
    assert parse_weighting("a=b=2") == {"a=b": 2.0}


@pytest.mark.parametrize("text", ["", "easy", "=1", "easy=", "easy=0", "easy=-1", "easy=inf", "easy=nan", "a=1,,b=1"])
def test_what_is_no_weighting_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_weighting(text)
    assert error.value.source == "--weighting"


@pytest.mark.parametrize("own", [{"aime": 1.0}, {"aime": 1.0, "math": 1.0, "other": 1.0}])
def test_weights_are_of_the_benchmarks_that_there_are(own: dict[str, float]) -> None:
    with pytest.raises(InvalidInput) as error:
        weights_of(own, PROBLEMS)
    assert error.value.source == "--weighting"


def test_the_three_weightings_are_told_apart_in_words() -> None:
    texts = [weighting_text("benchmarks"), weighting_text("problems"), weighting_text({"aime": 2.0, "math": 0.5})]
    assert texts[0].startswith("each with the") and texts[0].endswith("same weight")
    assert texts[1].startswith("each with the") and texts[1].endswith("number of problems")
    assert "aime 2, math 0.5" in texts[2]


def test_the_mean_is_of_arrays_and_needs_no_normed_weights() -> None:
    values = [np.array([0.0, 1.0]), np.array([0.4, 0.2])]
    assert weighted_mean(values, [1.0, 3.0]) == pytest.approx([0.3, 0.4])
    assert weighted_mean(values, weights_or_alike(None, 2)) == pytest.approx([0.2, 0.6])
    assert weights_or_alike([2.0, 5.0], 2) == [2.0, 5.0]
    with pytest.raises(ValueError, match="zip"):
        weighted_mean(values, [1.0])
