"""Looking inside a finished study: what is planned, and that no run is trained for it."""

from tests.workflow.conftest import Project


def test_looking_inside_trains_nothing(smoke_study: Project) -> None:
    jobs = smoke_study.planned(None, "phenomena")
    assert not [job for job in jobs if job.startswith(("train", "base", "sample", "grade"))]
    tables = {f"token_table tiny-{method}-s{seed}" for method in ("dapo", "delta") for seed in (1, 2)}
    assert {job for job in jobs if job.startswith("token_table")} == tables
    assert {job for job in jobs if job.startswith("probes")} == {f"probes tiny-dapo-s{seed}" for seed in (1, 2)}
    assert "phenomenon token_flipping" in jobs
    pages = {f"tokens_page tiny-{method}-s1 {step}" for method in ("dapo", "delta") for step in (1, 3)}
    assert {job for job in jobs if job.startswith("tokens_page")} == pages


def test_a_mistake_is_one_line_and_hinders_nothing_else(smoke_study: Project) -> None:
    config = smoke_study.changed_config({"diagnostics.method": "ppo", "diagnostics.steps": [2]})
    answer = smoke_study.snakemake("phenomena", "--dry-run", config=config)
    assert answer.returncode != 0
    assert "error: diagnostics.method: is 'ppo'; accepted: dapo, delta" in answer.stdout + answer.stderr
    # What is analysed changes nothing that is there but the report, which shows the configuration.
    assert smoke_study.planned(config) == {"study_file", "report_html"}
