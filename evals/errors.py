"""The one exception whose message is meant for the user's eyes."""


class UserError(Exception):
    """Something the user can mend: a single line that names the file, the key and what is accepted.

    Commands print it as ``error: <message>`` without a traceback and exit with status 2.
    """
