"""A study's results described as an RO-Crate, so that archives and others' tools know what they hold.

The description follows RO-Crate 1.1 (https://w3id.org/ro/crate/1.1) and the profile Process Run Crate 0.5
(https://w3id.org/ro/wfrun/process/0.5): files that a program made, and the run that made them. The workflow itself is
no part of the results, so that they are no Workflow Run Crate.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evals.core.errors import InvalidInput
from evals.core.files import read_json, sha256_file, write_json
from evals.trace.chain import Chain

METADATA = "ro-crate-metadata.json"
_CRATE, _PROFILE = "https://w3id.org/ro/crate/1.1", "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = [f"{_CRATE}/context", "https://w3id.org/ro/terms/workflow-run/context"]
_PROGRAM, _RUN, _AUTHOR = "#rlvr-bench", "#run", "#author"


def write_crate(results: Path, files: Sequence[Path], chain: Chain, name: str, licence: str, author: str = "") -> Path:
    """Describe verified results in ``ro-crate-metadata.json``.

    Args:
        results: the directory, which becomes the crate.
        files: its files.
        chain: everything behind them, checked.
        name: of the study.
        licence: address of the licence of the results.
        author: the name of who made them; empty: nobody is named.
    """
    parts = [_file(path, results) for path in sorted(files)]
    times = sorted(each.manifest.created for each in chain.makers if each.manifest.created)
    commits = sorted({str(each.manifest.environment.get("commit") or "") for each in chain.makers} - {""})
    references = [{"@id": part["@id"]} for part in parts]
    made = [each for each in references if each["@id"] != "study.json"]
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": name,
        "datePublished": times[-1][:10],
        "license": {"@id": licence},
        "description": f"Results of the study {name}: trainings, responses, grades, scores and tables.",
        "identifier": f"sha256:{chain.root_hash()}",  # the root hash that rlvr-bench verify prints
        "conformsTo": {"@id": _PROFILE},
        "mentions": {"@id": _RUN},
        "hasPart": references,
        **({"author": {"@id": _AUTHOR}} if author else {}),
    }
    people = [{"@id": _AUTHOR, "@type": "Person", "name": author}] if author else []
    program = {"@id": _PROGRAM, "@type": "SoftwareApplication", "name": "RLVR Bench"}
    program |= {"softwareVersion": f"git {', '.join(commits)}"} if commits else {}
    run = {
        "@id": _RUN,
        "@type": "CreateAction",
        "name": f"Study {name}",
        "instrument": {"@id": _PROGRAM},
        "startTime": _time(times[0]),  # of the first file
        "endTime": _time(times[-1]),  # of the last one
        "object": [each for each in references if each not in made],
        "result": made,
    }
    descriptor = {"@id": METADATA, "@type": "CreativeWork", "conformsTo": {"@id": _CRATE}, "about": {"@id": "./"}}
    profile = {"@id": _PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    terms = {"@id": licence, "@type": "CreativeWork", "name": licence}
    entities = [descriptor, root, profile, terms, program, run, *people, *parts]
    write_json(results / METADATA, {"@context": _CONTEXT, "@graph": entities})
    return results / METADATA


def read_author(results: Path) -> str:
    """Read who made results from their description; empty where it names nobody, or is not there."""
    graph = {entity["@id"]: entity for entity in _graph(results / METADATA)} if (results / METADATA).exists() else {}
    return str(graph.get(_AUTHOR, {}).get("name", ""))


def check_crate(results: Path, root_hash: str) -> list[str]:
    """Say what a crate's description and its files do not share; nothing where there is no description."""
    path = results / METADATA
    if not path.exists():
        return []
    graph = {entity["@id"]: entity for entity in _graph(path)}
    faults = []
    for identifier, entity in graph.items():
        if entity.get("@type") == "File":
            file = results / str(entity.get("name"))
            if not file.is_file():
                faults.append(f"{path.name}: names {identifier}, and there is no such file")
            elif sha256_file(file) != entity.get("sha256"):
                faults.append(f"{path.name}: {identifier} has other bytes than it says")
    written_for = graph.get("./", {}).get("identifier")
    if written_for != f"sha256:{root_hash}":
        faults.append(f"{path.name}: was written for the root hash {written_for}, not {root_hash}")
    return faults


def _file(path: Path, results: Path) -> dict[str, Any]:
    name = path.relative_to(results).as_posix()
    kind, _ = guess_type(name)
    entity = {"@id": quote(name), "@type": "File", "name": name, "contentSize": str(path.stat().st_size)}
    return {**entity, "sha256": sha256_file(path), **({"encodingFormat": kind} if kind else {})}


def _time(created: str) -> str:
    """A time with its zone, as schema.org has it."""
    return datetime.fromisoformat(created).isoformat()


def _graph(path: Path) -> list[Mapping[str, Any]]:
    """The entities of a crate's description."""
    content = read_json(path)
    graph = content.get("@graph") if isinstance(content, dict) else None
    if not isinstance(graph, list) or not all(isinstance(each, dict) and "@id" in each for each in graph):
        raise InvalidInput(str(path), "@graph", "is no list of entities", "what rlvr-bench crate wrote")
    return graph
