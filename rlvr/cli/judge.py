"""The verdict on a loss, or another component, of the user's."""

import sys
import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from evals.core.errors import UserError
from rlvr.cli.command import Commands

commands = Commands()


@commands.add("judge")
def judge(
    file: Annotated[Path, Argument(help="Python with a class that has @component(NAME) (docs/your_method.md)")],
    name: Annotated[
        str | None, Option(help="name of the component, if the file has several", show_default=False)
    ] = None,
    against: Annotated[str, Option(help="method of the catalogue, or another FILE.py")] = "dapo",
    study: Annotated[
        Path | None,
        Option(
            help="study that gives model, problems and training settings; default: config/config.yaml",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        Option(help="a pretrained model instead: OWNER/NAME on the Hub, or a directory", show_default=False),
    ] = None,
    gpus: Annotated[int, Option(help="with --model: number of GPUs to use; 0: the CPU", min=0)] = 1,
    margin: Annotated[float, Option(help="margin of equivalence, in percentage points")] = 2.0,
    seeds: Annotated[int, Option(help="largest number of seeds", min=2)] = 15,
    minutes: Annotated[
        float, Option(help="time budget; no further round of seeds is started if it would not finish in time", min=0)
    ] = 20,
    out: Annotated[Path, Option(help="directory of all results; another file judged there shares its runs")] = Path(
        "judge"
    ),
    cores: Annotated[
        int | None, Option(help="number of cores for all jobs together; default: all", min=1, show_default=False)
    ] = None,
    go_on: Annotated[
        bool, Option("--go-on", help="train even if a check fails, or if no difference can be found")
    ] = False,
    checks_only: Annotated[bool, Option("--checks-only", help="end after the checks, which take seconds")] = False,
) -> None:
    """Judge a loss, or another component, of your own against a method: from one file to a page.

    First checks that take seconds, then the angle between the updates on one seed, then seeds until the comparison is
    better, worse or equivalent, or the budget ends. The file is imported and trained with in processes of yours,
    outside any sandbox. The same command goes on with a judgement that was interrupted.
    """
    from rlvr.study.judge import Judgement, contrast_words, find_component, read_base, verdict_line

    started = time.monotonic()
    component = find_component(file, name)
    reference = find_component(Path(against)) if against.endswith(".py") else against
    base = read_base(study, model, gpus, out)
    judgement = Judgement(component, base, reference, out.resolve(), margin, seeds, minutes, cores)
    judgement.check()
    print(f"{file}: {component.kind.replace('_', ' ')} {component.name}, against {judgement.reference}")
    if not judgement.passes_checks() and not go_on:
        raise UserError(f"{file}: a check fails, as said above; mend it, or go on with --go-on")
    if checks_only:
        return
    contrast = judgement.contrast()
    print(contrast_words(contrast, judgement.reference), flush=True)
    if contrast is not None and contrast.is_absent and not go_on:
        print("ended before the seeds; --go-on trains them all the same")
        return
    rows = judgement.decide(started)
    if not rows[judgement.harmful].is_harm:
        print(f"control: {judgement.harmful} was not found worse, so differences may be overlooked here")
    minutes_taken = (time.monotonic() - started) / 60
    print(verdict_line(rows[judgement.component.name], judgement.main_table(), minutes_taken))
    print(judgement.directory / "report.html")
    sys.stdout.flush()
