"""The report's table of what trainings recorded: rounding of the sampler that could be taken for a difference."""

import pandas as pd
import pytest

from rlvr.report.trainings import _RECORDED, _sampler_note


@pytest.mark.parametrize(
    ("outside", "clipped", "warned"),
    [(0.0, 0.01, False), (0.0009, 0.01, False), (0.002, 0.01, True), (0.001, 0.0, True)],
)
def test_rounding_of_the_size_of_the_clipping_is_warned_of(outside: float, clipped: float, warned: bool) -> None:
    steps = pd.DataFrame({"sampler_outside_clip": [0.0, 0.0], "clip_fraction": [clipped, clipped]})
    steps["sampler_outside_clip_weighted"] = outside  # the tokens that the method weighs decide
    assert bool(_sampler_note("M", steps)) is warned


@pytest.mark.parametrize(
    ("rounded", "moved", "warned"), [(1e-5, 1e-3, False), (2e-4, 1e-3, True), (1e-12, 1e-13, False)]
)
def test_a_loss_without_a_clip_is_warned_of_by_its_divergence(rounded: float, moved: float, warned: bool) -> None:
    steps = pd.DataFrame({"sampler_outside_clip": [0.5], "rollout_kl": [rounded], "approximate_kl": [moved]})
    notes = _sampler_note("M", steps)
    assert len(notes) == warned and all(
        "2.0e-04 nats a token; that of the updates is 1.0e-03" in each for each in notes
    )
    assert _sampler_note("M", steps[["sampler_outside_clip"]]) == []


def test_what_no_engine_recorded_is_a_dash() -> None:
    nothing = pd.DataFrame({"step": [1, 2]})
    assert {text(nothing) for text in _RECORDED.values()} == {"–"}
    steps = pd.DataFrame({"unjudged_timeout": [1, 2], "unjudged_memory": [0, 0], "training_passes": [0.5, 1.25]})
    steps["sampler_difference_mean"], steps["sampler_difference_mean_weighted"] = 0.002, 0.02
    told = {title: text(steps) for title, text in _RECORDED.items()}
    assert told["Responses nobody could judge"] == "timeout 3"
    assert told["Passes over the training problems"] == "1.2"
    assert told["Sampler against trainer (nats)"] == "2.0e-03 / 2.0e-02"
