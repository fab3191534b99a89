"""A named study on the smoke study's model: which runs it shares, what it makes, what a change of it makes again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.workflow.conftest import Project
from tests.workflow.test_smoke_and_reruns import BENCHMARKS, RUNS, edited, evaluation_of

SCOPE = "studies/selection/"
OWN_RUNS = [f"tiny-delta_top_lambda-s{seed}" for seed in (1, 2)]
STEPS = "studies/selection/steps/"
HALFWAY = [f"tiny-{method}_step2-s{seed}" for method in ("dapo", "delta_top_lambda") for seed in (1, 2)]
OF_SCORES = {f"{rule} {SCOPE}" for rule in ("compare", "table_main", "report_html", "track")}
OF_SCORES |= {f"table {SCOPE} {name}" for name in ("by_seed", "robust", "efficiency", "paper", "paper_vs_ours")}
OF_SCORES |= {f"figure {SCOPE} {name}" for name in ("scores", "differences", "profiles", "power", "cost_curves")}
OF_SCORES |= {f"figure {SCOPE} score_curves"}
OF_GRADES = {f"{rule} {SCOPE} {benchmark}" for rule in ("score", "audit", "page_responses") for benchmark in BENCHMARKS}
OF_GRADES |= {f"table {SCOPE} audit"}
OF_TRAINING = {f"figure {SCOPE} training_curves", f"figure {SCOPE} reward_curves"}
KEPT = {f"policy_at_step tiny-{method}-s{seed} 2" for method in ("dapo", "delta_top_lambda") for seed in (1, 2)}
OF_HALFWAY = {f"score {STEPS} {benchmark}" for benchmark in BENCHMARKS}


def trained_and_evaluated(runs: list[str]) -> set[str]:
    """What new runs need for themselves."""
    return {f"train {run}" for run in runs} | evaluation_of(runs, BENCHMARKS)


def test_a_named_study_trains_what_is_not_there_and_leaves_the_rest(smoke_study: Project) -> None:
    study = smoke_study.root / "config/studies/selection.yaml"
    others = study.read_text().partition("  delta_top_lambda: {}\n")[2]
    with edited(study, "score_at: [0.25, 0.5, 0.75]", "score_at: [0.5]"), edited(study, others, ""):
        check_selection(smoke_study, study)


def check_selection(smoke_study: Project, study: Path) -> None:
    planned = smoke_study.planned(None, "selection")
    of_all = OF_SCORES | OF_GRADES | OF_TRAINING | OF_HALFWAY
    files = {f"study_file {SCOPE}", f"run_sheet {SCOPE}", f"run_sheet {STEPS}"}
    assert planned == trained_and_evaluated(OWN_RUNS) | evaluation_of(HALFWAY, BENCHMARKS) | KEPT | of_all | files

    shared = {run: (smoke_study.root / f"results/runs/{run}/manifest.json").stat().st_mtime_ns for run in RUNS[1:]}
    answer = smoke_study.snakemake("selection")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    results = smoke_study.root / "results" / SCOPE
    with open(results / "tables/paper.csv", newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["base", "dapo", "delta_top_lambda"]
    assert "Training on part of the tokens" in (results / "report.html").read_text()
    for figure in ("reward_curves", "score_curves"):
        assert (results / f"figures/{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((results / "runs.json").read_text())[1]["run"] == "tiny-dapo-s1"
    after = {run: (smoke_study.root / f"results/runs/{run}/manifest.json").stat().st_mtime_ns for run in RUNS[1:]}
    assert after == shared

    assert smoke_study.planned(None, "selection") == set()
    with edited(study, "title: Training on part", "title: Trained on part"):
        assert smoke_study.planned(None, "selection") == {
            f"table {SCOPE} paper",
            f"figure {SCOPE} reward_curves",
            f"report_html {SCOPE}",
            f"track {SCOPE}",
        }
        assert smoke_study.planned() == set()
    with edited(study, "delta_top_lambda: {}", "delta_top_lambda: {token_weights: {ratio: 0.25}}"):
        changed = trained_and_evaluated(OWN_RUNS) | evaluation_of(HALFWAY[2:], BENCHMARKS)
        changed |= {f"policy_at_step {run} 2" for run in OWN_RUNS}
        assert smoke_study.planned(None, "selection") == changed | of_all | {f"study_file {SCOPE}"}
