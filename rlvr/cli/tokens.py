"""Pages of token tables."""

from rlvr.cli.command import Commands

commands = Commands()
tokens = Commands(help="Pages of what training does to each token.")
commands.add_typer(tokens, name="tokens")
tokens.call("show", "rlvr.tokens.view:write_page", ["table"], {"problems": "problem", "count": "groups"})
