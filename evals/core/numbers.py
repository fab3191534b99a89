"""The kinds of numbers that records hold.

A whole number that stands for a number stays one: what is stored, and fingerprints of it, tell 1 from 1.0. Numbers that
can only be a slip of the pen are refused.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator

from evals.core.errors import NotAccepted

_LARGEST_WHOLE = 2**53 - 1  # beyond it readers of JSON may round
_LARGEST = 10**15


def _unconverted(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Check a number and keep it as it is written."""
    check(value)
    return _sane(value, _LARGEST)


def _sane(value: Any, largest: float) -> Any:
    if value > largest:
        raise NotAccepted(f"is {value}", f"at most {largest}")
    return value


AS_WRITTEN = (WrapValidator(_unconverted), PlainSerializer(lambda value: value))

BOUNDED = AfterValidator(lambda value: _sane(value, _LARGEST_WHOLE))

Count = Annotated[int, Field(ge=1), BOUNDED]
Several = Annotated[int, Field(ge=2), BOUNDED]
Index = Annotated[int, Field(ge=0), BOUNDED]
Positive = Annotated[float, Field(gt=0), *AS_WRITTEN]
NotNegative = Annotated[float, Field(ge=0), *AS_WRITTEN]
Share = Annotated[float, Field(gt=0, le=1), *AS_WRITTEN]  # A part of a whole that is not nothing
InnerShare = Annotated[float, Field(gt=0, lt=1), *AS_WRITTEN]
ShareOrZero = Annotated[float, Field(ge=0, le=1), *AS_WRITTEN]
