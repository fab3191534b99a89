import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest

from evals.core.comparisons import Comparison, Verdict
from evals.core.files import read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import verify_outputs
from rlvr.report.page import write_report
from rlvr.report.run_tables import _RECORDED, _sampler_note
from rlvr.report.summary import headline, question
from tests.artifacts import edit
from tests.commands import rlvr_bench
from tests.stages import status
from tests.unit.synthetic_results import Study, full_size_results

_NOTE = "Generated problems & a tiny model."
_FIGURES = ("scores", "differences", "pass_at_k", "profiles", "cost_curves", "training_curves")


@pytest.fixture
def study(editable_study: Study) -> Study:
    return with_figures(editable_study)


def with_figures(study: Study) -> Study:
    """The study with stand-ins for its figures."""
    figures = study.results / "figures"
    figures.mkdir()
    for name in _FIGURES:
        (figures / f"{name}.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'><title>{name}</title></svg>")
    return study


def make_report(study: Study, **named: Any) -> int:
    def write() -> None:
        arguments = study.study_file, study.read(), study.results, study.results / "figures", [_NOTE]
        write_report(*arguments, study.root / "report.html", **named)

    return status(write)


def _page(study: Study) -> str:
    assert make_report(study) == 0
    return (study.root / "report.html").read_text(encoding="utf-8")


class _Outline(HTMLParser):
    """Tags that are opened and never closed, identifiers, links and everything that is loaded."""

    _VOID = ("meta", "img", "br", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.mismatched: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.ids += [str(values["id"])] if "id" in values else []
        self.references += [str(values[name]) for name in ("href", "src", "srcset", "data") if name in values]
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mismatched.append(tag)


def _outline(page: str) -> _Outline:
    outline = _Outline()
    outline.feed(page)
    return outline


def test_the_page_is_well_formed_and_needs_nothing_but_itself(study: Study) -> None:
    page = _page(study)
    outline = _outline(page)
    assert outline.open == [] and outline.mismatched == []
    assert not outline.tags & {"link", "iframe", "object"}
    assert page.count("<script") == 2 and "fetch(" not in page  # ours and its data, which sort tables and draw curves
    own = ("#", "data:image/svg+xml;base64,", "responses/")
    assert all(reference.startswith(own) for reference in outline.references)
    assert sum(reference.startswith("data:") for reference in outline.references) == len(_FIGURES)
    assert not re.search(r"url\(|@import", page)
    assert {reference[1:] for reference in outline.references if reference.startswith("#")} <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))


def test_what_models_and_configurations_say_is_shown_and_never_run(study: Study) -> None:
    hostile = "<script>alert(1)</script>"
    path = study.results / "samples/tiny-base/chain_3/samples.jsonl.bz2"
    write_jsonl(path, [row | {"text": hostile} for row in read_jsonl(path)])
    edit(study.study_file, lambda content: content.update(study=hostile))
    edit(study.runs_file, lambda runs: [run.update(title=f"{hostile} {run['method']}") for run in runs])
    page = _page(study)
    assert hostile not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script") == 2


def test_provenance_names_every_run_with_its_hashes_and_every_problem_set(study: Study) -> None:
    page = _page(study)
    for run in study.runs():
        folder = study.results / ("base/tiny" if run["method"] == "base" else f"runs/{run['run']}")
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["fingerprint"] in page
        assert sha256_file(folder / "checkpoint/model.safetensors") in page
    for name in ("train", "chain_3", "nested_sums"):
        assert sha256_file(study.results / f"problems/{name}/problems.jsonl") in page


def test_the_summary_says_what_is_and_what_is_not_distinguishable(study: Study) -> None:
    def decide(content: Any) -> None:
        for row in content["comparisons"]:
            if (row["method"], row["against"], row["benchmark"]) == ("grpo", "dapo", "all"):
                row.update(verdict="not distinguishable", p_value=0.42, p_value_holm=0.84)

    edit(study.comparisons, decide)
    page = _page(study)
    assert re.search(r"DelTA has the highest average, [\d.]+ \[[\d.]+, [\d.]+\] % avg@32 over 2 benchmarks: \+", page)
    assert re.search(r"Better than DAPO: DelTA \(\+[\d.]+, p &lt; 0\.001, after Holm &lt; 0\.001\)", page)
    assert re.search(r"Worse than DAPO: none\.", page)
    equal = r"GRPO \([+-][\d.]+, p = 0\.420, after Holm 0\.840\)"
    assert re.search(rf"Not distinguishable from DAPO at this size: {equal}", page)
    assert "Generated problems &amp; a tiny model." in page


def test_responses_that_nobody_could_judge_are_counted_by_reason(study: Study) -> None:
    recorded = _page(study).split("<h3>What the training runs recorded")[1]
    cells = dict(re.findall(r'row">(DAPO|DelTA)</th><td[^>]*>([^<]*)</td>', recorded.split("</table>")[0]))
    steps = sum(len(pd.read_parquet(path)) for path in (study.results / "runs").glob("tiny-delta-s*/metrics.parquet"))
    assert cells == {"DAPO": "0", "DelTA": f"timeout {2 * steps}"}


