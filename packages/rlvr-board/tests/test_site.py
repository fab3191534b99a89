"""``rlvr-bench site``: only what verifies is shown, rows stand together where they compare, and bytes repeat."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from evals.core.files import fingerprint, sha256_file, write_bytes, write_json, write_text
from evals.core.manifest import Manifest, hash_files, write_output_manifest
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study, write_study

main = rlvr_bench()
HOSTILE = '"><script>alert(1)</script>/../../etc'
HOSTILE_TEXT = str(escape(HOSTILE))


def rewritten(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    write_json(path, content)


def write_manifest(directory: Path, kind: str, names: list[str], inputs: list[Path], **parameters: Any) -> None:
    hashes = {path.as_posix(): sha256_file(path) for path in inputs}
    written = hash_files(directory, *(directory / name for name in names))
    details = {"name": "my loss.py", "rows": 1}
    Manifest(kind, hashes, written, parameters, fingerprint(parameters), details).write(directory / "manifest.json")


def finish(
    study: Study,
    root: Path,
    name: str,
    weights: str = "weights",
    problem: str = "2 + 2?",
    steps: Mapping[str, int] = {},
) -> Path:
    """Copy a study, and give every file the manifest that its stage writes; of some methods the steps are others."""
    shutil.copytree(study.root, root)
    results = Path("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for sheet in ("runs.json", "study.json"):
            Path(sheet).rename(results / sheet)
        methods = {"dapo": {}, "delta": {"loss": {"file": "/home/eve/my loss.py", "name": "mine"}}}
        rewritten(results / "study.json", lambda content: content.update(study=name, methods=methods))
        if name == HOSTILE:
            rewritten(results / "runs.json", lambda runs: [run.update(title=f"{name} {run['method']}") for run in runs])
        write_text(results / "base/tiny/checkpoint/model.safetensors", weights)
        write_manifest(results / "base/tiny", "base_model", ["checkpoint/model.safetensors"], [])
        for directory in (results / "problems").iterdir():
            problems = directory / "problems.jsonl"
            problems.write_text(problems.read_text().replace("Is 1 < 2?", problem))
            write_manifest(directory, "problems", [problems.name], [])
        component = results / "components/ab12/component.py"
        write_bytes(component, b"# mine: <b>1</b>\n")
        write_manifest(component.parent, "component", [component.name], [])
        graded = list[Path]()
        for run in json.loads((results / "runs.json").read_text()):
            trained = results / ("base/tiny" if run["seed"] is None else f"runs/{run['run']}")
            if run["seed"] is not None:
                parameters = json.loads((trained / "manifest.json").read_text())["parameters"]
                parameters["training"]["steps"] = steps.get(run["method"], 8)
                files = ["metrics.parquet", "checkpoint/model.safetensors"]
                inputs = [results / "problems/train/problems.jsonl", *([component] if run["method"] == "delta" else [])]
                write_manifest(trained, "run", files, inputs, **parameters)
                write_json(trained / "run.json", parameters)
            for samples in (results / "samples" / run["run"]).iterdir():
                grades, problems = results / "grades" / run["run"] / samples.name, results / "problems" / samples.name
                given = [trained / "checkpoint/model.safetensors", problems / "problems.jsonl"]
                write_manifest(samples, "samples", ["samples.jsonl.bz2"], given)
                write_manifest(
                    grades, "grades", ["grades.jsonl.bz2"], [samples / "samples.jsonl.bz2"], grader_version=5
                )
                write_output_manifest("audit", grades / "audit", [".json"], [grades / "grades.jsonl.bz2"], {})
                graded.append(grades)
        names = {path.name for path in graded}
        for benchmark in names:
            of_it = [path / "grades.jsonl.bz2" for path in graded if path.name == benchmark]
            write_output_manifest("scores", results / "scores" / benchmark, [".json"], of_it, {})
        scores = [results / "scores" / f"{benchmark}.json" for benchmark in names]
        write_output_manifest("comparisons", results / "comparisons", [".json"], [*scores, results / "runs.json"], {})
        write_text(results / "figures/differences.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>")
        write_output_manifest("figure", results / "figures/differences", [".svg"], [results / "comparisons.json"], {})
        write_text(results / "report.html", "<script>alert(2)</script>")
        audits = [path / "audit.json" for path in graded]
        read = [results / "study.json", results / "comparisons.json", *audits, *(results / "costs").glob("*/*.tsv")]
        write_output_manifest("report", results / "report", [".html"], read, {"notes": [f"A note of {name}."]})
    return root


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two studies that compare, one of another model and budget, and one of another task."""
    root = tmp_path_factory.mktemp("studies")
    study = write_study(root / "study", ("dapo", "delta"), (1, 2), ("chain_3",), steps=8, problems=12)
    return [
        finish(study, root / "a", "laptop"),
        finish(study, root / "b", HOSTILE),
        finish(study, root / "c", "mine", weights="others", steps={"delta": 4}),
        finish(study, root / "d", "words", problem="two and two?"),
    ]


