"""A whole results directory, checked on whatever machine it lies; ``rlvr-bench verify``."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from evals.core.errors import InvalidInput, UserError
from evals.trace.chain import Chain, Maker
from evals.trace.rows import print_verdict, refuse

_NOT_RESULTS = {"state", "logs", "mlflow-artifacts", ".snakemake", ".writer"}
"""Directories of a study that hold no result: what it goes on from, and what tools keep for themselves."""
_SHOWN = {"tables", "figures"}
"""Directories of files that people look at, which need a manifest each; so do pages."""


def verify(directory: Path, root_hash: str = "", as_json: bool = False) -> None:
    """Check every byte of a study's results: all manifests, what they list, and what that was made from.

    Needs nothing but the files, so it can be run on a copy and on another machine. A table, figure or page without a
    manifest is a fault too. The root hash stands for all of it: who publishes it with the results lets others check
    that they have the same. With a fault the exit status is 2.

    Args:
        directory: of the study, or its results/.
        root_hash: what the root hash has to be.
        as_json: print JSON.

    Raises:
        UserError: the directory holds no results, or something does not fit.
    """
    results = directory.absolute()
    results = results / "results" if (results / "results").is_dir() else results
    makers, faults = list[Maker](), list[str]()
    files = list(_files(results))
    for path in files:
        if path.name.endswith("manifest.json"):
            try:
                makers.append(Maker.read(path))
            except UserError as error:
                faults.append(str(error))
    if not makers and not faults:
        raise InvalidInput("directory", "", f"{directory} holds no manifests", "a study's directory, or its results/")
    chain = Chain(results / "manifest.json", makers)
    chain.check()
    listed = {file for maker in chain.makers for file in maker.files} | chain.sources.keys()
    for path in files:
        is_shown = path.suffix == ".html" or _SHOWN & set(path.relative_to(results).parts[:-1])
        if is_shown and path not in listed and not path.name.endswith("manifest.json"):
            chain.faults.append(f"{chain.short(path)}: no manifest lists it, so nothing says what it was made from")
    found = chain.root_hash()
    if root_hash and root_hash != found:
        chain.faults.append(f"{directory}: its root hash is {found}, not {root_hash}")
    faults = list(dict.fromkeys([*faults, *chain.faults]))
    if as_json:
        elsewhere = [str(path) for path in chain.elsewhere]
        report = {"verified": not faults, "faults": faults, "manifests": len(chain.makers), "root_hash": found}
        print(json.dumps(report | {"sources_elsewhere": elsewhere}, indent=2, ensure_ascii=False))
    else:
        print_verdict(chain, directory, faults, found)
    refuse(faults)


def _files(results: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(results):
        directories[:] = sorted(set(directories) - _NOT_RESULTS)
        yield from (Path(place, name) for name in sorted(names))
