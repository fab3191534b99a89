"""All commands, in the order of the help."""

from rlvr.cli import decode, diagnose, evaluate, stages, stages_report, study, training
from rlvr.cli.command import Commands

commands = Commands(help="Compare RLVR training algorithms, and look at what they did.")
for module in (evaluate, study, training, diagnose, decode):
    commands.add_typer(module.commands)
stage = Commands(help="The steps of a study, as the workflow runs them.")
for module in (stages, stages_report):
    stage.add_typer(module.commands)
commands.add_typer(stage, name="stage")
