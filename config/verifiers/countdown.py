"""The verifier of problems of family countdown: an expression of all the given digits, worked from left to right."""

import re

EXPRESSION, STEP = re.compile(r"[2-9](?:[+*-][2-9]){1,15}"), re.compile(r"([+*-])([2-9])")


def verify(problem, response):
    """1 if the last box has an expression that uses each given digit once and makes the target."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", response)
    if not boxes or not EXPRESSION.fullmatch(boxes[-1]):
        return 0
    target, *digits = re.findall(r"\d+", problem["problem"])
    value, steps = int(boxes[-1][0]), STEP.findall(boxes[-1])
    for operator, digit in steps:
        value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[operator]
    return int(value == int(target) and sorted([boxes[-1][0], *(digit for _, digit in steps)]) == sorted(digits))
