"""The main table, with a row for each method, its uncertainty and its cost; and what is said below it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from evals.core import arithmetic
from evals.core.comparisons import Comparison, Look, Verdict
from evals.core.errors import counted
from evals.core.files import read_json
from evals.core.manifest import read_any_manifest
from evals.core.records import ALL_BENCHMARKS, BASE, Condition
from evals.results import Results, read_results
from evals.statistics.difference import Average
from evals.tables import layout, numbers
from evals.tables.costs import Cost, condition_cost, cost_files
from evals.tables.families import signal_note
from evals.tables.layout import METHOD, Column, Row, Table, field_of, interval_columns, make_table
from evals.tables.robust import falls_note, falls_of

Costs = Mapping[Condition, Cost]
_ANGLES = ("degrees", "floor_degrees", "slope_degrees")
_COMPARED = ("difference", "standard_error", "p_value", "p_value_holm", "minimum_detectable_effect", "verdict")
_STOPPED = ("falls_p_value", "falls_p_value_holm", "falls", "median_unbiased", "undecided")


def responses_of(benchmark: str, condition: Condition) -> str:
    """The address of a method's responses to a benchmark."""
    return layout.responses_page(benchmark, column=f"{condition.model}-{condition.method}")


def main_columns(
    results: Results, costs: Costs, decoded: Mapping[str, Results] = MappingProxyType({})
) -> list[Column[Condition]]:
    """The columns of the main table over all benchmarks, and of main.csv, which has every benchmark too.

    ``decoded`` are the results by further decodings, by their names.
    """
    *compared, verdict = compared_columns(results)
    falls = {} if results.fallen is None else falls_of(results)
    # A mean over several leads to these, below it on the page.
    several = len(results.benchmarks) > 1

    def cost(header: str, name: str, text: Callable[[Any], str]) -> Column[Condition]:
        return Column(header, lambda row: getattr(costs[row], name), text, name)

    return [
        *METHOD,
        Column("", lambda row: " ".join(map(str, row.seeds)), csv="seeds"),
        Column("", lambda row: " ".join(run.run for run in row.runs), csv="runs"),
        Column("", lambda row: results.k, csv="samples_per_problem"),
        Column("", lambda row: results.confidence, csv="confidence"),
        Column(
            f"avg@{results.k} (%)",
            lambda row: row,
            lambda row: average_text(results.average(row)),
            partial(_average_cells, results),
            (lambda row: "#benchmarks") if several else partial(responses_of, results.benchmarks[0]),
        ),
        *_pass_at_k(results),
        *(_decoded_column(name, by_name) for name, by_name in decoded.items()),
        Column("Fell", falls.get, lambda fallen: fallen.text if fallen else numbers.NOTHING),
        Column("Gain over base (pp)", lambda row: results.comparison(row, BASE), difference_text),
        Column("", lambda row: row, csv=partial(_comparison_cells, results)),
        *compared,
        Column(
            "Contrast (°)",
            results.contrast,
            lambda contrast: numbers.decimal(getattr(contrast, "degrees", None)),
            lambda contrast: {f"contrast_{name}": getattr(contrast, name, None) for name in _ANGLES},
        ),
        verdict,
        Column("Seeds", lambda row: len(row.seeds) or numbers.NOTHING),
        cost("Tokens", "tokens_generated", numbers.count),
        cost("Updates", "optimizer_steps", numbers.whole),
        cost("Train (s)", "training_seconds", numbers.seconds),
        cost("CPU (s)", "training_cpu_seconds", numbers.seconds),
        cost("Eval (s)", "evaluation_seconds", numbers.seconds),
        cost("Memory (MiB)", "peak_memory_mebibytes", numbers.whole),
        Column("", falls.get, csv=lambda fallen: {"fell": len(fallen.runs) if fallen else None}),
    ]


