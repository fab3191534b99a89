"""The defaults that identities leave out: whoever changes one changes results that look current.

Then raise the version of what computes with it (docs/architecture.md, "Runs, versions and state"), and write the list
anew: ``python -m tests.unit.study.test_defaults > tests/unit/study/defaults.json``.
"""

import json
from pathlib import Path
from typing import Any

from evals.core.record import Record
from evals.core.run_spec import LocalRun, VerlRun
from evals.core.training_settings import EarlyStop, LocalTraining, Lora, SamplerDose, VerlTraining
from rlvr.methods.components import components, defaults

LIST = Path(__file__).with_name("defaults.json")
RECORDS: tuple[type[Record], ...] = (LocalRun, VerlRun, LocalTraining, VerlTraining, Lora, EarlyStop, SamplerDose)


def current_defaults() -> dict[str, Any]:
    fields = {record.__name__: record.model_fields for record in RECORDS}
    of_records = {
        f"{name}.{key}": field.default
        for name, own in fields.items()
        for key, field in own.items()
        if not field.is_required()
    }
    return of_records | {
        f"{kind} {name}.{key}": value
        for kind, of_kind in components().items()
        for name, component in of_kind.items()
        for key, value in defaults(component).items()
    }


def test_a_changed_default_is_noticed() -> None:
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    current = json.loads(json.dumps(current_defaults()))
    assert {key: current.get(key, "gone") for key in listed} == listed, __doc__
    assert current.keys() == listed.keys(), __doc__


if __name__ == "__main__":
    print(json.dumps(current_defaults(), indent=1))
