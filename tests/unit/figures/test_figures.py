import dataclasses
import io
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from evals.core.comparisons import Comparison, Look
from evals.core.manifest import verify_outputs
from evals.core.records import ALL_BENCHMARKS, Chosen, Run
from evals.figures import style
from evals.figures.designs import draw_doses, draw_factorial, draw_sizes
from evals.figures.efficiency import draw_cost_curves
from evals.figures.results import draw_differences, draw_pass_at_k, draw_profiles, draw_scores, write_scores_figure
from evals.figures.style import (
    COLOURS,
    COLUMN_WIDTH,
    PAGE_WIDTH,
    VERDICT_COLOURS,
    figure_style,
    method_styles,
    save,
    save_for_papers,
)
from evals.results import Results
from evals.tables.efficiency import read_totals
from rlvr.report.curves import (
    draw_reward_curves,
    draw_score_curves,
    draw_training_curves,
    draw_validation_curves,
    read_metrics,
)
from tests.printed import printed_faults
from tests.unit.synthetic_results import METHODS, Study

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _runs(methods: list[str]) -> list[Run]:
    base = Run(run="tiny-base", model="tiny", method="base", seed=None, title="Base model")
    trained = [base.model_copy(update={"run": f"tiny-{name}-s1", "method": name, "seed": 1}) for name in methods]
    return [base, *trained]


def test_methods_keep_their_colour_when_one_is_added_and_differ_from_each_other() -> None:
    names = list(METHODS)
    before, after = method_styles(_runs(names)), method_styles(_runs([*names, "new"]))
    assert all(before[name] == after[name] for name in names)
    assert len({(style.colour, style.marker) for style in after.values()}) == len(after)
    many = method_styles(_runs([f"m{number}" for number in range(40)]))
    assert len(set(many.values())) == 41