def _pass_at_k(results: Results) -> list[Column[Condition]]:
    """The column of the chance that one of k responses is right, where there are several and methods."""
    name, names = f"pass@{results.k}", results.benchmarks
    if not results.has_methods or (value := results.by_problem(name)) is None:
        return []
    average = partial(results.average_over, names=names, of_problem=value)
    return [Column(f"{name} (%)", lambda row: average(row).value, numbers.percent, name.replace("@", "_at_"))]


def _decoded_column(name: str, results: Results) -> Column[Condition]:
    """The column of the scores by a further decoding; the CSV has their comparison with the reference method, too."""

    def average(condition: Condition) -> float:
        same = results.condition(condition.method, condition.model)
        assert same is not None, "further decodings have every method"
        return results.average(same).value

    def cells(condition: Condition) -> dict[str, Any]:
        compared = results.comparison(condition, results.reference_method)
        values = {key: getattr(compared, key, None) for key in ("difference", "p_value_holm", "verdict")}
        values |= interval_columns(compared.confidence_interval if compared else None, "")
        return {f"{name}_average": average(condition)} | {f"{name}_{key}": value for key, value in values.items()}

    return Column(f"{name.capitalize()} (%)", lambda row: row, lambda row: numbers.percent(average(row)), cells)


def decodings_note(results: Results, decoded: Mapping[str, Results]) -> str:
    """Say for each further decoding on which methods its verdict differs in sign, or in being one."""
    sentences = []
    for name, others in decoded.items():
        differing, agreeing = list[str](), 0
        for row in results.conditions:
            ours, theirs = (each.comparison(row, results.reference_method) for each in (results, others))
            if ours and theirs and _sign(ours) != _sign(theirs):
                words = f"{difference_text(theirs)}, {theirs.verdict.value}; here {ours.verdict.value}"
                differing.append(f"{row.title} ({words})")
            else:
                agreeing += bool(ours and theirs)
        same = f"the other {agreeing}" if differing else f"all {agreeing}"
        said = [*differing, f"{same} agree in sign and significance" if agreeing else "none agrees"]
        if differing or agreeing:
            sentences.append(f"{name.capitalize()} beside these verdicts: {'; '.join(said)}.")
    return " ".join(sentences)


def _sign(comparison: Comparison) -> tuple[bool, bool]:
    return comparison.verdict.is_difference, comparison.is_harm


def _average_cells(results: Results, condition: Condition) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name in (ALL_BENCHMARKS, *results.benchmarks):
        average = results.average(condition, name)
        cells |= {f"{name}_avg_at_{results.k}": average.value, f"{name}_standard_error": average.standard_error}
        cells |= interval_columns(average.confidence_interval, f"{name}_")
    return cells


def _comparison_cells(results: Results, condition: Condition) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for against in (results.reference_method, BASE):
        for name in (ALL_BENCHMARKS, *results.benchmarks):
            comparison, prefix = results.comparison(condition, against, name), f"{name}_versus_{against}_"
            is_decisive = (against, name) == (results.reference_method, ALL_BENCHMARKS)
            keys = (*_COMPARED, *_STOPPED) if is_decisive else _COMPARED
            cells |= {f"{prefix}{key}": getattr(comparison, key, None) for key in keys}
            cells |= interval_columns(comparison.confidence_interval if comparison else None, prefix)
    return cells


def compared_columns(results: Results) -> list[Column[Condition]]:
    """The columns of the comparison with the reference method: difference, p-values, MDE, verdict."""
    reference = results.reference_title

    versus = partial(results.comparison, against=results.reference_method)
    return [
        *tested_columns(f"Versus {reference} (pp)", versus),
        Column(f"Verdict versus {reference}", lambda row: results.verdict(row) or numbers.NOTHING),
    ]


