"""``python -m rlvr.diagnostics COMMAND``: look inside runs, token by token."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.core.errors import UserError
from rlvr.diagnostics.phenomena.catalogue import CLAIMS, OF_CHECKPOINTS


def _tokens(arguments: argparse.Namespace) -> None:
    import torch

    from rlvr.diagnostics.replay import write_token_table

    torch.set_num_threads(arguments.threads)
    write_token_table(arguments.run_file, arguments.out, arguments.steps, arguments.device, arguments.grading_workers)


def _probe(arguments: argparse.Namespace) -> None:
    import torch

    from rlvr.diagnostics.displacements import write_displacements

    torch.set_num_threads(arguments.threads)
    write_displacements(arguments.table, arguments.steps)


def _compare(arguments: argparse.Namespace) -> None:
    import torch

    from rlvr.diagnostics.compare import compare_checkpoints

    torch.set_num_threads(arguments.threads)
    compare_checkpoints(
        arguments.base,
        arguments.trained,
        arguments.problems,
        arguments.prompt,
        arguments.samples,
        arguments.out,
        arguments.temperature,
        arguments.device,
        arguments.batch_size,
        arguments.top,
        arguments.prompt_form,
        arguments.grades,
    )


def _show(arguments: argparse.Namespace) -> None:
    from rlvr.diagnostics.viewer import read_texts, write_page

    texts = read_texts(arguments.problem_texts) if arguments.problem_texts else {}
    write_page(
        arguments.table, arguments.step, arguments.problem, arguments.groups, arguments.responses, texts, arguments.out
    )


def _phenomenon(arguments: argparse.Namespace) -> None:
    import torch

    from evals.figures.style import ENDINGS, house_style, save
    from evals.tables.manifests import write_output_manifest
    from rlvr.diagnostics.phenomena.catalogue import phenomenon, phenomenon_of_checkpoints
    from rlvr.diagnostics.phenomena.sources import Sources

    torch.set_num_threads(arguments.threads)
    sources = Sources(
        tables=arguments.tables,
        contrast_tables=arguments.contrast_tables,
        steps=arguments.steps,
        results=arguments.results,
        runs=arguments.runs,
        benchmarks=arguments.benchmarks,
        comparison=arguments.comparison,
        base_comparison=arguments.base_comparison,
    )
    _check_comparison(arguments)
    claim = (phenomenon_of_checkpoints if arguments.comparison else phenomenon)(arguments.claim)
    findings = claim.find(sources)
    findings.write(arguments.out)
    with house_style():
        save(claim.draw(findings), arguments.figure)
    write_output_manifest("findings", arguments.out, (".json", ".parquet"), sources.files(), {"claim": arguments.claim})
    written = arguments.out.with_name(f"{arguments.out.name}.parquet")
    write_output_manifest("figure", arguments.figure, ENDINGS, [written], {"figure": arguments.claim})


def _check_comparison(arguments: argparse.Namespace) -> None:
    """Options of replayed runs say nothing about two checkpoints, and the other way round."""
    of_runs = ("contrast_tables", "steps", "runs", "benchmarks")
    for name in of_runs if arguments.comparison else ():
        if getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')}: is of replayed runs; accepted: with --tables")
    if arguments.base_comparison and not (arguments.comparison and arguments.claim == "update_direction"):
        raise UserError("--base-comparison: accepted: with update_direction and --comparison")


def _table(arguments: argparse.Namespace) -> None:
    from rlvr.diagnostics.phenomena.table import write_table

    findings = {path.stem: path for path in arguments.findings}
    write_table(findings, arguments.figures, arguments.note, arguments.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m rlvr.diagnostics", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    tokens = commands.add_parser(
        "tokens", help="replay a finished run and write its token table, and the policy before each step wanted"
    )
    tokens.add_argument("run_file", type=Path, help="run.json of a finished run")
    tokens.add_argument("--steps", type=int, nargs="+", required=True, help="rollout steps, from 1")
    tokens.add_argument("--out", type=Path, required=True, help="directory for tokens.parquet and moments/")
    tokens.add_argument("--threads", type=int, required=True, help="the run's own, for the same rounding")
    tokens.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    tokens.add_argument("--grading-workers", type=int, default=1)
    tokens.set_defaults(run=_tokens)
    probe = commands.add_parser(
        "probe", help="what null, joint, one-sided and head-only updates would do to each token of a table"
    )
    probe.add_argument("table", type=Path, help="directory made by `tokens`, which also takes the result")
    probe.add_argument("--steps", type=int, nargs="+", help="of the steps kept; default: all")
    probe.add_argument("--threads", type=int, default=1)
    probe.set_defaults(run=_probe)
    compare = commands.add_parser(
        "compare", help="what training did to each token of a sample file: any two Hugging Face checkpoints"
    )
    compare.add_argument("--base", type=Path, required=True, help="checkpoint directory, before training")
    compare.add_argument("--trained", type=Path, required=True, help="checkpoint directory, after it")
    compare.add_argument("--problems", type=Path, required=True, help="problems.jsonl with id and problem")
    compare.add_argument("--samples", type=Path, required=True, help="samples.jsonl, as evals.generation writes it")
    compare.add_argument(
        "--grades", type=Path, help="grades.jsonl of these samples, as evals.grading writes it: adds rewards"
    )
    compare.add_argument("--prompt", required=True, help="template with {problem} in it")
    compare.add_argument("--prompt-form", choices=("base", "chat"), default="base", help="plain text, or chat template")
    compare.add_argument("--temperature", type=float, default=1.0)
    compare.add_argument("--batch-size", type=int, default=16, help="responses in one forward pass")
    compare.add_argument(
        "--top",
        type=int,
        metavar="M",
        help="entropies and KL over each model's M likeliest tokens and one remainder: less memory and time; the error "
        "on the first batch is reported (default: the whole vocabulary)",
    )
    compare.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    compare.add_argument("--threads", type=int, default=1)
    compare.add_argument("--out", type=Path, required=True, help="directory for tokens.parquet; resumable")
    compare.set_defaults(run=_compare)
    show = commands.add_parser("show", help="a token table as text: a page with problems' responses in colour")
    show.add_argument("table", type=Path, help="directory made by `tokens` or `compare`")
    show.add_argument("--step", type=int, help="one of the steps kept; a comparison has none")
    show.add_argument(
        "--problem", nargs="+", default=[], help="ids; default: the first ones with right and wrong responses"
    )
    show.add_argument("--groups", type=int, default=3, help="how many problems, where none is named")
    show.add_argument("--responses", type=int, help="of a comparison: the first so many of each problem; default: all")
    show.add_argument("--problem-texts", type=Path, help="problems.jsonl, to show what was asked")
    show.add_argument("--out", type=Path, required=True, help="the HTML file")
    show.set_defaults(run=_show)
    claim = commands.add_parser("phenomenon", help="measure one of the papers' claims, and draw it")
    claim.add_argument("claim", choices=CLAIMS)
    looked_at = claim.add_mutually_exclusive_group(required=True)
    looked_at.add_argument("--tables", type=Path, nargs="+", default=[], help="directories made by `tokens`")
    looked_at.add_argument(
        "--comparison",
        type=Path,
        metavar="DIR",
        help=f"directory made by `compare`, of any two checkpoints: for {' and '.join(OF_CHECKPOINTS)}",
    )
    claim.add_argument(
        "--base-comparison",
        type=Path,
        metavar="DIR",
        help="the same checkpoints compared on the base model's samples, --comparison on the trained one's: adds what "
        "tells the two apart (update_direction)",
    )
    claim.add_argument("--contrast-tables", type=Path, nargs="*", default=[], help="the same, of runs of DelTA")
    claim.add_argument("--steps", type=int, nargs="+", help="of the steps kept; default: all")
    claim.add_argument("--results", type=Path, default=Path("results"), help="where runs, samples and grades lie")
    claim.add_argument("--runs", nargs="*", default=[], help="further runs, whose metrics are read")
    claim.add_argument("--benchmarks", nargs="*", default=[], help="benchmarks that evaluation is looked at on")
    claim.add_argument("--threads", type=int, default=1)
    claim.add_argument("--out", type=Path, required=True, help="path of the findings without their ending")
    claim.add_argument("--figure", type=Path, required=True, help="path of the figure without its ending")
    claim.set_defaults(run=_phenomenon)
    table = commands.add_parser("table", help="the table of all claims, from their findings")
    table.add_argument("--findings", type=Path, nargs="+", required=True, help="results/phenomena/*.json, in order")
    table.add_argument("--figures", required=True, help="where the figures lie, relative to the table")
    table.add_argument("--note", nargs="*", default=[], help="sentences on what the numbers are evidence of")
    table.add_argument("--out", type=Path, required=True, help="path of the table without its ending")
    table.set_defaults(run=_table)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