def test_scores_draw_every_methods_average_in_its_colour(results: Results) -> None:
    with figure_style():
        figure = draw_scores(results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["mean of all", "chain_3", "nested_sums"]
    styles = method_styles(results.runs)
    for axes, name in zip(figure.axes, (ALL_BENCHMARKS, "chain_3", "nested_sums"), strict=True):
        drawn = {
            (round(float(line.get_xdata()[0]), 6), to_hex(line.get_color()))
            for line in axes.lines
            if line.get_marker() == "o"
        }
        expected = {
            (round(100 * results.average(row, name).value, 6), styles[row.method].colour) for row in results.conditions
        }
        assert drawn == expected


def test_a_model_that_solves_nothing_is_drawn_at_zero_on_an_axis_of_per_cents(results: Results) -> None:
    base = tuple(run for run in results.runs if run.method == "base")
    nothing = {
        key: score.model_copy(update={"average_at_k": 0.0, "correct_counts": (0,) * len(score.correct_counts)})
        for key, score in results.scores.items()
    }
    with figure_style():
        figure = draw_scores(dataclasses.replace(results, runs=base, scores=nothing))
    assert figure.axes[0].get_xlim() == pytest.approx((-1.0, 4.0))
    assert "seeds" not in figure.get_supxlabel()


def test_differences_are_coloured_by_verdict(results: Results) -> None:
    with figure_style():
        figure = draw_differences(results)
    mean = figure.axes[0]
    colours = {int(line.get_ydata()[0]): to_hex(line.get_color()) for line in mean.lines if line.get_marker() == "o"}
    compared = [row for row in results.conditions if row.method in ("grpo", "delta")]
    verdicts = [results.comparison(row, "dapo", "all") for row in compared]
    assert colours == {row: VERDICT_COLOURS[verdict.verdict] for row, verdict in enumerate(verdicts) if verdict}


def test_no_two_entries_of_the_legend_have_one_colour(results: Results) -> None:
    look = Look(
        model="tiny", method="delta", seeds=2, level=0.05, level_alone=0.05, difference=0.0, interval=None, verdict=None
    )
    for looks, alike in (((), "not distinguishable"), ((look,), "not decided or not distinguishable")):
        with figure_style():
            (legend,) = draw_differences(dataclasses.replace(results, looks=looks)).legends
        colours = [to_hex(line.get_color()) for line in legend.get_lines()]
        assert len(set(colours)) == len(colours)
        assert alike in [text.get_text() for text in legend.get_texts()]


def test_one_very_wide_interval_does_not_hide_the_others(results: Results) -> None:
    def end(comparisons: Mapping[tuple[str, str, str, str], Comparison]) -> tuple[float, int]:
        with figure_style():
            figure = draw_differences(dataclasses.replace(results, comparisons=comparisons))
        arrows = [line for axes in figure.axes for line in axes.lines if line.get_marker() in ("<", ">")]
        return figure.axes[0].get_xlim()[1], len(arrows)

    before, none = end(results.comparisons)
    key = next(key for key in results.comparisons if key[1:3] == ("grpo", "dapo"))
    wide = results.comparisons[key].model_copy(update={"confidence_interval": (-0.9, 0.9)})
    after, arrows = end({**results.comparisons, key: wide})
    assert none == 0 and arrows == 2
    assert after < 90 and after < 4 * before


def test_a_method_alone_is_drawn_against_its_base_model(results: Results) -> None:
    alone = dataclasses.replace(results, runs=tuple(run for run in results.runs if run.method in ("base", "dapo")))
    with figure_style():
        figure = draw_differences(alone)
    (drawn,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    (condition,) = [row for row in alone.conditions if row.method == "dapo"]
    comparison = alone.comparison(condition, "base", "all")
    assert comparison is not None and drawn.get_xdata()[0] == pytest.approx(100 * comparison.difference)
    assert "to the base model, 95 % intervals" in figure.get_suptitle()


def test_a_score_without_interval_is_drawn_without_one(results: Results) -> None:
    runs = tuple(run for run in results.runs if run.seed in (None, 1))
    with figure_style():
        figure = draw_scores(dataclasses.replace(results, runs=runs))
    intervals = figure.axes[0].collections
    assert len(intervals) == 1  # the base model's alone: one seed says nothing about other seeds


@pytest.mark.parametrize("draw", [draw_scores, draw_differences])
def test_a_figure_for_papers_has_their_width(draw: Callable[..., Figure], results: Results, tmp_path: Path) -> None:
    figure = save_for_papers(lambda: draw(results), tmp_path / "page.pdf", PAGE_WIDTH)
    column = save_for_papers(lambda: draw(results, mean_only=True), tmp_path / "column.pdf", COLUMN_WIDTH)
    assert figure.get_figwidth() <= PAGE_WIDTH and column.get_figwidth() <= COLUMN_WIDTH
    assert figure.get_suptitle() == "" and draw(results).get_suptitle() != ""
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF") and b"/Type3" not in (
        tmp_path / "page.pdf"
    ).read_bytes()


def test_colours_stand_out_from_white_and_neighbours_have_other_lines() -> None:
    for colour in (*COLOURS, *VERDICT_COLOURS.values()):
        channels = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
        luminance = sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), channels, strict=True))
        assert 1.05 / (luminance + 0.05) >= 3, f"{colour}: contrast to white (WCAG 2.2, 1.4.11)"
    looks = list(method_styles(_runs(list(METHODS))).values())[1:]
    assert all(one.line != other.line for one, other in itertools.pairwise(looks))
    assert len({(look.colour, look.line) for look in looks}) == len(METHODS)


