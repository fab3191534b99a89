"""The small random checkpoint of the generation tests."""

from tests.unit.generation.conftest import checkpoint

__all__ = ["checkpoint"]