def test_the_result_comes_first_in_numbers_and_in_a_figure_whose_text_says_it(study: Study) -> None:
    page = _page(study)
    assert "<h1>Is any of 2 methods better than DAPO?</h1>" in page
    numbers = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page)
    verdicts = [row["verdict"] for row in json.loads(study.comparisons.read_text())["comparisons"] if _is_overall(row)]
    words, shown = numbers[0]
    assert shown == f"{verdicts.count('better')} of 2"
    assert words == f"methods better than DAPO, {verdicts.count('worse')} worse (after Holm)"
    assert len(numbers) == 3 and numbers[1][1].startswith("+") and "would often have been missed" in numbers[2][0]
    places = [page.index(f'<figure id="{name}">') for name in ("differences", "scores")]
    assert page.index('class="headline"') < places[0] < page.index('id="main"') < places[1]
    alternative = re.search(r'<figure id="differences">\s*<div class="drawing"><img src="[^"]*" alt="([^"]*)"', page)
    assert alternative is not None and "Better than DAPO: DelTA" in alternative[1]
    rewards = {
        title: np.mean([pd.read_parquet(path)["reward_mean"].iloc[-1] for path in study.results.glob(pattern)])
        for title, pattern in (("DAPO", "runs/*-dapo-s*/metrics.parquet"), ("DelTA", "runs/*-delta-s*/metrics.parquet"))
    }
    curves = re.search(r'<figure id="training_curves">\s*<div class="drawing"><img src="[^"]*" alt="([^"]*)"', page)
    assert curves is not None and "Mean reward of the last step: " in curves[1]
    assert all(f"{title} {100 * reward:.1f} %" in curves[1] for title, reward in rewards.items()), curves[1]


def test_a_method_counts_once_on_several_models() -> None:
    methods = ("dapo", "mine", "other")
    results = full_size_results({"small": methods, "large": methods}, {"chain_3": 4}, 8)
    verdicts = {("small", "mine"): "better", ("large", "mine"): "worse"}
    compared = {
        (model, method, "dapo", "all"): Comparison(
            model=model, method=method, against="dapo", benchmark="all", method_average=0.5, against_average=0.5,
            difference=0.0, standard_error=0.1, confidence_interval=(-0.1, 0.1), p_value=0.5,
            minimum_detectable_effect=0.1 if model == "small" else 0.2, seeds=1, against_seeds=1, problems=4,
            p_value_holm=0.5, verdict=Verdict(verdicts.get((model, method), "not distinguishable")),
        )
        for model in ("small", "large") for method in methods[1:]
    }  # fmt: skip
    results = replace(results, comparisons=compared)
    assert question(results) == "Is any of 2 methods better than dapo on any of 2 models?"
    (shown, words), (missed, _) = headline(results)
    assert shown == "1 of 2" and missed == "15.0"
    assert words == "methods better than dapo, 1 worse, on one or more of 2 models (after Holm)"


def test_controls_are_no_candidates(study: Study) -> None:
    """They are told apart in words, and neither the headline nor the question counts them."""
    controls = {"positive": "grpo", "negative": "delta"}
    edit(study.comparisons, lambda content: content.update(controls=controls))
    page = _page(study)
    assert "<h1>What does DAPO gain over the base model?</h1>" in page
    assert "methods better than" not in page and "Better than DAPO: DelTA, a control (" in page
    assert "DAPO has the highest average" in page and "the highest of 1 score proves nothing" in page
    edit(study.comparisons, lambda content: content.update(controls={"positive": "grpo", "negative": "grpo"}))
    page = _page(study)
    assert "<h1>Is DelTA better than DAPO?</h1>" in page and "methods better than" not in page
    answer, rest = page.partition("<nav")[0].partition("<strong>")[2], page.partition("<nav")[2]
    assert answer.startswith("Better than DAPO: +") and " points after 2 seeds; " in answer and "<strong>" not in rest


def _is_overall(row: dict[str, Any]) -> bool:
    return row["benchmark"] == "all" and row["against"] == "dapo"


def test_examples_are_the_first_problem_and_sample(study: Study) -> None:
    page = _page(study)
    first = read_jsonl(study.results / "samples/tiny-delta-s1/chain_3/samples.jsonl.bz2")[0]
    assert first["text"] in page and "Is 1 &lt; 2?" in page
    assert page.count('class="example"') == 2


def test_settings_in_which_methods_differ_stand_side_by_side(study: Study) -> None:
    for name in ("tiny-dapo-s1", "tiny-delta-s1"):
        change = {"training": {"steps": 8, "learning_rate": 0.1 if "dapo" in name else 0.2}}
        edit(
            study.results / f"runs/{name}/manifest.json", lambda content, new=change: content["parameters"].update(new)
        )
    table = _page(study).split("Settings in which the methods differ</h3>")[1].split("</table>")[0]
    rows = dict(re.findall(r'<th scope="row">([^<]*)</th>((?:<td[^>]*>[^<]*</td>)*)', table))
    assert re.findall(">([^<]+)<", rows["training.learning_rate"])[-2:] == ["0.1", "0.2"]
    assert "training.steps" not in rows and "seed" not in rows


