"""Which runs make a pair, and what the pairs say, on runs made by hand."""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from evals.core.files import read_json, write_json
from evals.core.run_spec import LocalRun
from evals.core.yaml_file import read_yaml
from rlvr.engines.local.train import train
from rlvr.study.studies import Studies
from rlvr.study.study_file import read_study_file
from rlvr_claims.claims.claim import draw_claim
from rlvr_claims.claims.findings import CONTRADICTED, NOT_MEASURED, SUPPORTED, Findings
from rlvr_claims.claims.inputs import Inputs, RunMetrics
from rlvr_claims.claims.learning_tax import (
    PRESERVED,
    RANDOM,
    STABLE,
    UNSTABLE,
    LearningTax,
    beginnings_of,
    conditions_of,
    in_blocks,
    mean_drift,
    reward_at,
    solution_changes,
)
from rlvr_claims.policy import PolicySnapshot
from rlvr_claims.probes import log_probs_of
from tests.claims.replayed_run import EXECUTION

CONFIG = Path(__file__).resolve().parents[3] / "config"


def test_the_shipped_runs_make_three_objectives_two_batchings_and_two_rates() -> None:
    """Read off the settings that the runs would have, not off their names."""
    studies = Studies(read_study_file(CONFIG / "sharpening.yaml"), "sharpening.yaml")
    methods = read_yaml(Path(__file__).parents[1] / "config/sharpening.yaml")["claims"]["compared"]
    runs = {}
    for method in methods:
        name = f"tiny-{method}-s1"
        policy = studies.policy(name)
        content = policy.study.resolved_run(policy.trained.run)
        if policy.step is not None:
            content["training"]["steps"] = policy.step
        runs[name] = _run(content)
    whole = beginnings_of(runs)
    for name, longest in whole.items():
        assert re.sub(r"_step\d+", "", name) == longest
    found = conditions_of({name: runs[name] for name in whole.values()})
    for name, each in found.items():
        assert each["objective"] == name.split("-")[1].split("_")[0]
        assert each["batching"] == (PRESERVED if "query_preserved" in name else RANDOM)
        assert each["rate"] == (UNSTABLE if name.endswith("unstable-s1") else STABLE)
    assert len({tuple(each.values()) for each in found.values()}) == 12


def _run(content: Any) -> RunMetrics:
    return RunMetrics(LocalRun.parse(content, "run.json"), pd.DataFrame())


def test_a_run_is_the_beginning_of_one_that_has_only_more_steps() -> None:
    """Another seed, rate or method is another run; of three lengths the longest is what the others begin."""
    studies = Studies(read_study_file(CONFIG / "sharpening.yaml"), "sharpening.yaml")
    content = studies.policy("tiny-grpo_long-s1").study.resolved_run("tiny-grpo_long-s1")
    other = studies.policy("tiny-gspo_long-s1").study.resolved_run("tiny-gspo_long-s1")

    def with_steps(steps: int, **changes: Any) -> RunMetrics:
        return _run(
            {**content, **changes, "training": {**content["training"], "learning_rate_decay_from": 1, "steps": steps}}
        )

    def with_decay(steps: int, to_step: int) -> RunMetrics:
        decay = {"learning_rate_decay_from": 0.5, "planned_steps": to_step}
        return _run({**content, "training": {**content["training"], "steps": steps, **decay}})

    runs = {
        "middle": with_steps(40, method_name="another name for the same"),
        "long": with_steps(60),
        "short": with_steps(20),
        "seed": with_steps(20, seed=2),
        "method": with_steps(20, method=other["method"]),
        "rate": _run({**content, "training": {**content["training"], "steps": 20, "learning_rate": 0.5}}),
        "decay": with_decay(20, 20),
        "part of a decay": with_decay(20, 40),
        "longer decay": with_decay(40, 40),
    }
    own = {name: name for name in ("seed", "method", "rate", "decay", "longer decay")} | {
        "part of a decay": "longer decay"
    }
    assert beginnings_of(runs) == {"short": "long", "middle": "long", "long": "long", **own}