def tested_columns(header: str, tested: Callable[[Row], Any]) -> list[Column[Row]]:
    """The columns of a row's comparison, or of another tested difference: with its interval, p-values, MDE."""
    return [
        Column(header, tested, difference_text),
        Column("p", field_of(tested, "p_value"), numbers.p_value),
        Column("p (Holm)", field_of(tested, "p_value_holm"), numbers.p_value),
        Column("MDE (pp)", field_of(tested, "minimum_detectable_effect"), numbers.percent),
    ]


def average_text(average: Average) -> str:
    """An average in per cent, with its interval."""
    return numbers.percent_with_interval(average.value, average.confidence_interval)


def difference_text(comparison: Comparison | None) -> str:
    """A difference in percentage points, with its interval."""
    if comparison is None:
        return numbers.NOTHING
    return numbers.points_with_interval(comparison.difference, comparison.confidence_interval)


def corrected_note(results: Results) -> str:
    """Say how p-values and verdicts are corrected for the number of methods."""
    if results.looks:
        return (
            "Methods were looked at several times and trained until their verdict was certain (the table of "
            "decisions). Brackets beside the reference are those of one comparison and hold at every look; the "
            "reference counts with all of its seeds, those after the method's last look too. p is that of one look and "
            "decides nothing. MDE: the smallest true difference that this study, with its looks, finds in 80 % of "
            "repetitions; a smaller one may end as equivalent or as not decided."
        )
    against, title = results.drawn_against
    compared = [results.comparison(row, against) for row in results.conditions]
    return (
        f"p and brackets are those of one comparison. p (Holm) is corrected over the study's comparisons with {title} "
        f"({sum(row is not None and row.p_value is not None for row in compared)}), and verdicts follow it: brackets "
        'without 0 may stand beside "not distinguishable". MDE: the smallest true difference that one comparison finds '
        "in 80 % of studies, before Holm."
    )


def controls_note(results: Results) -> str:
    """Say for each model whether this run of the study found its controls to be what they are known to be.

    Empty without controls.
    """
    sentences = []
    for model in dict.fromkeys(run.model for run in results.runs if results.controls):
        rows = {kind: results.condition(method or "", model) for kind, method in dict(results.controls or {}).items()}
        known = {kind: (row, results.comparison(row, results.reference_method)) for kind, row in rows.items() if row}
        found = {kind: (row, compared) for kind, (row, compared) in known.items() if compared}
        if not found:
            continue
        (harmful, of_harmful), (neutral, of_neutral) = found["positive"], found["negative"]
        saw, flagged = of_harmful.is_harm, of_neutral.verdict.is_difference or of_neutral.falls is not None
        sentence = (
            f"{'saw' if saw else 'DID NOT SEE'} the harm of {harmful.title} ({_in_short(of_harmful)}) and "
            f"{'FLAGGED' if flagged else 'did not flag'} {neutral.title}, which changes nothing "
            f"({_in_short(of_neutral)}){'; its other verdicts are in doubt' if flagged or not saw else ''}"
        )
        if "random_rewards" in found:
            row, compared = found["random_rewards"]
            gain, is_worse = results.comparison(row, BASE), compared.is_harm
            gained = "" if gain is None else f" gained {numbers.points(gain.difference)} pp over the base model and"
            sentence += (
                f"; {row.title}, whose rewards are drawn by chance,{gained} is {'' if is_worse else 'NOT '}worse than "
                f"{results.reference_title} ({_in_short(compared)})"
                f"{'' if is_worse else ', so that no gain here shows that rewards were learned from'}"
            )
        sentences.append(sentence)
    return f"Controls: this run of the study {'; it '.join(sentences)}." if sentences else ""


def _in_short(comparison: Comparison) -> str:
    words, p_value = f"{comparison.words}, {numbers.points(comparison.difference)} pp", comparison.p_value_holm
    return words if p_value is None else f"{words}, p after Holm {numbers.p_value(p_value)}"


