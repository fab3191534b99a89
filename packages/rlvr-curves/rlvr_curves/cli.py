"""The command ``rlvr-bench curves``."""

from rlvr.cli.command import Commands

commands = Commands()
commands.call("curves", "rlvr_curves.page:write_curves", ["runs"])
