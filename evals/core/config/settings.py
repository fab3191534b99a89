"""The base of all configuration records."""

from collections.abc import Iterable
from typing import Any

from evals.core.errors import NotAccepted
from evals.core.record import Record


class Settings(Record):
    """A mapping of a configuration file."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object as the file has it, without the keys that it leaves out."""
        return self.model_dump(mode="json", exclude_unset=True)


def require(settings: Settings, keys: Iterable[str], key: str = "") -> None:
    """Check that ``settings``, which stand under ``key``, have ``keys``; null leaves one out."""
    stated = {name for name in settings.model_fields_set if getattr(settings, name) is not None}
    if lacking := [name for name in keys if name not in stated]:
        raise NotAccepted(f"lacks {', '.join(lacking)}", key=key)