def contrast_note(results: Results) -> str:
    """Say what the angles are and where their floor lies; nothing where none was measured."""
    if not results.contrasts:
        return ""
    floor = fmean(contrast.floor_degrees for contrast in results.contrasts.values())
    return (
        f"Contrast: the mean angle between a method's gradient and that of {results.reference_title} on the same "
        f"rollouts (docs/evaluation.md); {numbers.NOTHING}: not measured, as where methods differ in the rollouts that "
        f"they train on. Random token weights in the same runs have {numbers.decimal(floor)} on average: a method "
        "has no contrast with the reference if the interval of its angle over theirs begins at 1 or below and ends "
        "below 2; more seeds are then unlikely to show a difference. "
    )


def arithmetic_note(manifests: Sequence[Path], rows: Sequence[Condition]) -> list[str]:
    """Say which arithmetic the results with these manifests were computed with, and which rows mix several."""
    read = {path: read_any_manifest(path) for path in manifests}
    # A model that was imported was not computed here.
    computed = {path: manifest for path, manifest in read.items() if "source" not in manifest.parameters}
    # Threads decide how sums are rounded. Each kind of job has its own number, and all jobs of a kind have one.
    threads, of_kinds = dict[Path, str](), defaultdict[str, set[str]](set)
    for path, manifest in computed.items():
        recorded = manifest.environment.get("arithmetic") or {}  # one thread where a job computed nothing itself
        threads[path] = " and ".join(map(str, manifest.details.get("threads") or [recorded.get("threads", 1)]))
        of_kinds[manifest.kind].add(threads[path])
    labels = {
        path: arithmetic.label(manifest.environment)
        + (f", threads: {threads[path]}" if len(of_kinds[manifest.kind]) > 1 else "")
        for path, manifest in computed.items()
    }
    line = arithmetic.summary(labels.values())
    # A base model is one job, whose threads the study says; of training runs and samples one is the rule.
    named = {"training runs": of_kinds["run"], "samples": of_kinds["samples"]}
    if told := [f"{min(made)} of {name}" for name, made in named.items() if len(made) == 1 and made != {"1"}]:
        line += f" Threads: {', '.join(told)}."

    def kinds(row: Condition) -> set[str]:
        names = {run.run for run in row.runs}
        return {label for path, label in labels.items() if names.intersection(path.parts)}

    if mixed := [row.title for row in rows if len(kinds(row)) > 1]:
        line += f" Rows that mix them: {', '.join(mixed)}."
    return [line] if line else []


def early_stop_note(manifests: Sequence[Path]) -> list[str]:
    """Name the training runs with these manifests that stopped early (``training.early_stop``)."""
    stopped = []
    for path in manifests:
        manifest = read_any_manifest(path)
        training = manifest.parameters.get("training", {}) if manifest.kind == "run" else {}
        if "early_stop" in training and manifest.details["steps"] < training["steps"]:
            stopped.append(f"{path.parent.name} after {manifest.details['steps']} of {training['steps']} steps")
    return [f"Stopped early: {', '.join(stopped)}. They count as they ended."] if stopped else []


def near_copies_note(results: Results, problems: Path) -> tuple[list[str], list[Path]]:
    """Count the problems of each benchmark that are training problems but for their numbers, by files that are read."""
    paths = {name: path for name in results.benchmarks if (path := problems / name / "disjoint.json").is_file()}
    checks = {name: read_json(path) for name, path in paths.items()}
    counts = {name: (len(check.get("near_copies", {})), check["problems"]) for name, check in checks.items()}
    said = [f"{copies} of {of} problems of {name}" for name, (copies, of) in counts.items() if copies]
    note = f"Training problems but for their numbers, in disjoint.json: {', '.join(said)}."
    return [note] if said else [], [*paths.values()]


def read_costs(results: Results, costs: Path, training: Path) -> Costs:
    """Read what one seed of each method cost, from results/costs and results/runs."""
    return {row: condition_cost(row, results.benchmarks, costs, training) for row in results.conditions}


