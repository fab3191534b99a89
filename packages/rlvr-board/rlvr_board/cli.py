"""The commands ``rlvr-bench site``, ``submission`` and ``replay``."""

from rlvr.cli.command import Commands

commands = Commands()
commands.call("site", "rlvr_board.site:write_board", ["results"])
commands.call("submission", "rlvr_board.submission:write_submission", ["study"])
commands.call("replay", "rlvr_board.submission:replay", ["study"])
