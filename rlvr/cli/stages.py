"""Carrying out one step of a study by hand, as the workflow does."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from rlvr.cli.command import Commands

commands = Commands()


@commands.add("stage")
def stage(job: Annotated[Path, Argument(help="the job's file, such as results/jobs/runs/tiny-dapo-s1.json")]) -> None:
    """Carry out one step of a study, by the file that the workflow or `plan` wrote: settings, inputs and machine.

    It writes below the current directory, where its inputs are. `stages` lists the kinds of steps. A step that a study
    lacks is made by a file of one's own.
    """
    from rlvr.stages.stage import Stage

    step, machine = Stage.read(job)
    step.run(machine)
    step.write_note()


@commands.add("stages")
def stages() -> None:
    """List the kinds of steps, with what each writes and the keys of its file."""
    from rlvr.stages.stage import KINDS

    for kind in KINDS.values():
        summary = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
        print(f"{kind.kind}: {summary}")
        print(f"    writes {kind.outputs[0]}; keys: {', '.join(kind.model_fields)}")