def write_main_table(
    results: Results,
    costs: Path,
    training: Path,
    notes: Sequence[str],
    out: Path,
    decodings: Sequence[str] = (),
    decoded: Sequence[Path] = (),
) -> None:
    """Write a row per method: scores, comparisons, cost; and the columns that a paper needs.

    ``decoded`` are for each of the further ``decodings`` the files of scores, and that of comparisons.
    """
    measured = read_costs(results, costs, training)
    of_each = zip(decodings, zip(*[iter(decoded)] * (len(results.benchmarks) + 1), strict=True), strict=True)
    by_name = {name: read_results(results.runs, files[:-1], files[-1]) for name, files in of_each}
    columns = main_columns(results, measured, by_name)
    made = {f"base/{run.base_model}" for run in results.runs} | {f"runs/{run.run}" for run in results.runs}
    made |= {f"samples/{run.run}/{name}" for run in results.runs for name in results.benchmarks}
    manifests = (training.parent / name / "manifest.json" for name in made)
    computed = sorted(filter(Path.is_file, manifests), key=lambda path: path.parent)
    copies, compared = near_copies_note(results, training.parent / "problems")
    said = [*notes, *copies, *early_stop_note(computed), *arithmetic_note(computed, results.conditions)]
    tables, short = main_tables(results, measured, said, by_name), short_table(results, columns)
    frame = layout.table_frame(columns, results.conditions)
    read = [file for one in (results, *by_name.values()) for file in one.sources]
    read += [file for run in results.runs for file in cost_files(run, results.benchmarks, costs, training)]
    layout.write_table(out, tables, frame, [*read, *computed, *compared], {"notes": notes}, short)


def short_table(results: Results, columns: Sequence[Column[Condition]]) -> Table:
    """Lay out the columns of the main table that a paper needs."""
    shown = ("Method", "Seeds", "avg@", "Versus ", "MDE", "Verdict")
    chosen = [column for name in shown for column in columns if column.header.startswith(name)]
    title = f"Average over {counted(len(results.benchmarks), 'benchmark')}"
    return make_table("main_short", title, chosen, results.conditions, caption=_caption(results))


def _caption(results: Results) -> str:
    said = f"Brackets: {round(100 * results.confidence)} % intervals over problems"
    if not results.has_methods:
        return f"{said}. "
    decided = "each method was trained until its verdict is certain" if results.looks else "verdicts follow p (Holm)"
    return f"{said} and seeds. MDE: the smallest true difference that is found in 80 % of repetitions; {decided}."


def main_tables(
    results: Results, costs: Costs, notes: Sequence[str], decoded: Mapping[str, Results] = MappingProxyType({})
) -> list[Table]:
    """Lay out the summary with costs, averages by benchmark, and differences to the reference and to the base model."""
    k, level = results.k, round(100 * results.confidence)
    explanation = (
        f"avg@{k}: {results.mean_text}, and over training seeds; {k} samples a problem. "
        f"Brackets: {level} % intervals over problems and seeds; differences are paired by problem. "
        f"{numbers.ONE_SAMPLE_NOTE if k == '1' else ''}{numbers.NO_INTERVAL_NOTE} "
        f"{falls_note(results)} "
        f"{corrected_note(results)} "
        f"{contrast_note(results)}"
        "Costs: of one seed, mean over seeds; Updates: optimizer steps; Train and Eval are wall time, to which other "
        "jobs of the machine add; CPU is the training's own; memory is the largest resident set of any job."
    )
    if not results.has_methods:
        explanation = (
            f"avg@{k}: {results.mean_text}; {k} samples a problem. Brackets: {level} % intervals over problems; "
            f"{numbers.NO_INTERVAL}: none is to be trusted, for a handful of problems decides. Eval is wall time, to "
            "which other jobs of the machine add; memory is the largest resident set of any job."
        )
    title = f"Main results: average over {counted(len(results.benchmarks), 'benchmark')}, and cost"
    columns = main_columns(results, costs, decoded)
    if not results.has_methods:  # then half of them have nothing to say

        def says(column: Column[Condition]) -> bool:
            return any(column.text(column.value(row)) != numbers.NOTHING for row in results.conditions)

        columns = list(filter(says, columns))
    said = [*notes, controls_note(results), decodings_note(results, decoded), signal_note(results)]
    said += [results.clusters_note, results.extraction_note, explanation]
    summary = make_table("main", title, columns, results.conditions, said, _caption(results))
    tables = [_differences(results, results.reference_method, results.reference_title)]
    tables += [_differences(results, BASE, "the base model"), by_look(results), _between_models(results)]
    return [summary, by_benchmark_table(results), *(table for table in tables if table.rows)]


