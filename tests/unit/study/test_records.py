"""Results without Snakemake's record of them: what they were made with is known by their jobs' notes."""

from base64 import urlsafe_b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evals.core.config.sections import StudyExecution
from evals.core.errors import UserError
from rlvr import cli
from rlvr.stages.shown import WriteRuns
from rlvr.study.jobs import Jobs
from rlvr.study.records import checked_inputs, made_otherwise

OUTPUT, JOB = Path("results/runs.json"), Path("results/jobs/runs.json")
CHANGED = "with sheet: [] and without sheet: [{"


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory of a study."""
    monkeypatch.chdir(tmp_path)


def run_sheet(*runs: dict[str, Any]) -> WriteRuns:
    """A small stage, whose sheet is a setting."""
    return WriteRuns(folder="", sheet=runs)


def plan(stage: WriteRuns) -> None:
    """Write the file of the stage's job."""
    Jobs([stage], StudyExecution()).write(JOB.parent)


def otherwise(stage: WriteRuns) -> str:
    return made_otherwise(stage, set)


def test_a_jobs_note_says_what_made_its_output_whatever_was_planned_since() -> None:
    before, now = run_sheet(), run_sheet({"run": "tiny-base"})
    assert otherwise(now) == ""  # it is not there
    plan(before)
    assert cli.main(["stage", str(JOB)]) == 0
    assert otherwise(before) == "" and otherwise(now).startswith(CHANGED)
    plan(now)  # and not carried out
    assert otherwise(before) == "" and otherwise(now).startswith(CHANGED)
    assert cli.main(["stage", str(JOB)]) == 0
    assert otherwise(now) == "" and otherwise(before) != ""


def test_another_plan_keeps_what_an_output_without_a_note_was_made_with() -> None:
    """As of a training by hand: its job's file says it until it becomes another."""
    before, now = run_sheet(), run_sheet({"run": "tiny-base"})
    plan(before)
    before.run(StudyExecution())
    assert otherwise(before) == "" and otherwise(now).startswith(CHANGED)
    plan(now)
    assert otherwise(before) == "" and otherwise(now).startswith(CHANGED)


def test_a_note_says_nothing_of_an_output_that_was_made_since() -> None:
    """By hand, or by a job that was killed before its note."""
    before, now = run_sheet(), run_sheet({"run": "tiny-base"})
    plan(before)
    assert cli.main(["stage", str(JOB)]) == 0
    plan(now)
    now.run(StudyExecution())
    assert otherwise(now) == "" and otherwise(before) != ""
    plan(before)  # it keeps what the output was made with
    assert otherwise(now) == "" and otherwise(before) != ""


def test_a_damaged_note_is_one_line() -> None:
    plan(run_sheet())
    assert cli.main(["stage", str(JOB)]) == 0
    JOB.with_suffix(".made").write_text("[]")
    with pytest.raises(UserError, match=r"^results/jobs/runs\.made: "):
        otherwise(run_sheet())


def test_results_that_nothing_says_anything_of_are_refused() -> None:
    run_sheet().run(StudyExecution())
    with pytest.raises(UserError, match=r"results/runs\.json: nothing says what it was made with; copy \.snakemake or"):
        otherwise(run_sheet())
    plan(run_sheet())
    JOB.write_text('{"stage": "of another version"}')
    with pytest.raises(UserError, match=r"results/runs\.json: nothing says what it was made with"):
        otherwise(run_sheet())


def snakemake() -> SimpleNamespace:
    """What is asked of Snakemake's workflow."""
    dag = SimpleNamespace(forcefiles=set())
    return SimpleNamespace(is_main_process=True, touch=False, dryrun=False, dag=dag)


@pytest.mark.parametrize("longest", [8, 255])
def test_what_was_made_otherwise_is_forced_unless_snakemake_has_its_record(
    capsys: pytest.CaptureFixture[str], longest: int
) -> None:
    """Snakemake divides names that are too long for a file into directories."""
    planned: Any = SimpleNamespace(missing={}, may_lack_models=False)
    plan(run_sheet())
    assert cli.main(["stage", str(JOB)]) == 0
    now, workflow = run_sheet({"run": "tiny-base"}), snakemake()
    assert checked_inputs(planned, workflow)(now) == now.inputs()
    assert workflow.dag.forcefiles == {str(OUTPUT)}
    assert capsys.readouterr().err.startswith(f"{OUTPUT}: was made {CHANGED}")

    name = urlsafe_b64encode(str(OUTPUT).encode()).decode()
    *before, last = (name[start : start + longest - 1] for start in range(0, len(name), longest - 1))
    record = Path(".snakemake/metadata", *(f"@{part}" for part in before), last)
    record.parent.mkdir(parents=True)
    record.touch()
    recorded = snakemake()
    checked_inputs(planned, recorded)(now)
    assert recorded.dag.forcefiles == set() and capsys.readouterr().err == ""