def test_the_same_data_give_the_same_bytes_without_a_date(results: Results, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with figure_style():
            save(draw_differences(results), tmp_path / name)
        save_for_papers(lambda: draw_differences(results), tmp_path / f"{name}.pdf", PAGE_WIDTH)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
    assert b"/CreationDate" not in (tmp_path / "a.pdf").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(_PNG_SIGNATURE)
    svg = (tmp_path / "a.svg").read_text()
    assert "<dc:date>" not in svg and "matplotlib.org" not in svg.split("</metadata>")[0].split("<metadata>")[-1]


def test_command_writes_all_formats_and_a_manifest(synthetic_study: Study, tmp_path: Path) -> None:
    write_scores_figure(synthetic_study.read(), tmp_path / "scores")
    # Those that the rule declares: what a job that failed leaves is removed.
    declared = {f"scores{ending}" for ending in (".png", ".svg", ".pdf", "_column.pdf", ".manifest.json")}
    assert {*verify_outputs(tmp_path / "scores.manifest.json", "figure").outputs, "scores.manifest.json"} == declared


@pytest.mark.parametrize("name", ["DAPO $\\badname$", "$\\frac{$", "$", "5$ or 6$", "a_b^c"])
def test_a_name_with_dollars_is_drawn_as_it_is(name: str) -> None:
    figure = style.new_figure(3, 2)
    style.set_title(figure, name)
    figure.savefig(io.BytesIO(), format="svg")


# The text of every figure for papers: nothing is cut by the page, and nothing overlaps, whatever the titles.

LONG = "A method of another paper, query-preserved, with rewards that are balanced over the groups"
TITLES: Mapping[str, tuple[str, str, str]] = {
    "usual": ("GRPO", "DAPO", "DAPO, query-preserved, reward-balanced"),
    "hostile": (r"DAPO $\x$ & {of} 100 %", "W" * 200, LONG),
}
LOOK = Look(
    model="tiny", method="delta", seeds=2, level=0.05, level_alone=0.05, difference=0.0, interval=None, verdict=None
)


def _drawings(study: Study, titles: tuple[str, str, str]) -> dict[str, Callable[[], Figure]]:
    """Every figure of a study whose three methods have these titles."""
    results, (_, reference, last) = study.read(), titles
    named = dict(zip(("grpo", "dapo", "delta"), titles, strict=True))
    runs = tuple(run.model_copy(update={"title": named.get(run.method, run.title)}) for run in results.runs)
    results = dataclasses.replace(results, runs=runs, looks=(LOOK,), margin=0.02)
    training, trained = study.results / "runs", [run for run in runs if run.seed is not None]
    metrics = {run.run: read_metrics(run.run, training) for run in trained}
    totals = {run.run: read_totals(run.run, training) for run in trained}
    studies = ["Off-policy, sixteen updates a step", last]
    points = {method: [(4, method), (8, method)] for method in named}
    averages = {"base": [0.3], **{method: [0.4, 0.5] for method in named}}
    chosen = [
        Chosen(run=run.run, benchmark="chain_3", samples_per_problem=8, step=4, averages={"4": 0.4, "8": 0.5})
        for run in trained
    ]
    return {
        "scores": lambda: draw_scores(results),
        "scores_column": lambda: draw_scores(results, mean_only=True),
        "differences": lambda: draw_differences(results),
        "differences_column": lambda: draw_differences(results, mean_only=True),
        "profiles": lambda: draw_profiles(results),
        "pass_at_k": lambda: draw_pass_at_k(results),
        "cost_curves": lambda: draw_cost_curves(results, totals),
        "training_curves": lambda: draw_training_curves(runs, metrics),
        "reward_curves": lambda: draw_reward_curves([runs], ["x"], metrics, "dapo"),
        "reward_curves_two": lambda: draw_reward_curves([runs, runs], studies, metrics, "dapo"),
        "score_curves": lambda: draw_score_curves(runs, points, averages, 8),
        "validation_curves": lambda: draw_validation_curves(runs, chosen),
        "sizes": lambda: draw_sizes(_sizes(titles), reference, 2.0),
        "factorial": lambda: draw_factorial(_factorial(titles)),
        "doses": lambda: draw_doses(_doses(titles), "dapo"),
    }


def _ends(value: float) -> dict[str, float]:
    return {"confidence_low": value - 0.01, "confidence_high": value + 0.01}


def _sizes(titles: tuple[str, ...]) -> pd.DataFrame:
    rows = itertools.product(titles, (53_000, 170_000, 660_000, 2_600_000))
    verdicts = itertools.cycle(VERDICT_COLOURS)
    named = [{"title": title, "parameters": size, "verdict": next(verdicts)} for title, size in rows]
    return pd.DataFrame([{**row, "difference": 0.01, **_ends(0.01)} for row in named])


def _factorial(titles: tuple[str, ...]) -> pd.DataFrame:
    effects = [*titles, *(f"{one} × {other}" for one, other in itertools.combinations(titles, 2))]
    kinds = {name: "main effect" if name in titles else "interaction" for name in effects}
    rows = [
        {"model": model, "name": name, "kind": kinds[name], "effect": -0.01, "verdict": "lowers", **_ends(-0.01)}
        for model in ("w48", "tiny")
        for name in effects
    ]
    return pd.DataFrame(rows)


def _doses(titles: tuple[str, ...]) -> pd.DataFrame:
    named = dict(zip(("grpo", "dapo", "delta"), titles, strict=True))
    rows = [{"kind": "", "dose": "none", "method": "dapo", "title": named["dapo"], "average": 0.8, **_ends(0.8)}]
    for kind, doses in {"stale": "1 4 16", "noise": "0.001 0.01", "temperature of the sampler": "0.5 1.5"}.items():
        rows += [
            {"kind": kind, "dose": dose, "method": method, "title": title, "average": 0.7, **_ends(0.7)}
            for dose in doses.split()
            for method, title in named.items()
        ]
    return pd.DataFrame(rows).assign(verdict="worse")


@pytest.mark.parametrize("titles", TITLES)
def test_no_text_is_cut_or_overlaps(synthetic_study: Study, titles: str, tmp_path: Path) -> None:
    found = {}
    for name, draw in _drawings(synthetic_study, TITLES[titles]).items():
        with printed_faults() as faults:
            save_for_papers(draw, tmp_path / f"{name}.pdf", 3.3 if name.endswith("_column") else 6.8)
        found |= {name: faults} if faults else {}
    assert found == {}


def test_names_of_many_methods_are_whole(synthetic_study: Study, tmp_path: Path) -> None:
    results = synthetic_study.read()
    one = next(run for run in results.runs if run.method == "grpo")
    copies = [one.model_copy(update={"method": f"m{number}", "title": f"{LONG} {number}"}) for number in range(15)]
    alike = {key: row for key, row in results.comparisons.items() if key[1] == "grpo"}
    comparisons = {(key[0], copy.method, *key[2:]): row for copy in copies for key, row in alike.items()}
    comparisons |= results.comparisons
    many = dataclasses.replace(results, runs=(*results.runs, *copies), comparisons=comparisons)
    with printed_faults() as faults:
        for draw in (draw_scores, draw_differences):
            save_for_papers(partial(draw, many), tmp_path / "page.pdf", PAGE_WIDTH)
            save_for_papers(partial(draw, many, mean_only=True), tmp_path / "column.pdf", COLUMN_WIDTH)
    assert faults == []


def test_the_margin_is_shaded_and_named_where_a_study_has_one(synthetic_study: Study) -> None:
    drawings = _drawings(synthetic_study, TITLES["usual"])
    for name in ("differences", "differences_column"):
        figure = drawings[name]()
        (legend,) = figure.legends
        assert "margin of equivalence, 2 points" in [text.get_text() for text in legend.get_texts()]
        (shaded,) = [patch for axes in figure.axes for patch in axes.patches]
        box = shaded.get_extents().transformed(figure.axes[0].transData.inverted())
        assert (box.x0, box.x1) == pytest.approx((-2.0, 2.0))


def test_what_is_cut_or_overlaps_is_found(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 2))
    for x, y, words in ((0.5, 0.5, "one"), (0.52, 0.52, "other"), (0.95, 0.1, "beyond the page")):
        figure.text(x, y, words)
    figure.text(0.1, 0.1, "alone")
    with printed_faults() as faults:
        figure.savefig(tmp_path / "x.pdf", format="pdf")
    assert [fault.split(" at ")[0] for fault in faults] == ["cut: 'beyond the page'", "overlap: 'one' and 'other'"]