def by_benchmark_table(results: Results) -> Table:
    """Lay out the average of every method on every benchmark."""

    def column(name: str) -> Column[Condition]:
        title = f"{name} (k = {results.samples[name]})" if results.k == "k" else name
        value = partial(results.average, benchmark=name)
        return Column(title, value, average_text, link=partial(responses_of, name))

    over, few = ("problems and seeds", "a single seed, or ") if results.has_methods else ("problems", "")
    note = (
        f"Brackets: {round(100 * results.confidence)} % intervals over {over} (problems are the clusters of their "
        f"{results.k} samples); {numbers.NO_INTERVAL}: {few}a handful of problems decides."
    )
    title = f"avg@{results.k} by benchmark (%)"
    columns = [*METHOD, *map(column, results.benchmarks)]
    return make_table("by_benchmark", title, columns, results.conditions, [note, results.extraction_note])


def _marked(comparison: Comparison | None) -> str:
    """A difference on one benchmark, with an asterisk if it has a verdict, and its p-value."""
    if comparison is None:
        return numbers.NOTHING
    mark = "*" if comparison.verdict.is_difference else ""
    p_value = "" if comparison.p_value_holm is None else f" ({numbers.p_value(comparison.p_value_holm)})"
    return f"{numbers.points(comparison.difference)}{mark}{p_value}"


def _differences(results: Results, against: str, against_title: str) -> Table:
    def column(name: str) -> Column[Condition]:
        return Column(name, lambda condition: results.comparison(condition, against, name), _marked)

    rows = [condition for condition in results.conditions if condition.method not in (BASE, against)]
    is_decided = results.looks and against == results.reference_method
    of_mean = "with a verdict by the decisions" if is_decided else "p after Holm over the methods"
    note = (
        f"Paired differences to {against_title} in percentage points, p in parentheses, after Holm over the "
        f"benchmarks; all: {results.mean_text}, {of_mean}. "
        "An asterisk marks a verdict of better or worse; anything else is not distinguishable at this size, or has no "
        "contrast with the reference."
    )
    columns = [*METHOD, *map(column, (*results.benchmarks, ALL_BENCHMARKS))]
    title, notes = f"Differences to {against_title} (pp)", [note, results.extraction_note]
    return make_table(f"differences_to_{against}", title, columns, rows, notes)