def _series(ends: dict[tuple[str, str, str], tuple[float, float, float]]) -> pd.DataFrame:
    """Objective, batching, rate -> drift, reward, entropy of two seeds that differ by 0.01."""
    rows = []
    for (objective, batching, rate), (drift, reward, entropy) in ends.items():
        for seed in (1, 2):
            values = {"drift": drift, "reward": reward, "entropy": entropy, "entropy at the start": 1.0}
            values |= {"solution drift": 2 * drift, "reward at equal tokens": reward / 2}
            for quantity, value in values.items():
                rows.append([f"{objective}-{seed}", objective, batching, rate, seed, 60, quantity, value + 0.01 * seed])
            for quantity in ("reward curve", "entropy curve"):
                for step in (5, 10):
                    rows.append([f"{objective}-{seed}", objective, batching, rate, seed, step, quantity, 0.1 * step])
            for step in (20, 60) if rate == UNSTABLE else (60,):
                value = drift - (60 - step) / 40 + 0.01 * seed
                rows.append([f"{objective}-{seed}", objective, batching, rate, seed, step, "drift curve", value])
    series = pd.DataFrame(rows, columns=["run", "objective", "batching", "rate", "seed", "step", "quantity", "value"])
    return series.assign(tokens=100.0 * series["step"])


ENDS = {
    ("grpo", RANDOM, STABLE): (2.0, 0.8, 0.5),
    ("grpo", PRESERVED, STABLE): (1.0, 0.9, 0.5),
    ("dfpo", RANDOM, STABLE): (3.0, 0.7, 0.4),
    ("dfpo", PRESERVED, STABLE): (1.5, 0.6, 0.4),
    ("grpo", RANDOM, UNSTABLE): (6.0, 0.3, 0.1),
}


def test_contrasts_are_means_over_pairs_that_share_everything_else() -> None:
    found = {each.statement: each for each in LearningTax().measurements(_series(ENDS))}
    # (3 - 2 + 1.5 - 1) / 2, over two seeds each.
    assert found["DFPO drifts less than GRPO (stable rate)"].estimate == pytest.approx(0.75)
    assert found["DFPO drifts less than GRPO (stable rate)"].units == 4
    assert found["DFPO drifts less than GRPO (stable rate)"].verdict == CONTRADICTED
    # (1 - 2 + 1.5 - 3) / 2
    assert found["Query-preserved batches drift less (stable rate)"].estimate == pytest.approx(-1.25)
    assert found["Query-preserved batches drift less (stable rate)"].verdict == SUPPORTED
    assert found["Query-preserved batches end with more reward (stable rate)"].estimate == pytest.approx(0.0)
    assert found["A higher learning rate ends with less reward"].estimate == pytest.approx(-0.5)
    # Twice the drift, and half of the reward: (0.7 - 0.8 + 0.6 - 0.9) / 4.
    assert found["DFPO moves solutions less than GRPO (stable rate)"].estimate == pytest.approx(1.5)
    assert found["DFPO has more reward than GRPO at equal tokens (stable rate)"].estimate == pytest.approx(-0.1)
    assert found["A higher learning rate drifts more"].units == 2
    assert found["Entropy falls (dfpo, random mini-batches, stable rate)"].estimate == pytest.approx(-0.6)
    over = [each for each in found.values() if "after step" in each.quantity]
    assert [(each.estimate, each.units, each.verdict) for each in over] == [(pytest.approx(1.0), 2, "")]
    assert over[0].quantity.endswith(f"after step 60 less after step 20 (grpo, {RANDOM}, {UNSTABLE})")
    # What has no runs on both sides is one line.
    (lacking,) = [statement for statement, each in found.items() if each.verdict == NOT_MEASURED]
    assert {"Query-preserved batches drift less (unstable rate)", "DFPO drifts less than GSPO (stable rate)"} <= {
        *lacking.split("; ")
    }
    assert not [statement for statement in found if "GSPO" in statement and statement != lacking]


