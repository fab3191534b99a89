"""A whole results directory, checked wherever it lies: ``rlvr-bench verify``."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from evals.core.errors import InvalidInput, UserError
from evals.trace.chain import Chain, Maker, located
from evals.trace.rows import print_verdict, refuse

_RESULTS = "results"
_NO_RESULTS = re.compile(
    r"(claims/(decoding/)?)?(logs|jobs|costs|mlflow-artifacts)/"  # of the study, or of rlvr-claims
    r"|(.*/)?\.[^/]*(/|$)"  # what Snakemake, writers and file managers keep for themselves
    r"|((base|runs)/[^/]+|(claims/(decoding/)?|decodings/[^/]+/)?samples/[^/]+/[^/]+|claims/decoding/sweeps/[^/]+/points/[^/]+)/state/"
    r"|base/[^/]+/converted/"  # what the link checkpoint beside it leads to
    r"|runs/[^/]+/(verl/|(checkpoints/step-\d+/)?(run|cluster)\.json$)"
    r"|runs/[^/]+/(metrics_so_far\..*|(candidates|checkpoints/.*)\.kept)$"
    r"|(problems|claims/decoding)/[^/]+/disjoint\.json$"
    r"|(.*/)?progress\.json$"
    r"|(studies/[^/]+/)?(best/|decodings/[^/]+/)?(study|runs|tracking)\.json$"
    r"|(mlflow\.db[^/]*|README\.md)$"
)
"""Files below results/ that are no results: logs, settings, measurements, states to go on from, tools' own files."""


def verify(directory: Path, root_hash: str = "", as_json: bool = False) -> None:
    """Check every byte of a study's results: all manifests, what they list, and what that was made from.

    Needs nothing but the files, so it can be run on a copy and on another machine. A file that no manifest lists is a
    fault too, but for logs, measured costs, saved states and MLflow's copies. Hashes are no signatures: somebody who
    edits a file and every manifest above it is not caught, unless the hash of all bytes was published before. The root
    hash covers no times: a study that is made again has the same. A fault ends with status 2.

    Args:
        directory: of the study, or its results/.
        root_hash: what the root hash, or that of all bytes, has to be.
        as_json: print JSON.

    Raises:
        UserError: the directory holds no results, or something does not fit.
    """
    _, chain, faults = _checked(directory)
    computed = chain.root_hash()
    of_bytes = chain.root_hash(of_bytes=True)
    if root_hash and root_hash not in (computed, of_bytes):
        faults.append(f"{directory}: its root hash is {computed}, not {root_hash}")
    if as_json:
        elsewhere = [str(path) for path in chain.elsewhere]
        report = {"verified": not faults, "faults": faults, "manifests": len(chain.makers), "root_hash": computed}
        print(
            json.dumps(report | {"sources_elsewhere": elsewhere, "bytes_hash": of_bytes}, indent=2, ensure_ascii=False)
        )
    else:
        print(f"hash of all bytes {of_bytes}")
        print_verdict(chain, directory, faults, computed)
    refuse(faults)


def read_verified(directory: Path) -> tuple[Path, Chain]:
    """Check a study's results as :func:`verify` does; one that was altered is a :class:`UserError` that names it.

    Returns:
        Its results/, and everything behind them.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: is no directory; accepted: a study's, or its results/")
    results, chain, faults = _checked(directory)
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise UserError(f"{directory}: does not verify: {faults[0]}{more}; rlvr-bench verify lists all")
    return results, chain


def _checked(directory: Path) -> tuple[Path, Chain, list[str]]:
    """The results of a directory, everything behind them, and what does not fit."""
    results = located(directory)
    results = results / _RESULTS if (results / _RESULTS).is_dir() else results
    makers, faults = list[Maker](), list[str]()
    files = list(_files(results, results))
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
        complaint = f"{directory} has another name than {_RESULTS}, by which its manifests know it"
        raise InvalidInput("directory", "", complaint, f"the same files in a directory {_RESULTS}, wherever it lies")
    chain.check()
    listed = {file for maker in chain.makers for file in maker.files} | chain.sources.keys()
    for path in files:
        if path not in listed and not path.name.endswith("manifest.json"):
            chain.faults.append(f"{chain.short(path)}: no manifest lists it, so nothing says what it was made from")
    return results, chain, list(dict.fromkeys([*faults, *chain.faults]))


def _files(directory: Path, results: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """All files that are results, those behind links to directories too; a link to a directory above is passed over."""
    above = (*above, os.path.realpath(directory))
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path = directory / entry.name
        is_directory = entry.is_dir()
        if _NO_RESULTS.match(path.relative_to(results).as_posix() + "/" * is_directory):
            continue
        if not is_directory:
            yield path
        # An imported model is a link to its files, which have much that is not listed and not read.
        elif os.path.realpath(path) not in above and not (entry.is_symlink() and entry.name == "checkpoint"):
            yield from _files(path, results, above)