def by_look(results: Results) -> Table:
    """The path of every comparison over the looks; no rows in a study with one look."""
    looks = {(look.model, look.method, look.seeds): look for look in results.looks}
    rows = [row for row in results.conditions if any(key[:2] == (row.model, row.method) for key in looks)]
    level, versus = results.level or 0.05, partial(results.comparison, against=results.reference_method)

    def decision(look: Look | None) -> str:
        if look is None:
            return numbers.NOTHING
        words, distance = look.verdict or look.falls or "goes on", _distance(look, results.margin)
        words += "" if distance is None else f" by {100 * distance:.2f}"
        return f"{numbers.points_with_interval(look.difference, look.interval)} {words}"

    def at(seeds: int) -> Column[Condition]:
        return Column(f"{seeds} seeds", lambda row: looks.get((row.model, row.method, seeds)), decision)

    columns = [
        *METHOD,
        *map(at, sorted({seeds for _, _, seeds in looks})),
        Column("With all seeds of the reference", field_of(versus, "difference"), numbers.points),
        Column("Median-unbiased", field_of(versus, "median_unbiased"), numbers.points),
        Column("Undecided if repeated (%)", field_of(versus, "undecided"), numbers.percent),
    ]
    note = (
        f"Difference to {results.reference_title} in percentage points over all benchmarks. Brackets hold at every "
        f"look and for every method of the study together, with a probability of {100 - 100 * level:.3g} %; "
        "a method is decided by them: better or worse where they exclude 0, equivalent where they lie within the "
        "margin; by: the distance of the bracket's end from that border. Near 0 the next seed could have "
        "decided otherwise. A difference that ends its seeds early is on average too far from 0: the "
        "median-unbiased one is that true difference with which half of the repetitions "
        f"end above the observed one. {repeated_note(results)}"
    )
    return make_table("looks", "The decisions, look by look (pp)", columns, rows, [note, results.extraction_note])


def repeated_note(results: Results) -> str:
    """Say how near a decision was, and how often a repetition of a study that stops would decide everything.

    Nothing for other studies.
    """
    if results.all_decided is None:
        return ""
    distances = [
        (distance, look) for look in results.looks if (distance := _distance(look, results.margin)) is not None
    ]
    near = ""
    if distances:
        distance, nearest = min(distances, key=itemgetter(0))
        row = results.condition(nearest.method, nearest.model)
        by = f"by {100 * distance:.2f} points after {nearest.seeds} seeds"
        near = f"Nearest to its border was the decision on {row.title if row else nearest.method}, {by}. "
    chances = [row.undecided for row in results.comparisons.values() if row.undecided is not None]
    return (
        f"{near}A repetition with other seeds and problems, where the true differences are these, would decide all "
        f"{len(chances)} comparisons with a probability of {100 * results.all_decided:.0f} %, and leave "
        f"{sum(chances):.1f} of them not decided on average."
    )


def _distance(look: Look, margin: float | None) -> float | None:
    """The distance of a decision's interval from the border that it must not touch; None where none was taken."""
    if look.interval is None or look.verdict is None:
        return None
    low, high = look.interval
    if look.verdict is Verdict.EQUIVALENT:
        return None if margin is None else min(margin - high, low + margin)
    return max(low, -high)


def _between_models(results: Results) -> Table:
    """Every two models of a study without methods; no rows elsewhere."""
    titles = {condition.model: condition.title for condition in results.conditions}
    by_pair = {(row.model, row.against_model or "", row.benchmark): row for row in results.between_models}

    def on_benchmark(name: str) -> Column[Comparison]:
        return Column(name, lambda row: by_pair[row.model, row.against_model or "", name], _marked)

    columns: list[Column[Comparison]] = [
        Column("Model", lambda row: titles[row.model]),
        Column("Against", lambda row: titles[row.against_model or ""]),
        *map(on_benchmark, results.benchmarks),
        *tested_columns(ALL_BENCHMARKS, lambda row: row),
        Column("Model is", lambda row: row.verdict.value),
    ]
    note = (
        "Paired differences between these very models; they say nothing about how the models were trained. On a "
        "benchmark: p after Holm over the benchmarks in parentheses, and an asterisk for a verdict of better or worse. "
        f"all: {results.mean_text}, with its {round(100 * results.confidence)} % interval over problems; p (Holm) is "
        "corrected over the pairs of models, and verdicts follow it."
    )
    rows = [row for row in results.between_models if row.benchmark == ALL_BENCHMARKS]
    notes = [note, results.extraction_note]
    return make_table("between_models", "Models against each other (pp)", columns, rows, notes)