def test_solutions_move_by_the_sum_of_their_tokens_by_hand() -> None:
    """Three responses of 2, 1 and 2 tokens, the second wrong: the first rises by 0.3 nats, the third falls by 1."""
    before = torch.tensor([-1.0, -1.0, -5.0, -0.5, -0.5])
    after = torch.tensor([-0.9, -0.8, -1.0, -1.0, -1.0])
    right = torch.tensor([True, False, True])
    found = solution_changes(before, after, torch.tensor([0, 0, 1, 2, 2]), right)
    assert found.tolist() == [pytest.approx(0.3, abs=1e-6), pytest.approx(-1.0)]


def test_reward_at_equal_tokens_and_blocks_of_the_curve_by_hand() -> None:
    """10, 20, 30, 40 tokens are spent by the four steps; 35 pay for three of them, the later half of which is one."""
    tokens, rewards = pd.Series([10.0, 20.0, 30.0, 40.0]), pd.Series([0.1, 0.2, 0.4, 0.8])
    assert reward_at(tokens, rewards, 35.0) == 0.4
    assert reward_at(tokens, rewards, 40.0) == pytest.approx(0.6)
    assert reward_at(tokens, rewards, 1.0) == 0.1
    runs = [("a", step, 1000.0 * step, 1.0) for step in range(1, 7)] + [("b", 6, 8000.0, 3.0)]
    found = in_blocks(pd.DataFrame(runs, columns=["run", "step", "tokens", "value"]))
    # Steps 1 to 5 of a, and the sixth of a and b, drawn at their mean tokens.
    assert found[["tokens", "value"]].to_numpy().tolist() == [[3.0, 1.0], [7.0, 1.0], [7.0, 3.0]]


def test_the_figure_has_a_row_of_panels_for_each_rate_and_names_the_ends() -> None:
    series = _series(ENDS)
    figure = draw_claim(LearningTax(), Findings([*LearningTax().measurements(series)], series))
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert {f"{name}, {rate}" for name in ("Reward", "Entropy") for rate in (STABLE, UNSTABLE)} <= set(titles)
    # Drift has a panel where there is more than its end.
    assert f"Drift, {UNSTABLE}" in titles and f"Drift, {STABLE}" not in titles
    curve = figure.axes[titles.index(f"Drift, {UNSTABLE}")].lines[0]
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == (
        [20, 60],
        [pytest.approx(5.015), pytest.approx(6.015)],
    )
    title = " ".join(figure.get_suptitle().split())
    assert f"least under grpo, {PRESERVED}, {STABLE} (2.0" in title
    assert f"most under grpo, {RANDOM}, {UNSTABLE} (6" in title


def test_a_shorter_run_s_checkpoint_is_the_policy_that_the_long_one_passed_through(
    trained_run: Path, token_table: Path, snapshots: list[PolicySnapshot]
) -> None:
    """Of two steps, where the policy before the long run's third step was kept: drift along the way is that one's."""
    short = trained_run.parent.parent / "tiny-dapo_step2-s1" / "run.json"
    content = read_json(trained_run)
    training = {**content["training"], "steps": 2}
    write_json(short, {**content, "run": short.parent.name, "method_name": "dapo_step2", "training": training})
    train(LocalRun.read(short), short.parent, EXECUTION)
    runs = [short.parent.name, trained_run.parent.name]
    found = LearningTax().measure(Inputs(tables=[token_table], results=trained_run.parents[2], runs=runs))
    curve = found.series[found.series["quantity"] == "drift curve"].set_index("step")
    assert curve.index.tolist() == [2, content["training"]["steps"]]
    assert set(curve["run"]) == {trained_run.parent.name}
    first, third = snapshots
    chosen = torch.from_numpy((first.rows["token_class"] == "format").to_numpy())
    before, after = (log_probs_of(each.model, first.tokens, 1.0) for each in (first, third))
    assert curve["value"].loc[2] == pytest.approx(math.log2(mean_drift(before, after, chosen)), abs=1e-3)
    ends = found.series[found.series["quantity"] == "drift"]
    assert ends["value"].tolist() == [curve["value"].iloc[-1]]
