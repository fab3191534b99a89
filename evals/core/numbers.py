"""The kinds of numbers that records hold.

A whole number that stands for a number stays one: what is stored, and fingerprints of it, tell 1 from 1.0.
"""

from typing import Annotated, Any

from pydantic import Field, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator


def _unconverted(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Check a number and keep it as it is written."""
    check(value)
    return value


AS_WRITTEN = (WrapValidator(_unconverted), PlainSerializer(lambda value: value))

Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0), *AS_WRITTEN]
NotNegative = Annotated[float, Field(ge=0), *AS_WRITTEN]
Share = Annotated[float, Field(gt=0, le=1), *AS_WRITTEN]
"""A part of a whole that is not nothing."""
InnerShare = Annotated[float, Field(gt=0, lt=1), *AS_WRITTEN]
ShareOrZero = Annotated[float, Field(ge=0, le=1), *AS_WRITTEN]