def test_a_report_goes_into_one_file(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, packed = study.results, tmp_path / "mine.zip"
    shutil.copy(study.runs_file, results)
    shutil.copy(study.study_file, results)
    assert rlvr_bench("bundle")([str(results), str(packed)]) == 2
    assert "holds no report.html; make it first" in capsys.readouterr().err and not packed.exists()
    for name in ("report.html", "claims/index.html", "responses/chain_3/index.html", "responses/chain_3/texts/a-0.js"):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_text(name)
    (results / "responses/chain_3/.snakemake_timestamp").touch()
    assert rlvr_bench("bundle")([str(results), str(packed)]) == 0
    with ZipFile(packed) as content:
        names = set(content.namelist())
        assert f"{packed}: {len(names)} files, " in capsys.readouterr().out
        assert content.read("mine/responses/chain_3/texts/a-0.js") == b"responses/chain_3/texts/a-0.js"
    assert {"mine/report.html", "mine/claims/index.html", "mine/figures/scores.svg"} <= names
    assert not [name for name in names if name.startswith(("mine/samples", "mine/runs/")) or "snakemake" in name]
    (tmp_path / "linked").symlink_to(results)
    assert rlvr_bench("bundle")([str(tmp_path / "linked"), str(packed)]) == 0


@pytest.mark.parametrize("place", ["tables/notes.txt", "responses/dir", "responses", "figures"])
def test_what_links_lead_to_is_not_packed(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    results, packed, secret = study.results, tmp_path / "mine.zip", tmp_path / "secret"
    shutil.copy(study.runs_file, results)
    shutil.copy(study.study_file, results)
    (results / "report.html").write_text("report")
    secret.mkdir()
    (secret / "notes.txt").write_text("secret")
    linked = results / place
    if linked.is_dir():
        shutil.rmtree(linked)
    linked.parent.mkdir(exist_ok=True)
    linked.symlink_to(secret / "notes.txt" if place.endswith(".txt") else secret)
    assert rlvr_bench("bundle")([str(results), str(packed)]) == 2
    assert "is a link, or lies behind one" in capsys.readouterr().err and not packed.exists()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda study: (study.results / "figures/scores.svg").unlink(), "figures/scores.svg: no such file"),
        (lambda study: study.study_file.write_text("[]"), "study.json: is []; accepted: "),
        (lambda study: study.study_file.write_text("{}"), "study.json: lacks study"),
        (lambda study: (study.results / "runs/tiny-dapo-s1/manifest.json").unlink(), "manifest.json: no such file"),
        (
            lambda study: write_jsonl(study.results / "grades/tiny-base/chain_3/grades.jsonl.bz2", [{}]),
            "grades.jsonl.bz2: line 1: lacks problem_id",
        ),
        (
            lambda study: write_jsonl(study.results / "samples/tiny-base/chain_3/samples.jsonl.bz2", []),
            "samples.jsonl.bz2: has no response to the first problem of chain_3",
        ),
    ],
)
def test_a_missing_or_malformed_input_is_one_line(
    study: Study, capsys: pytest.CaptureFixture[str], break_it: Callable[[Study], object], message: str
) -> None:
    break_it(study)
    assert make_report(study) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert not (study.root / "report.html").exists()


def test_its_manifest_names_every_file_that_the_page_was_made_from(study: Study) -> None:
    assert make_report(study) == 0
    manifest = verify_outputs(study.root / "report.manifest.json", "report")
    assert set(manifest.outputs) == {"report.html"}
    for path, digest in manifest.inputs.items():
        assert sha256_file(Path(path)) == digest
    read = {Path(path).relative_to(study.root).as_posix() for path in manifest.inputs}
    run = study.runs()[1]["run"]
    assert {
        "runs.json",
        "study.json",
        "results/comparisons.json",
        "results/scores/chain_3.json",
        "results/figures/differences.svg",
        "results/problems/chain_3/problems.jsonl",
        "results/samples/tiny-base/chain_3/samples.jsonl.bz2",
        f"results/runs/{run}/manifest.json",
        f"results/runs/{run}/metrics.parquet",
        f"results/costs/grade/{run}.tsv",
    } <= read


def test_a_named_study_has_its_own_title_and_curves(study: Study) -> None:
    curves = study.results / "figures/reward_curves.svg"
    curves.write_text("<svg xmlns='http://www.w3.org/2000/svg'></svg>")
    assert make_report(study, title="DelTA's <ablations>", own_figures=["reward_curves"]) == 0
    page = (study.root / "report.html").read_text(encoding="utf-8")
    assert not _outline(page).mismatched
    assert "DelTA&#39;s &lt;ablations&gt;: RLVR Bench report" in page
    assert 'id="reward_curves"' in page


# The report's table of what trainings recorded: rounding of the sampler that could be taken for a difference.


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
