"""The verifier of problems of family program: the response is a program, and is run with each digit as its input."""

import re

# Assignments of single letters and digits with three operators, then the variable in a box: this text can be run.
PROGRAM = re.compile(r"((?:[a-p]=[a-p0-9](?:[+*-][a-p0-9]){0,7}\n)*)\\boxed\{([a-p])\}")


def verify(problem, response):
    """1 if the program gives the answer's ten digits for the inputs 0 to 9; one that cannot be run is wrong."""
    program = PROGRAM.fullmatch(response.strip())
    if program is None:
        return 0
    lines, result = program.groups()
    for value, wanted in enumerate(problem["answer"]):
        variables = {"a": value}
        try:
            exec(lines, {}, variables)
            if variables[result] % 10 != int(wanted):
                return 0
        except (NameError, KeyError):
            return 0
    return 1
