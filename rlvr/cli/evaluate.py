"""Grading, scoring, comparing and tracing on any files in our format."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from rlvr.cli.command import Commands
from rlvr.cli.options import Grading, Paths, Printed
from rlvr.study.evaluation import Distribution, Evaluated, Machine, Prompting

commands = Commands()

Problems = Annotated[
    Paths,
    Option(help="for samples without grades: the problems with their answers; default: those their manifest names"),
]


@commands.add("grade")
def grade(
    workers: int | None = None,
    time_limit: float = 5.0,
    memory_limit: float = 2048.0,
    verifier: Annotated[
        Path | None, Option(help="a Python file of your own whose function verify grades instead, in a sandbox")
    ] = None,
) -> None:
    """Grade cases from standard input.

    A line of JSON with id, pred, gold and, if wanted, kind and truncated becomes a line with id, correct, answer,
    reason and seconds on standard output. Kinds: completion, last_statement, answer, choice (docs/grading.md). A
    verifier is given the other keys of the line, and gold as the problem's answer; its reward is printed too
    (docs/your_verifier.md).
    """
    from evals.grading.grade_file import grade_lines
    from evals.grading.pool import GradingPool

    with GradingPool(workers, time_limit, memory_limit * 1024**2, verifier) as pool:
        grade_lines(sys.stdin.buffer, sys.stdout, pool)


@commands.add("score")
def score(
    samples: Annotated[Paths, Argument(help="files or directories")],
    grading: Grading,
    printed: Printed,
    problems: Problems = [],
    k: Annotated[list[int], Option(help="pass@k, maj@k and G-Pass@k for these k; default: half of n")] = [],
    threshold: Annotated[float, Option(help="G-Pass: share of the k samples that has to be right")] = 0.5,
    confidence: float = 0.95,
    weighting: str = "benchmarks",
) -> None:
    """Score files of samples or grades: avg@k with its errors and interval, pass@k, maj@k, G-Pass@k, what went wrong.

    A path is a file of grades or samples, a directory that holds one, or a run's directory with one for each benchmark.
    Samples are graded on the way; nothing is written. A run with several benchmarks gets one more row, the mean over
    them.
    """
    from evals.scores.printed import print_scores
    from evals.statistics.suite import parse_weighting

    weights = parse_weighting(weighting)
    print_scores(samples, grading.reader(problems), k, threshold, confidence, weights, printed.form)


@commands.add("compare")
def compare(
    a: Annotated[str, Argument(help="file, directory, quoted pattern, or several separated by commas")],
    b: Annotated[str, Argument(help="what A is compared with, in the same forms")],
    grading: Grading,
    printed: Printed,
    problems: Problems = [],
    seed: int = 0,
    resamples: int = 10_000,
    permutations: int = 100_000,
    resample_samples: Annotated[
        bool, Option("--resample-samples", help="bootstrap the samples within each problem as well")
    ] = False,
    confidence: float = 0.95,
    weighting: str = "benchmarks",
) -> None:
    """Compare two checkpoints, or two methods with several seeds each, on the same problems, paired by problem.

    A and B are files or directories as score takes them. Several seeds of one method: the directories of its runs,
    separated by commas, or a quoted pattern such as 'results/grades/tiny-dapo-s*'. One seed on each side compares
    these two checkpoints; two or more on a side compare methods, whose seeds add to the uncertainty. A side with a
    single seed is then taken as a given checkpoint, as a base model is. Files belong together where they have the same
    problems; Holm runs over the benchmarks, and the row "all" is their mean.
    """
    from evals.scores.comparison import Settings
    from evals.scores.printed import print_comparison
    from evals.statistics.suite import parse_weighting

    settings = Settings(
        "B",
        confidence=confidence,
        seed=seed,
        bootstrap_resamples=resamples,
        permutations=permutations,
        resample_samples=resample_samples,
        weighting=parse_weighting(weighting),
    )
    print_comparison(a, b, grading.reader(problems), settings, printed.form)


@commands.add("families")
def families(
    studies: Annotated[Paths, Argument(help="results/ of two finished studies or more, of the same methods")],
    out: Annotated[Path, Option(help="path of the table, without the ending")] = Path("families"),
) -> None:
    """Set the same methods on several tasks or sizes side by side: a table by family, with decision accuracy.

    The first study's ranking of the methods is compared with those of the others. Nothing is trained.
    """
    from evals.tables.families import write_families_table

    write_families_table(studies, out)
    print(out.with_name(f"{out.name}.md").read_text(encoding="utf-8"))


@commands.add("power")
def power(
    grading: Grading,
    printed: Printed,
    pilot: Annotated[
        tuple[Path, Path] | None, Option(metavar="A B", help="two files to estimate the variances from")
    ] = None,
    pilot_problems: Problems = [],
    effect_sd: Annotated[
        float | None, Option(help="spread over problems of the true difference (typical: 0.15)")
    ] = None,
    sampling_variance: Annotated[
        float | None, Option(help="mean of p (1 - p) over problems, summed over both checkpoints (typical: 0.3)")
    ] = None,
    seed_sd: Annotated[float, Option(help="spread of a method's score over seeds")] = 0.0,
    seeds: Annotated[int, Option(help="training seeds of each method; 0 compares two checkpoints")] = 0,
    effect: Annotated[float | None, Option(help="true difference to detect")] = None,
    problems: Annotated[int | None, Option(help="problems of the benchmark")] = None,
    samples: Annotated[int | None, Option(help="samples of each problem")] = None,
    alpha: Annotated[float, Option(help="two-sided level")] = 0.05,
    power: Annotated[float, Option(help="chance to find the difference")] = 0.8,
) -> None:
    """Plan an evaluation: what difference could be detected, or how many problems or samples a given one needs.

    Two of --effect, --problems and --samples decide what is worked out: problems and samples give the minimum
    detectable effect; effect and samples the number of problems; effect and problems the number of samples. How
    strongly two checkpoints differ from problem to problem comes from a pilot (--pilot A B, graded samples of the same
    problems), or is given by --effect-sd and --sampling-variance. Differences are fractions of one: 0.05 is 5 points.
    """
    from evals.scores.plan import Size, make_design, print_plan

    size = Size(effect, problems, samples, alpha, power)  # checked first
    design = make_design(pilot, grading.reader(pilot_problems), effect_sd, sampling_variance, seed_sd, seeds)
    print_plan(design, size, printed.form)


@commands.add("audit")
def audit(
    samples: Annotated[Paths, Argument(help="files or directories of samples")],
    grading: Grading,
    printed: Printed,
    problems: Problems = [],
) -> None:
    """Compare our grades of any files of samples with a second grader's, plain math-verify on the whole text.

    Paths are those of score; nothing is written. Where the graders differ, the first samples are listed.
    """
    from evals.audit import second_grader
    from evals.audit.grade import SecondGrader, audit_run
    from evals.core.records import extraction_note
    from evals.grading.verdict import Kind
    from evals.scores.printed import print_rows
    from evals.tables.audit import own_audit_table

    audits, rows, stated = [], [], []
    with SecondGrader(grading.workers) as second:
        for read in grading.reader(problems).read_samples(samples):
            audits.append(audit_run(read, second))
            rows.append({"benchmark": read.benchmark, **audits[-1].to_json()})
            stated += [read.benchmark] if read.kind is Kind.LAST_STATEMENT else []
    table = own_audit_table(audits, f"{second_grader.NAME} {second_grader.VERSION}", extraction_note(stated))
    print_rows(printed.form, rows, table, "audits")


commands.call("trace", "evals.trace.commands:trace", ["files"], {"faults_only": "faults", "as_json": "json"})
commands.call("verify", "evals.trace.commands:verify", ["directory"], {"as_json": "json"})


@commands.add("eval")
def evaluate(
    evaluated: Evaluated,
    prompting: Prompting,
    distribution: Distribution,
    machine: Machine,
    printed: Printed,
    out: Annotated[Path | None, Option(help="directory of all results; default: results/eval/MODEL")] = None,
) -> None:
    """Evaluate a model on benchmarks: sample, grade and score it, and print its scores.

    All results are kept, with their manifests: samples, grades, scores, tables. The same command goes on with an
    evaluation that was interrupted, and makes only what is missing where benchmarks or samples were added. The
    configuration is written to study.json in the directory: snakemake --configfile runs it as any other study.
    """
    from evals.scores.printed import print_scores
    from rlvr.study.evaluation import configuration, evaluate

    content = configuration(evaluated, prompting, distribution, machine)
    directory = (out or Path("results/eval") / content["study"]).resolve()
    grades = evaluate(content, directory, machine.cores)
    print_scores(grades, Grading().reader([]), [], 0.5, 0.95, "benchmarks", printed.form)
    for name in content["benchmarks"]:
        print(f"responses to {name}: {directory / 'results/responses' / name / 'index.html'}", file=sys.stderr)
