"""Decoding with a base and a trained model together."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

from typer import Option

from evals.core.config.named_study import Criterion
from evals.core.errors import UserError
from evals.generation.settings import EvaluationSettings
from rlvr.cli.command import Commands
from rlvr.cli.options import OtherBenchmarks, ProblemDirectory, read_others

commands = Commands()
decode = Commands(
    help="Decode with a base and a trained model together. Both read the same tokens, in step; one drives, and where "
    "the criterion fires its token is drawn again: from the other model (replacement), or from the trained model "
    "pushed along the direction of its training (extrapolation). See docs/decoding.md."
)
commands.add_typer(decode, name="decode")


@decode.add("sample")
def sample(
    base: Path,
    trained: Path,
    problems: ProblemDirectory,
    settings: EvaluationSettings,
    out: Path,
    mode: Annotated[Literal["replacement", "extrapolation"] | None, Option(help="what is drawn where it fires")] = None,
    driver: Annotated[Literal["base", "trained"], Option(help="whose tokens are kept otherwise")] = "base",
    criterion: Annotated[
        Criterion,
        Option(
            help="log_prob_difference fires at or below tau, random with probability tau, the others at or above it"
        ),
    ] = "log_prob_difference",
    tau: Annotated[float | None, Option(help="threshold in nats; write --tau=-0.3, --tau=-inf")] = None,
    gamma: Annotated[float, Option(help="how far extrapolation goes beyond the trained model")] = 0.0,
    chosen: Annotated[Path | None, Option(help="instead of all these: what `decode choose` wrote")] = None,
    scheme: Annotated[
        Literal["replacement", "extrapolation_base", "extrapolation_trained"] | None, Option(help="of --chosen")
    ] = None,
    others: OtherBenchmarks = "{}",
) -> None:
    """Sample in one way of decoding: write samples.jsonl and its manifest."""
    settings.choose_code_paths()
    from evals.core.single_writer import single_writer
    from evals.decoding.choose import chosen_decoding
    from evals.decoding.pair import identities, pair_draw, read_pair
    from evals.decoding.settings import Decoding
    from evals.generation.evaluate import sample_benchmark

    if chosen is not None:
        if scheme is None or mode is not None:
            raise UserError("--chosen: takes --scheme, and neither --mode nor what belongs to it")
        decoding = chosen_decoding(chosen, scheme, trained.name)
    elif mode is None or tau is None:
        raise UserError("--mode, --tau: are needed; accepted: both of them, or --chosen and --scheme")
    else:
        content = {"mode": mode, "driver": driver, "criterion": criterion, "tau": tau, "gamma": gamma}
        decoding = Decoding.parse(content, "")
    pair = read_pair(base, trained, settings.dtype)
    with single_writer(out / ".writer", "samples into this directory"):
        draws = partial(pair_draw, decoding, settings.sampling)
        parameters = {**identities(pair), "decoding": decoding.to_json()}
        sample_benchmark(pair, problems, settings, out, others=read_others(others), draws=draws, parameters=parameters)


@decode.add("sweep")
def sweep(
    base: Path,
    trained: Path,
    problems: ProblemDirectory,
    settings: EvaluationSettings,
    criteria: Annotated[list[str], Option(help=f"of replacement, out of {', '.join(get_args(Criterion))}")],
    fractions: Annotated[list[float], Option(help="of tokens beyond the thresholds")],
    out: Annotated[Path, Option(help="directory; its name is the run's in what follows")],
    extrapolation_fractions: Annotated[list[float], Option(help="the same in extrapolation")] = [],
    gammas: Annotated[list[float], Option(help="of extrapolation")] = [],
    kind: Annotated[Literal["completion", "choice"], Option(help="how answers are read")] = "completion",
    grading_workers: int = 1,
) -> None:
    """Sample and grade many ways of decoding: sweep.json; rerun to resume."""
    settings.choose_code_paths()
    from evals.core.single_writer import single_writer
    from evals.decoding.pair import read_pair
    from evals.decoding.settings import Grid
    from evals.decoding.sweep import sample_grid
    from evals.grading.pool import GradingPool
    from evals.grading.verdict import Kind

    own = {"extrapolation_fractions": extrapolation_fractions, "gammas": gammas}
    grid = Grid.parse({"criteria": criteria, "fractions": fractions, **own}, "")
    pair = read_pair(base, trained, settings.dtype)
    with single_writer(out / ".writer", "sweeps into this directory"), GradingPool(grading_workers) as pool:
        sample_grid(pair, problems, settings, grid, Kind(kind), pool, out)


decode.call("choose", "evals.decoding.choose:write_choice", options={"paths": "sweeps"})
