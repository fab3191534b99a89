"""Extra results of a study, in the study's experiment, without touching what is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow.entities import Run

from evals.core.errors import UserError
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.projected import project_newer
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import client_of, project

main = rlvr_bench("stage")


@pytest.fixture
def study(tracked_study: Study, empty_database: Path) -> Study:
    """A projected study with a page, a table and a figure of claims."""
    results = tracked_study.results
    shutil.copy(empty_database, results / "mlflow.db")
    (results / "tables/phenomena.md").write_text("# Claims\n\n## Verdicts\n\n| a |\n\n## 1. First\n")
    (results / "claim.png").write_text("png")
    (results / "phenomena.html").write_text("<html></html>")
    for run in ("tiny-dapo-s1", "tiny-delta-s1"):
        (results / "diagnostics" / run).mkdir(parents=True)
        (results / "diagnostics" / run / "step-1.html").write_text(run)
    project(tracked_study)
    return tracked_study


def track_claims(study: Study, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says."""
    results = study.results
    arguments = [
        "--study",
        "laptop",
        "--name",
        "phenomena",
        "--title",
        "claims",
        "--note",
        f"{results}/tables/phenomena.md",
    ]
    arguments += ["--files", f"{results}/phenomena.html", f"{results}/tables/phenomena.md", f"{results}/claim.png"]
    arguments += [f"{results}/diagnostics/{run}/step-1.html" for run in ("tiny-dapo-s1", "tiny-delta-s1")]
    arguments += ["--database", f"{results}/mlflow.db", "--artifacts", f"{results}/mlflow-artifacts"]
    capsys.readouterr()
    assert main(["track-extra", *arguments, "--out", f"{results}/phenomena.tracking.json"]) == 0
    return capsys.readouterr().out


def shown(study: Study) -> dict[str, Run]:
    client = client_of(study)
    experiment = client.get_experiment_by_name("laptop")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    return {run.data.tags["rlvr.result"]: run for run in found}


def test_an_extra_result_is_a_run_of_its_own_and_leaves_the_study_alone(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {result: run.info.run_id for result, run in shown(study).items()}
    assert "1 created, 0 kept, 0 replaced, 0 removed" in track_claims(study, capsys)
    after = shown(study)
    run = after.pop("phenomena laptop")
    assert {result: each.info.run_id for result, each in after.items()} == before
    assert run.data.tags["mlflow.note.content"] == "# Claims\n\n## Verdicts\n\n| a |\n"
    client = client_of(study)
    paths = {
        file.path for folder in ("", "tables", "figures") for file in client.list_artifacts(run.info.run_id, folder)
    }
    assert {"phenomena.html", "tables/phenomena.md", "figures/claim.png"} <= paths
    for name in ("tiny-dapo-s1", "tiny-delta-s1"):
        page = client.download_artifacts(run.info.run_id, f"diagnostics/{name}/step-1.html")
        assert Path(page).read_text() == name
    assert "0 created, 1 kept" in track_claims(study, capsys)
    counts = project(study)
    assert counts["removed"] == counts["created"] == 0
    assert shown(study)["phenomena laptop"].info.run_id == run.info.run_id


def test_a_changed_figure_replaces_the_run_and_a_lost_database_is_made_again(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    track_claims(study, capsys)
    (study.results / "claim.png").write_text("other")
    assert "1 replaced" in track_claims(study, capsys)
    results = study.results
    record, store = results / "phenomena.tracking.json", Store.of(results)
    assert project_newer(record, results, store) is None
    # Another path stands for a lost database: MLflow keeps a deleted one open.
    counts = project_newer(record, results, Store(results / "new.db", store.artifacts))
    assert counts is not None and counts["created"] == 1
    record.write_text("{}")
    with pytest.raises(UserError, match=r"phenomena\.tracking\.json: lacks study, part, title"):
        project_newer(record, results, store)
