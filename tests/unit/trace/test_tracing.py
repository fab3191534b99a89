"""``rlvr-bench trace``: every stage is tampered with in turn, and each time the changed file is named."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evals.core import manifest
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_json, write_jsonl, write_parquet, write_text
from evals.core.manifest import Manifest, hash_files, write_output_manifest
from evals.results import read_results
from evals.scores.comparison import Settings, write_comparisons
from evals.scores.score import write_scores
from evals.tables.by_seed import write_by_seed_table
from evals.tables.main import write_main_table
from evals.trace.chain import root_hash_of
from tests.commands import rlvr_bench
from tests.stages import grade

main = rlvr_bench()

RUNS = [
    ("tiny-base", "base", None),
    ("tiny-dapo-s1", "dapo", 1),
    ("tiny-dapo-s2", "dapo", 2),
    ("tiny-grpo-s1", "grpo", 1),
    ("tiny-grpo-s2", "grpo", 2),
]
BENCHMARKS = ("short", "long")
COSTS = "s\tmax_rss\n1.5\t300.0\n"
SECONDS = 1.0


def artifact(directory: Path, kind: str, outputs: list[str], inputs: list[Path], parameters: dict[str, Any]) -> None:
    hashes = {path.as_posix(): sha256_file(path) for path in inputs}
    written = hash_files(directory, *(directory / name for name in outputs))
    Manifest(kind, hashes, written, parameters, fingerprint(parameters)).write(directory / "manifest.json")


def make_study(results: Path) -> None:
    """A study of two methods: hand-made up to the samples, by the real commands from there on."""
    generator = np.random.default_rng(3)
    for name in ("train", *BENCHMARKS):
        rows = [{"id": f"{name}-{n}", "problem": f"{n}?", "answer": str(n)} for n in range(12)]
        write_jsonl(results / "problems" / name / "problems.jsonl", rows)
        artifact(results / "problems" / name, "problems", ["problems.jsonl"], [], {"name": name})
    base, weights = results / "base/tiny", "checkpoint/model.safetensors"
    write_text(base / weights, "base")
    artifact(base, "base_model", [weights], [], {})
    for run, method, seed in RUNS[1:]:
        directory = results / "runs" / run
        write_text(directory / weights, run)
        metrics = {"tokens_generated": 5, "optimizer_steps": 1, "seconds_step": SECONDS, "reward_mean": 0.5}
        frame = pd.DataFrame([metrics])
        write_parquet(directory / "metrics.parquet", frame)
        inputs = [base / weights, results / "problems/train/problems.jsonl"]
        asked = {"run": run, "method_name": method, "seed": seed}
        write_json(directory / "run.json", asked | {"base": "results/base/tiny"})
        artifact(directory, "run", [weights, "metrics.parquet"], inputs, asked | {"versions": {"engine": 1}})
        write_text(results / "costs/train" / f"{run}.tsv", COSTS)
    for run, method, _ in RUNS:
        source = base if method == "base" else results / "runs" / run
        for benchmark in BENCHMARKS:
            problems = results / "problems" / benchmark / "problems.jsonl"
            directory = results / "samples" / run / benchmark
            rows = [
                {"problem_id": f"{benchmark}-{n}", "sample": s, "tokens": 4, "finish_reason": "stop",
                 "text": f"\\boxed{{{n if generator.random() < 0.5 else 99}}}"}
                for n in range(12) for s in range(4)
            ]  # fmt: skip
            write_jsonl(directory / "samples.jsonl.bz2", rows)
            artifact(directory, "samples", ["samples.jsonl.bz2"], [source / weights, problems], {"engine": "local"})
            grades = results / "grades" / run / benchmark
            grade(directory / "samples.jsonl.bz2", problems, grades)
        for stage in ("sample", "grade"):
            write_text(results / "costs" / stage / f"{run}.tsv", COSTS)
    sheet = [
        {"run": run, "model": "tiny", "method": method, "seed": seed, "title": method.upper()}
        for run, method, seed in RUNS
    ]
    write_json(results / "runs.json", sheet)
    make_scores(results)
    make_tables(results)


def scores_of(results: Path) -> list[Path]:
    return [results / "scores" / f"{benchmark}.json" for benchmark in BENCHMARKS]


def make_scores(results: Path) -> None:
    for benchmark, out in zip(BENCHMARKS, scores_of(results), strict=True):
        write_scores(
            benchmark, [results / "grades" / run / benchmark for run, _, _ in RUNS], results / "runs.json", out
        )
    quick = Settings("dapo", bootstrap_resamples=100, permutations=100)
    write_comparisons(scores_of(results), quick, results / "comparisons.json")


def make_tables(results: Path, scope: Path | None = None) -> None:
    scope = scope or results
    read = read_results(results / "runs.json", scores_of(scope), results / "comparisons.json")
    write_main_table(read, results / "costs", results / "runs", ["A note."], scope / "tables/main")
    write_by_seed_table(read, scope / "tables/by_seed")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        make_study(Path("results"))
    return root


@pytest.fixture
def study(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in another place: nothing may look at the original."""
    shutil.copytree(pristine, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def faults(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    status = main(["trace", *(arguments or ("results/tables/main.csv",)), "--json"])
    captured = capsys.readouterr()
    found = [fault for file in json.loads(captured.out)["files"] for fault in file["faults"]]
    assert (status, bool(captured.err)) == ((2, True) if found else (0, False))
    return found


def test_an_untouched_study_has_every_stage(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(capsys, "results/tables/main.csv", "results/tables/by_seed.csv", "results/tables/main.md") == []
    main(["trace", "results/tables/main.csv", "--json"])
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert [row["title"] for row in file["rows"]] == ["BASE", "DAPO", "GRPO"]
    for row in file["rows"]:
        stages = {link["stage"] for link in row["links"]}
        trained = {"run", "checkpoint"} if row["title"] != "BASE" else set()
        expected = {"problems", "base model", "samples", "grades", "scores", "comparisons", "table"} | trained
        assert stages == expected
        assert all(link["intact"] for link in row["links"])
        assert {link["sha256"] for link in row["links"]} == {sha256_file(Path(link["path"])) for link in row["links"]}
        own = [link["path"] for link in row["links"] if link["stage"] in ("samples", "grades", "checkpoint", "run")]
        assert all(any(f"/{run}/" in path for run in row["runs"]) for path in own)


def test_the_chain_is_printed_row_by_row(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "results/tables/main.csv", "--row", "grpo-s2"]) == 0
    printed = capsys.readouterr().out
    assert "GRPO (tiny-grpo-s1, tiny-grpo-s2)" in printed and "DAPO" not in printed
    assert "results/runs/tiny-grpo-s2/checkpoint/model.safetensors" in printed and "verified" in printed
    assert main(["trace", "results/tables/main.csv", "--row", "ppo"]) == 2
    assert "no row with 'ppo'" in capsys.readouterr().err


STAGES = [
    "results/problems/train/problems.jsonl",
    "results/problems/long/problems.jsonl",
    "results/base/tiny/checkpoint/model.safetensors",
    "results/runs/tiny-dapo-s2/checkpoint/model.safetensors",
    "results/runs/tiny-dapo-s2/metrics.parquet",
    "results/samples/tiny-grpo-s1/short/samples.jsonl.bz2",
    "results/grades/tiny-base/long/grades.jsonl.bz2",
    "results/scores/short.json",
    "results/comparisons.json",
    "results/runs.json",
    "results/costs/train/tiny-dapo-s1.tsv",
    "results/costs/grade/tiny-dapo-s1.tsv",
    "results/tables/main.csv",
    "results/tables/main.tex",
]
MANIFESTS = [
    "results/problems/long/manifest.json",
    "results/base/tiny/manifest.json",
    "results/runs/tiny-dapo-s2/manifest.json",
    "results/samples/tiny-grpo-s1/short/manifest.json",
    "results/grades/tiny-base/long/manifest.json",
    "results/scores/short.manifest.json",
    "results/comparisons.manifest.json",
    "results/tables/main.manifest.json",
]


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_changed_byte_is_named(study: Path, capsys: pytest.CaptureFixture[str], name: str, where: str) -> None:
    content = bytearray(Path(name).read_bytes())
    position = {"first": 0, "middle": len(content) // 2, "last": len(content) - 1}[where]
    content[position] ^= 1
    Path(name).write_bytes(content)
    found = faults(capsys)
    assert found and all(fault.startswith(f"{name}: ") for fault in found if "row" not in fault)


@pytest.mark.parametrize("name", STAGES)
def test_a_missing_file_is_named(study: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    if name == "results/tables/main.csv":
        Path(name).unlink()
        assert main(["trace", name]) == 2
        assert "no such file" in capsys.readouterr().err
        return
    Path(name).unlink()
    assert any(fault.startswith(f"{name}: is missing") for fault in faults(capsys))


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"created": "20', '"created": "19'),
        lambda text: text.replace("\n", "\n ", 1),
        lambda text: text.replace('"parameters": {', '"parameters": {"x": 1, ', 1) if '"parameters": {}' not in text
        else text.replace('"parameters": {}', '"parameters": {"x": 1}'),
    ],
    ids=["date", "space", "parameter"],
)  # fmt: skip
def test_an_edited_manifest_is_named(
    study: Path, capsys: pytest.CaptureFixture[str], name: str, edit: Callable[[str], str]
) -> None:
    before = Path(name).read_text()
    Path(name).write_text(edit(before))
    assert Path(name).read_text() != before
    assert any(fault.startswith(f"{name}: was changed") for fault in faults(capsys))


@pytest.mark.parametrize("name", MANIFESTS[:-1])
def test_a_deleted_manifest_is_a_fault(study: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    Path(name).unlink()
    write_jsonl(Path("results/samples/tiny-grpo-s1/short/samples.jsonl.bz2"), [])
    found = [fault for fault in faults(capsys) if "no manifest lists it" in fault]
    lost = name.removesuffix(".manifest.json").removesuffix("/manifest.json")
    assert found and all(fault.startswith(lost) for fault in found)


def verified(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = main(["verify", *arguments, "--json"])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["verified"] is (status == 0) and bool(report["faults"]) is (status == 2)
    return report


def test_a_whole_directory_is_verified_wherever_it_lies(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = verified(capsys, ".")
    assert here["manifests"] == len(list(study.rglob("*manifest.json"))) and here["faults"] == []
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(study, elsewhere)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(study)
    there = verified(capsys, str(elsewhere / "results"), "--root-hash", here["root_hash"])
    assert (there["faults"], there["root_hash"]) == ([], here["root_hash"])
    (fault,) = verified(capsys, str(elsewhere), "--root-hash", "0" * 64)["faults"]
    assert here["root_hash"] in fault


@pytest.mark.parametrize("spelling", ["../copy", "results/..", "../copy/results", "aside/.."])
def test_no_spelling_hides_loss(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    (tmp_path / "elsewhere/in").mkdir(parents=True)
    Path("aside").symlink_to(tmp_path / "elsewhere/in")  # of which .. is a copy of the study
    shutil.copytree("results", tmp_path / "elsewhere/results")
    here = verified(capsys, ".")
    assert verified(capsys, spelling)["root_hash"] == here["root_hash"]
    table = f"{spelling.removesuffix('/results')}/results/tables/main.csv"
    assert faults(capsys, table) == []
    results = tmp_path / "elsewhere/results" if spelling == "aside/.." else study / "results"
    for stage in ("runs", "samples", "grades"):
        shutil.rmtree(results / stage / "tiny-dapo-s1")
    lost = verified(capsys, spelling)["faults"]
    assert lost and lost == verified(capsys, str(results))["faults"]
    assert set(faults(capsys, table)) >= {fault for fault in lost if fault.startswith("results/runs")}


@pytest.mark.parametrize("successor", [False, True])
def test_a_renamed_directory_is_told_its_name(study: Path, capsys: pytest.CaptureFixture[str], successor: bool) -> None:
    """Its manifests name files in results/, which are missing, or those of another study that came after it."""
    Path("results").rename("results-of-may")
    if successor:
        shutil.copytree("results-of-may", "results")
    assert main(["verify", "results-of-may"]) == 2
    shown = capsys.readouterr()
    assert "has another name than results" in shown.err and "is missing" not in shown.out + shown.err


def test_a_study_that_is_made_again_has_the_same_root_hash(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what was measured differs: costs, seconds and memory of metrics, dates, the machine."""
    again = tmp_path / "again"
    again.mkdir()
    monkeypatch.chdir(again)
    monkeypatch.setitem(globals(), "COSTS", COSTS.replace("1.5", "2.5"))
    monkeypatch.setitem(globals(), "SECONDS", 7.0)
    monkeypatch.setattr(manifest, "describe_environment", lambda: {"platform": "another"})
    make_study(Path("results"))
    table, first = "results/tables/main.csv", verified(capsys, str(study))
    second = verified(capsys, ".")
    assert Path(table).read_bytes() != (study / table).read_bytes()
    assert second["root_hash"] == first["root_hash"] and second["bytes_hash"] != first["bytes_hash"]
    assert verified(capsys, ".", "--root-hash", second["bytes_hash"])["faults"] == []
    assert verified(capsys, ".", "--root-hash", first["bytes_hash"])["faults"]


@pytest.mark.parametrize("name", ["tables/main.csv", "grades/tiny-base/long/grades.jsonl.bz2", "scores/short.json"])
def test_forged_manifests_change_the_root_hash(study: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before, path = verified(capsys, "."), Path("results") / name
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    beside = path.with_suffix(".manifest.json")
    beside = beside if beside.is_file() else path.with_name("manifest.json")
    content = json.loads(beside.read_text())
    content["outputs"][path.name] = sha256_file(path)
    write_json(beside, {**content, "sha256": fingerprint({k: v for k, v in content.items() if k != "sha256"})})
    after = verified(capsys, ".")
    assert after["root_hash"] != before["root_hash"] and after["bytes_hash"] != before["bytes_hash"]


@pytest.mark.parametrize("name", [*STAGES, *MANIFESTS])
def test_verifying_names_whatever_was_changed(study: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before = verified(capsys, ".")["root_hash"]
    content = Path(name).read_bytes()
    Path(name).write_bytes(content.replace(b"a", b"b", 1) if name in MANIFESTS else content + b" ")
    after = verified(capsys, ".")
    assert any(name in fault for fault in after["faults"])
    assert name not in MANIFESTS or after["root_hash"] != before
    Path(name).unlink()
    assert verified(capsys, ".")["faults"]


def test_a_table_or_page_that_no_manifest_lists_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("tables/mine.csv", "mine.html", "mine.htm", "mine.PDF", "tables/logs/main.csv", "tables/state/main.csv")
    for name in (*names, "samples/tiny-base/short/samples.csv", "state/main.csv", "mine"):
        path = Path("results") / name
        write_text(path, "mine")
        assert [fault.split(":")[0] for fault in verified(capsys, ".")["faults"]] == [str(path)]
        path.unlink()
    no_results = (
        "logs/mine.txt",
        "runs/tiny-dapo-s1/state/x/values.json",
        "tables/.main.csv.1a2b3c4d.tmp",
        "mlflow.db",
    )
    for name in no_results:  # among them what a writer left that was killed
        write_text(Path("results") / name, "no result")
    assert verified(capsys, "results")["faults"] == []


def test_where_a_source_lies_is_not_in_the_root_hash(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = []
    for place, content in (
        ("one", "a"),
        ("two", "a"),
        ("two", "b"),
        ("x/config/reference", "a"),
        ("config/reference", "a"),
    ):
        source = (Path() if place.startswith("config") else tmp_path) / place / "published.csv"
        write_text(source, content)
        artifact(Path("results/problems/train"), "problems", ["problems.jsonl"], [source], {"name": "train"})
        hashes.append(verified(capsys, ".")["root_hash"])
    assert hashes[0] == hashes[1] != hashes[2] and hashes[3] == hashes[4] != hashes[0]
    for place, content in (
        ("one", "a"),
        ("two", "b"),
        ("two", "c"),
        ("myconfig/reference", "b"),
        ("config/reference", "b"),
    ):
        sources = [tmp_path / "x/config/reference/published.csv", tmp_path / "y" / place / "published.csv"]
        for source, text in zip(sources, ("a", content), strict=True):
            write_text(source, text)
        artifact(Path("results/problems/train"), "problems", ["problems.jsonl"], sources, {"name": "train"})
        hashes.append(verified(capsys, ".")["root_hash"])
    same, *others, in_project = hashes[5:]
    assert len({same, *others[:2], in_project}) == 4 and others[0] == others[2], "no source hides another of its name"
    for model in ("/one/model", "/two/model", "a/b"):
        artifact(Path("results/problems/train"), "problems", ["problems.jsonl"], [], {"model": model})
        hashes.append(verified(capsys, ".")["root_hash"])
    assert hashes[-3] == hashes[-2] != hashes[-1]


def test_what_lies_behind_links_is_verified(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tables", "samples", "runs"):
        Path("results", name).rename(tmp_path / name)
        Path("results", name).symlink_to(tmp_path / name)
    Path("results/tables/loop").symlink_to(Path("results").resolve())
    assert verified(capsys, ".")["faults"] == []
    for name in ("tables/main.csv", "runs/tiny-dapo-s1/metrics.parquet"):
        with open(tmp_path / name, "ab") as file:
            file.write(b" ")
        assert any(fault.startswith(f"results/{name}: its bytes") for fault in verified(capsys, ".")["faults"])
    Path("results/runs/tiny-dapo-s1/checkpoint").rename(tmp_path / "weights")
    Path("results/runs/tiny-dapo-s1/checkpoint").symlink_to(tmp_path / "weights")
    for name in ("tables/mine.csv", "runs/tiny-dapo-s1/checkpoint/modeling.py"):
        write_text(tmp_path / name, "mine")
        assert any(fault.startswith(f"results/{name}: no manifest") for fault in verified(capsys, ".")["faults"])


def test_what_is_no_file_and_names_that_no_file_has_are_faults(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe has no end, and nor has a device."""
    manifest = Path(MANIFESTS[4])
    for make in (lambda: os.mkfifo(manifest), lambda: manifest.symlink_to("/dev/zero")):
        manifest.unlink()
        make()
        assert any(f"{manifest}: is no file" in fault for fault in verified(capsys, ".")["faults"])
        assert faults(capsys)
    manifest.unlink()
    name = "x" * 300
    inputs = {f"results/{name}": "0" * 64, f"results/{name}.manifest.json": "0" * 64}
    Manifest("figure", inputs, {name: "0" * 64}, {}, "f").write(Path("results/figures/long.manifest.json"))
    assert sum(name in fault and "is missing" in fault for fault in verified(capsys, ".")["faults"]) == 3


def test_a_manifest_that_cannot_be_read_hides_no_other_fault(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(MANIFESTS[0]).write_text("{")
    Path(STAGES[5]).write_text("")
    found = verified(capsys, ".")["faults"]
    assert any("is not valid JSON" in fault for fault in found) and any(STAGES[5] in fault for fault in found)


def test_sources_elsewhere_may_be_missing(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = tmp_path / "reference/published.csv"
    write_text(reference, "paper,value\n")
    write_text(Path("results/tables/paper.md"), "a table")
    write_output_manifest("table", Path("results/tables/paper"), [".md"], [reference], {})
    assert verified(capsys, ".")["sources_elsewhere"] == []
    reference.write_text("paper,other\n")
    assert any(str(reference) in fault for fault in verified(capsys, ".")["faults"])
    reference.unlink()
    assert verified(capsys, ".")["sources_elsewhere"] == [str(reference)]
    beside = Path("config/reference/published.csv")  # of a clone, which a copy of the results lacks
    write_text(beside, "paper,value\n")
    write_output_manifest("table", Path("results/tables/paper"), [".md"], [beside], {})
    shutil.rmtree("config")
    assert verified(capsys, ".")["sources_elsewhere"] == [str(study / beside)]


def test_a_page_shows_the_root_hash_that_trace_finds(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [Path("results/comparisons.json"), Path("results/runs.json"), Path("results/scores/short.json")]
    out = Path("results/report.html")
    expected = root_hash_of(out, inputs)
    write_text(out, "a page")
    write_output_manifest("report", Path("results/report"), [".html"], inputs, {})
    assert main(["trace", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["root_hash"] == expected
    Path(STAGES[5]).write_text("")
    make_scores(Path("results"))
    assert root_hash_of(out, inputs) != expected


def test_a_directory_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "holds no manifests" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: is no directory" in capsys.readouterr().err


def test_stale_results_are_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each stage is made again, properly, from other samples; the table from before must not pass."""
    samples = Path("results/samples/tiny-dapo-s1/short")
    rows = read_jsonl(samples / "samples.jsonl.bz2")
    write_jsonl(samples / "samples.jsonl.bz2", [row | {"text": "\\boxed{99}"} for row in rows])
    inputs = [
        Path("results/runs/tiny-dapo-s1/checkpoint/model.safetensors"),
        Path("results/problems/short/problems.jsonl"),
    ]
    artifact(samples, "samples", ["samples.jsonl.bz2"], inputs, {"engine": "local"})
    of_table, stale = faults(capsys)  # the table names the arithmetic in the samples' manifest
    assert of_table.startswith("results/samples/tiny-dapo-s1/short/manifest.json: its bytes differ")
    assert stale.startswith("results/samples/tiny-dapo-s1/short/samples.jsonl.bz2: results/grades/tiny-dapo-s1/short/")
    assert "was made from other bytes" in stale
    problems, grades = Path("results/problems/short/problems.jsonl"), Path("results/grades/tiny-dapo-s1/short")
    grade(samples / "samples.jsonl.bz2", problems, grades)
    _, stale = faults(capsys)
    assert stale.startswith(
        "results/grades/tiny-dapo-s1/short/grades.jsonl.bz2: results/scores/short.manifest.json was made"
    )
    make_scores(Path("results"))
    assert {fault.split(":")[0] for fault in faults(capsys)} == {
        "results/samples/tiny-dapo-s1/short/manifest.json",
        "results/scores/short.json",
        "results/comparisons.json",
    }
    make_tables(Path("results"))
    assert faults(capsys) == []


def test_foreign_results_are_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole directories of another run or study, consistent in themselves, put in the place of this one's."""
    shutil.rmtree("results/samples/tiny-dapo-s1/short")
    shutil.copytree("results/samples/tiny-grpo-s1/short", "results/samples/tiny-dapo-s1/short")
    assert any(fault.startswith("results/samples/tiny-dapo-s1/short/samples.jsonl.bz2: ") for fault in faults(capsys))
    shutil.rmtree("results/runs/tiny-grpo-s2")
    shutil.copytree("results/runs/tiny-grpo-s1", "results/runs/tiny-grpo-s2")
    assert any("results/runs/tiny-grpo-s2/checkpoint/model.safetensors: " in fault for fault in faults(capsys))


def test_a_row_of_a_run_that_is_not_behind_the_table_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Path("results/tables/main.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    rows.append(rows[-1] | {"title": "Mine", "runs": "tiny-mine-s1"})
    with open(table, "w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert any("row Mine: no grades of run tiny-mine-s1" in fault for fault in faults(capsys))


def test_a_run_of_other_settings_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("results/runs/tiny-dapo-s1/run.json")
    write_json(path, json.loads(path.read_text()) | {"seed": 7})
    (fault,) = faults(capsys)
    assert fault.startswith(f"{path}: asks for another seed")


def test_the_place_of_the_file_decides_where_its_inputs_are_looked_for(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(study, elsewhere)
    (elsewhere / "results/scores/short.json").write_text("{}")
    monkeypatch.chdir(elsewhere)
    assert faults(capsys, str(study / "results/tables/main.csv")) == []
    assert faults(capsys) != []


def test_a_reader_that_has_seen_enough_is_no_error(study: Path) -> None:
    command = f"{sys.executable} -m rlvr trace results/tables/main.csv | head -1"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("BASE") and done.stderr == ""


def test_a_named_study_is_traced_from_the_same_place(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = "results/studies/mine"
    shutil.copytree("results/scores", f"{named}/scores")
    make_tables(Path("results"), Path(named))
    assert faults(capsys, f"{named}/tables/main.csv") == []
    grades = Path("results/grades/tiny-base/long/grades.jsonl.bz2")
    grades.write_text("")
    assert any(f"{grades}: " in fault for fault in faults(capsys, f"{named}/tables/main.csv"))


def test_a_manifest_leads_on_to_its_files(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("results/runs/tiny-dapo-s1")
    write_text(Path("results/figures/mine.svg"), "<svg/>")
    write_output_manifest("figure", Path("results/figures/mine"), [".svg"], [run / "manifest.json"], {})
    assert faults(capsys, "results/figures/mine.svg") == []
    (run / "checkpoint/model.safetensors").write_text("others")
    (fault,) = faults(capsys, "results/figures/mine.svg")
    assert fault.startswith(f"{run}/checkpoint/model.safetensors: its bytes differ")
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"created": "20', '"created": "19'))
    assert any(
        fault.startswith(f"{manifest}: its bytes differ") for fault in faults(capsys, "results/figures/mine.svg")
    )


def test_what_has_no_manifest_is_refused(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(Path("results/tables/mine.csv"), "method\ndapo\n")
    assert main(["trace", "results/tables/mine.csv"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_manifest_has_a_checksum_and_its_inputs(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("results/problems/long/manifest.json")
    before = path.read_text()
    write_json(path, {key: value for key, value in json.loads(before).items() if key != "sha256"})
    assert any(fault == f"{path}: was changed after it was written" for fault in faults(capsys))
    path.write_text(before)
    table = Path("results/tables/by_seed")
    write_output_manifest("table", table, [".md", ".csv", ".tex"], [], {})
    (fault,) = verified(capsys, ".")["faults"]
    assert fault == f"{table}.manifest.json: does not say what it was made from"


@pytest.mark.parametrize("change", ["deleted", "versions", "key", "another"])
def test_a_runs_settings_are_verified(study: Path, capsys: pytest.CaptureFixture[str], change: str) -> None:
    path = Path("results/runs/tiny-dapo-s1/run.json")
    content = json.loads(path.read_text())
    if change == "deleted":
        path.unlink()
    else:
        content.pop("method_name") if change == "key" else content.update(
            {"versions": {"versions": {"engine": 9}}, "another": {"x": 1}}[change]
        )
        write_json(path, content)
    found = verified(capsys, ".")["faults"]
    assert [fault.split(":")[0] for fault in found] == [str(path)] * (change != "versions")


@pytest.mark.parametrize("name", ["../../../../etc/hostname", "/etc/hostname", "a/../../x"])
def test_a_manifest_lists_nothing_outside(study: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = Path("results/tables/main.manifest.json")
    content = json.loads(path.read_text())
    content["outputs"][name] = "0" * 64
    write_json(path, content)
    assert any("leads out of its directory" in fault for fault in verified(capsys, ".")["faults"])
