"""A whole results directory, checked wherever it lies, and described: ``rlvr-bench verify`` and ``crate``."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json
from evals.trace.chain import Chain, Maker
from evals.trace.crate import check_crate, write_crate
from evals.trace.rows import print_verdict, refuse

_RESULTS = "results"
_NOT_RESULTS = {"state", "logs", "jobs", "mlflow-artifacts", ".snakemake", ".writer"}
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
    results, chain, faults = _checked(directory)
    found = chain.root_hash()
    if root_hash and root_hash != found:
        faults.append(f"{directory}: its root hash is {found}, not {root_hash}")
    faults += check_crate(results, found)
    if as_json:
        elsewhere = [str(path) for path in chain.elsewhere]
        report = {"verified": not faults, "faults": faults, "manifests": len(chain.makers), "root_hash": found}
        print(json.dumps(report | {"sources_elsewhere": elsewhere}, indent=2, ensure_ascii=False))
    else:
        print_verdict(chain, directory, faults, found)
    refuse(faults)


def describe(directory: Path, licence: str, name: str = "") -> None:
    """Describe a finished study's results as an RO-Crate, in their ro-crate-metadata.json.

    Everything is checked first, as by verify. Of a copy of the directory, verify checks the description too: every file
    that it names, its SHA-256, and the root hash.

    Args:
        directory: of the study, or its results/.
        licence: of the results, an address such as https://spdx.org/licenses/CC-BY-4.0.
        name: of the crate; default: that of the study.

    Raises:
        UserError: the directory holds no results, or something does not fit.
    """
    results, chain, faults = _checked(directory)
    refuse(faults)
    files = {file for maker in chain.makers for file in (maker.path, *maker.files)} | chain.sources.keys()
    own = [file for file in files if file.is_relative_to(results) and file.is_file()]
    study = results / "study.json"
    name = name or str(read_json(study)["study"] if study.is_file() else results.name)
    print(write_crate(results, own, chain, name, licence))


def _checked(directory: Path) -> tuple[Path, Chain, list[str]]:
    """The results of a directory, everything behind them, and what does not fit."""
    results = directory.absolute()
    results = results / _RESULTS if (results / _RESULTS).is_dir() else results
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
    named = {part for maker in makers for name in maker.manifest.inputs for part in Path(name).parts[:1]}
    if _RESULTS in named and not results.is_relative_to(chain.root / _RESULTS):
        found = f"{directory} has another name than {_RESULTS}, by which its manifests know it"
        raise InvalidInput("directory", "", found, f"the same files in a directory {_RESULTS}, wherever it lies")
    chain.check()
    listed = {file for maker in chain.makers for file in maker.files} | chain.sources.keys()
    for path in files:
        is_shown = path.suffix == ".html" or _SHOWN & set(path.relative_to(results).parts[:-1])
        if is_shown and path not in listed and not path.name.endswith("manifest.json"):
            chain.faults.append(f"{chain.short(path)}: no manifest lists it, so nothing says what it was made from")
    return results, chain, list(dict.fromkeys([*faults, *chain.faults]))


def _files(results: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(results):
        directories[:] = sorted(set(directories) - _NOT_RESULTS)
        yield from (Path(place, name) for name in sorted(names))
