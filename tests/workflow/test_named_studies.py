"""A named study on the smoke study's model: which runs it shares, what it makes, what a change of it makes again."""

import csv
import json
from pathlib import Path

from tests.workflow.conftest import Project
from tests.workflow.test_smoke_and_reruns import BENCHMARKS, RUNS, edited, evaluation_of

SCOPE = "studies/selection/"
STEPS = "studies/selection/steps/"
OF_SCORES = {f"{rule} {SCOPE}" for rule in ("compare", "report_html", "track")}
OF_SCORES |= {f"{rule} {SCOPE}" for rule in ("table_main", "table_paper_vs_ours", "figure_score_curves")}
OF_SCORES |= {f"table_of_scores {SCOPE} by_seed", f"figure_of_training {SCOPE} cost_curves"}
OF_SCORES |= {f"figure_of_methods {SCOPE} {name}" for name in ("profiles", "pass_at_k")}
OF_SCORES |= {
    f"table_of_scores {SCOPE} pass_at_k",
    f"table_of_scores {SCOPE} robust",
    f"table_of_training {SCOPE} efficiency",
}
OF_SCORES |= {f"figure_of_scores {SCOPE} {name}" for name in ("scores", "differences")}
OF_TRAINING = {f"figure_training_curves {SCOPE}", f"figure_reward_curves {SCOPE}", f"page_rollouts {SCOPE}"}
FILES = {f"study_file {SCOPE}", f"run_sheet {SCOPE}", f"run_sheet {STEPS}"}


def of_grades(benchmarks: list[str]) -> set[str]:
    """What follows new grades of the study and of the checkpoints along its runs."""
    own = {f"page_responses {SCOPE} {name}" for name in benchmarks}
    return own | {f"{rule} {SCOPE}" for rule in ("score", "table_audit")} | {f"score {STEPS}"}


def trained_and_evaluated(seeds: list[int]) -> set[str]:
    """What the study's own method needs, halfway and at its end."""
    runs = [f"tiny-delta_top_lambda-s{seed}" for seed in seeds]
    halfway = [f"tiny-delta_top_lambda_step2-s{seed}" for seed in seeds]
    kept = {f"policy_at_step {run} 2" for run in runs}
    return {f"train {run}" for run in runs} | kept | evaluation_of([*runs, *halfway])


def halfway_of_the_shared_runs(seeds: list[int]) -> set[str]:
    """What is missing of the runs that the smoke study has trained."""
    kept = {f"policy_at_step tiny-dapo-s{seed} 2" for seed in seeds}
    return kept | evaluation_of([f"tiny-dapo_step2-s{seed}" for seed in seeds])


def expected(seeds: list[int], benchmarks: list[str]) -> set[str]:
    """All jobs of the study beside the finished smoke study."""
    own = trained_and_evaluated(seeds) | halfway_of_the_shared_runs(seeds)
    return own | OF_SCORES | OF_TRAINING | of_grades(benchmarks) | FILES


def test_a_named_study_trains_what_is_not_there_and_leaves_the_rest(finished_copy: Project) -> None:
    study = finished_copy.root / "config/studies/selection.yaml"
    others = study.read_text().partition("  delta_top_lambda: {}\n")[2]
    with edited(study, "score_at: [0.25, 0.5, 0.75]", "score_at: [0.5]"), edited(study, others, ""):
        check_selection(finished_copy, study, [1], BENCHMARKS[:1])


def check_selection(smoke_study: Project, study: Path, seeds: list[int], benchmarks: list[str]) -> None:
    """Run the study with few seeds and benchmarks, which takes less time; then change it."""
    small = smoke_study.changed_config({"seeds": seeds, "benchmarks": benchmarks})
    shorter = evaluation_of(["tiny-base", *(f"tiny-dapo-s{seed}" for seed in seeds)])  # what is sampled is kept
    assert smoke_study.planned(small, "selection") == expected(seeds, benchmarks) | shorter

    shared = {run: (smoke_study.root / f"results/runs/{run}/manifest.json").stat().st_mtime_ns for run in RUNS[1:]}
    smoke_study.run("selection", config=small)
    results = smoke_study.root / "results" / SCOPE
    with open(results / "tables/main.csv", newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["base", "dapo", "delta_top_lambda"]
    assert "Training on part of the tokens" in (results / "report.html").read_text()
    for figure in ("reward_curves", "score_curves"):
        assert (results / f"figures/{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((results / "runs.json").read_text())[1]["run"] == "tiny-dapo-s1"
    after = {run: (smoke_study.root / f"results/runs/{run}/manifest.json").stat().st_mtime_ns for run in RUNS[1:]}
    assert after == shared

    assert smoke_study.planned(small, "selection") == set()
    of_the_main_study = smoke_study.planned()
    with edited(study, "title: Training on part", "title: Trained on part"):
        assert smoke_study.planned(small, "selection") == {
            f"figure_reward_curves {SCOPE}",
            f"report_html {SCOPE}",
            f"study_file {SCOPE}",
            f"track {SCOPE}",
        }
        assert smoke_study.planned() == of_the_main_study
    with edited(study, "delta_top_lambda: {}", "delta_top_lambda: {token_weights: {ratio: 0.25}}"):
        changed = trained_and_evaluated(seeds) | OF_SCORES | OF_TRAINING | of_grades(benchmarks)
        assert smoke_study.planned(small, "selection") == changed | {f"study_file {SCOPE}"}