@pytest.fixture(scope="module")
def board(studies: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("board") / "board"
    assert main(["site", *map(str, studies), "--out", str(out)]) == 0
    return out


def tables(page: Path) -> list[tuple[str, list[list[str]]]]:
    """What stands above each table of the board, and its rows of text."""
    parts = re.split(r'<div class="table"', page.read_text(encoding="utf-8"))
    rows = [
        re.findall(r"<tr><th.*?</tr>", part.partition("</table>")[0].partition("<tbody>")[2], re.DOTALL)
        for part in parts
    ]
    above = [part.rpartition("</table>")[2] for part in parts]
    cells = [[re.findall(r"<t[hd][^>]*>(?:<a [^>]*>)?([^<]*)", row) for row in of_table] for of_table in rows]
    return list(zip(above[:-1], cells[1:], strict=True))


def test_rows_stand_together_where_task_model_budget_and_reference_are_the_same(board: Path) -> None:
    (_, first), (of_model, second), (of_task, third), (_, studies) = tables(board / "index.html")
    studies_of_rows = [[row[9] for row in rows] for rows in (first, second, third)]
    assert studies_of_rows == [["laptop", HOSTILE_TEXT], ["mine"], ["words"]]
    assert "Not comparable</strong> with the first table of this task; model: weights" in of_model
    assert "; budget: steps 4, there 8" in of_model and len(studies) == 4
    assert "Not comparable</strong> with the first task; task: problems of chain_3" in of_task


def test_a_row_has_what_the_study_found(board: Path, studies: list[Path]) -> None:
    rows = {(row[0], row[9]): row for _, rows in tables(board / "index.html")[:-1] for row in rows}
    comparisons = json.loads((studies[0] / "results/comparisons.json").read_text())["comparisons"]
    (ours,) = [
        row for row in comparisons if (row["method"], row["against"], row["benchmark"]) == ("delta", "dapo", "all")
    ]
    row = rows["DelTA", "laptop"]
    assert row[1].startswith(f"{100 * ours['difference']:+.1f}\n[") and row[2] == ours["verdict"]
    assert row[3] == f"{100 * ours['minimum_detectable_effect']:.1f}" and row[4] == "8.3"
    assert row[5].startswith("0 of 2") and row[6] == "2" and row[7].endswith(" k")


def test_a_study_has_a_page_with_its_curves_and_its_file(board: Path) -> None:
    page = (board / "laptop/index.html").read_text(encoding="utf-8")
    assert 'id="charts"' in page and '<figure id="curves"' in page and "A note of laptop." in page
    assert 'href="responses' not in page
    assert (
        board / "laptop/my-loss.py"
    ).read_bytes() == b"# mine: <b>1</b>\n" and "# mine: &lt;b&gt;1&lt;/b&gt;" in page
    study = json.loads((board / "laptop/study.json").read_text())
    assert study["methods"]["delta"]["loss"]["file"] == "my-loss.py" and "/home/eve" not in page


def test_a_board_can_show_the_responses_of_first_seeds(studies: list[Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert main(["site", str(studies[0]), "--out", str(tmp_path / name), "--responses", "1"]) == 0
    files, again = (
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (tmp_path / "one", tmp_path / "two")
    )
    assert files == again
    texts = sorted(path.name for path in files if path.suffix == ".js")
    assert texts == ["tiny-base-0.js", "tiny-dapo-s1-0.js", "tiny-delta-s1-0.js"]
    links = re.findall(r'href="(responses/[^"#]+)', (tmp_path / "one/laptop/index.html").read_text())
    assert links and all((tmp_path / "one/laptop" / link).is_file() for link in links)
    assert "manifest.json" not in {path.name for path in files}
    assert main(["site", str(studies[1]), "--out", str(tmp_path / "three"), "--responses", "1"]) == 0


def test_studies_in_any_order_give_the_same_bytes_and_replace_a_board(
    board: Path, studies: list[Path], tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(board, again)
    write_text(again / "stale/index.html", "an entry of an earlier board")
    assert main(["site", *(str(study / "results") for study in reversed(studies)), "--out", str(again)]) == 0
    files = {path.relative_to(board): path.read_bytes() for path in board.rglob("*") if path.is_file()}
    assert files == {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    assert len(files) == 1 + 4 * 3


def test_names_of_studies_methods_and_people_are_text_alone(board: Path) -> None:
    pages = sorted(board.rglob("*.html"))
    assert len(pages) == 5
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<script>alert" not in text and text.count("<script") == (1 if page.parent == board else 2)
        links = [link for link in re.findall(r'href="([^"#]+)', text)]
        assert links and all((page.parent / link).resolve().is_relative_to(board) for link in links)
        assert all((page.parent / link).is_file() for link in links) and not re.search(r'(src|href)="https?:', text)
    assert HOSTILE_TEXT in (board / "index.html").read_text()
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in board.rglob("*"))


def alter_score(results: Path) -> None:
    rewritten(results / "scores/chain_3.json", lambda content: content["scores"][0].update(seed=7))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (alter_score, "results/scores/chain_3.json: its bytes differ"),
        (lambda results: (results / "report.manifest.json").unlink(), "report.html: no manifest lists it"),
        (lambda results: [path.unlink() for path in results.glob("report.*")], "holds no finished study"),
    ],
)
def test_what_does_not_verify_is_refused_by_name(
    studies: list[Path], board: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    break_it: Callable[[Path], object], message: str,
) -> None:  # fmt: skip
    altered, out = tmp_path / "altered", tmp_path / "board"
    shutil.copytree(studies[0], altered)
    shutil.copytree(board, out)
    break_it(altered / "results")
    assert main(["site", str(studies[1]), str(altered), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {altered}: ") and error.count("\n") == 1 and message in error
    assert (out / "index.html").read_bytes() == (board / "index.html").read_bytes()


def test_other_files_are_never_replaced_and_a_study_stands_once(
    studies: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "mine/index.html", "my page")
    assert main(["site", str(studies[0]), "--out", str(tmp_path / "mine")]) == 2
    assert "--out" in capsys.readouterr().err and (tmp_path / "mine/index.html").read_text() == "my page"
    assert main(["site", str(studies[0]), str(studies[0]), "--out", str(tmp_path / "board")]) == 2
    assert "laptop: is given twice" in capsys.readouterr().err
    assert main(["site", str(tmp_path / "none"), "--out", str(tmp_path / "board")]) == 2
    assert "is no directory" in capsys.readouterr().err and not (tmp_path / "board").exists()
