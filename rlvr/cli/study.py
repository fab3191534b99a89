"""A study as a whole: its plan, its methods, its rehearsal, its runs in MLflow, pages of its token tables."""

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from evals.core.errors import UserError, counted
from evals.core.files import write_text
from rlvr.cli.command import Commands
from rlvr.study.source_files import CONFIG

commands = Commands()

DEFAULT_STUDY = CONFIG / "config.yaml"
Config = Annotated[Path, Option(help="file of the study; default: config/config.yaml", show_default=False)]

methods = Commands(
    invoke_without_command=True, help="List the catalogue of methods; `methods show NAME` explains one of them."
)
commands.add_typer(methods, name="methods")


@methods.callback()
def list_methods(context: typer.Context) -> None:
    """List the catalogue of methods; `methods show NAME` explains one of them."""
    if context.invoked_subcommand is None:
        from rlvr.study import method_pages
        from rlvr.study.catalogue import load_catalogue

        print(*method_pages.list_methods(load_catalogue()), sep="\n")


@methods.add("show")
def show_method(name: Annotated[str, Argument(help="a method of the catalogue, or FILE.py of yours")]) -> None:
    """Explain a method: its components, their equations in words, and what was chosen; or the components of a file."""
    from rlvr.study import method_pages
    from rlvr.study.catalogue import load_catalogue

    is_file, show = name.endswith(".py"), method_pages.show_method
    print(*(method_pages.show_file(Path(name)) if is_file else show(name, load_catalogue())), sep="\n")


@commands.add("init")
def init(
    out: Annotated[Path, Argument(help="file to write; it must not exist yet")],
    model: Annotated[str, Option(help="OWNER/NAME on the Hugging Face Hub, or the directory of a checkpoint")],
    gpus: Annotated[
        int, Option(help="number of GPUs to use; 0: the CPU, 1: engine local, more: engine verl", min=0)
    ] = 1,
    memory: Annotated[int, Option(help="memory of a GPU in GB", min=1)] = 80,
    prompt: Annotated[
        Literal["base", "chat"] | None,
        Option(help="form of prompts; default: chat if a local checkpoint has a template"),
    ] = None,
) -> None:
    """Write a commented study of a model on this machine, to go on from."""
    from rlvr.study.new_study import write_new_study

    study = write_new_study(out, model, gpus, memory, prompt)
    runs = counted(len(study.trained_runs), "run")
    print(f"{out}: {runs}; plan it with: snakemake -n --configfile {out} --directory DIR")
    if any(each.id and not each.revision for each in study.existing_models.values()):
        print("the Hub did not answer, so no revision is pinned: write the commit that you mean into the file's models")


@commands.add("plan")
def plan(
    config: Config = DEFAULT_STUDY,
    out: Annotated[Path, Option(help="directory to write the runs' directories to")] = Path("results/runs"),
) -> None:
    """Write the files of a study's runs, without carrying anything out, and print their paths."""
    from rlvr.study.machine import check_machine
    from rlvr.study.notices import print_notices
    from rlvr.study.studies import Studies

    studies = Studies.read([config], {})
    study = studies.main
    check_machine(study)
    for run in study.trained_runs:
        for name, content in study.run_files(run.run).items():
            path = out / run.run / name
            # As the workflow writes them: a file that says the same is left as it is.
            if not path.is_file() or path.read_text(encoding="utf-8") != content:
                write_text(path, content)
        print(out / run.run / "run.json")
    print_notices(studies.left(study.folder), studies.looks(study.folder))


@commands.add("schemas")
def schemas(out: Annotated[Path, Option(help="directory to write the files to")]) -> None:
    """Write a JSON schema for every kind of configuration file, for editors that check YAML while it is written."""
    from evals.core.config.reference import editor_schemas
    from evals.core.files import write_json

    for name, schema in editor_schemas().items():
        write_json(out / f"{name}.schema.json", schema)
        print(out / f"{name}.schema.json")


@commands.add("reference")
def reference() -> None:
    """Print the reference of all configuration keys, docs/configuration.md."""
    from evals.core.config.reference import reference_page

    print(reference_page(), end="")


@commands.add("clean-state")
def clean_state(directory: Annotated[Path, Argument(help="directory in which the study runs")] = Path()) -> None:
    """Delete saved training state; finished results stay, and a run that was not finished begins again."""
    from rlvr.study.launch import only_study, require_no_snakemake

    if not (directory / "results").is_dir():
        raise UserError(f"{directory}: holds no results/; accepted: the directory in which a study runs")
    with only_study(directory.resolve()):
        require_no_snakemake(directory)
        states = [path for stage in ("base", "runs") for path in (directory / "results" / stage).glob("*/state")]
        files = [path.stat() for state in states for path in state.rglob("*") if path.is_file()]
        size = sum(file.st_size for file in files if file.st_nlink == 1)  # another's is a checkpoint's too, and stays
        try:
            for state in states:
                shutil.rmtree(state)
        except OSError as error:
            raise UserError(str(error)) from None
    runs = counted(len(states), "run")
    print(f"deleted the training state of {runs} ({size / 2**20:.1f} MiB); their results are kept")


commands.call("judge", "rlvr.study.judge:judge", ["file"])
commands.call("rehearse", "rlvr.study.rehearsal:rehearse", ["study"])
commands.call("ui", "rlvr.report.mlflow.server:browse")
commands.call("bundle", "rlvr.report.bundle:bundle", ["results", "out"])

tokens = Commands(help="Pages of what training does to each token.")
commands.add_typer(tokens, name="tokens")
tokens.call("show", "rlvr.tokens.view:write_page", ["table"], {"problems": "problem", "count": "groups"})
