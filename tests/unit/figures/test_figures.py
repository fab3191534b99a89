import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from evals.core.comparisons import Comparison, Look
from evals.core.manifest import verify_outputs
from evals.core.records import ALL_BENCHMARKS, Run
from evals.figures.results import draw_differences, draw_scores, write_scores_figure
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
from tests.unit.synthetic_results import METHODS, Study

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def results(synthetic_study: Study) -> Results:
    return synthetic_study.read()


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
