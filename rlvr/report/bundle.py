"""A study's report and everything that it leads to, in one file to send to somebody."""

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from evals.core.errors import UserError, counted
from evals.core.files import replacing
from rlvr.report.provenance import studies_of

_PARTS = ("*.html", "claims/**/*.html", "responses", "rollouts", "tables", "figures", "study.json")


def bundle(results: Path, out: Path) -> None:
    """Pack the reports of all studies below a results directory, and every page, table and figure beside them.

    Unpacked, `report.html` opens from disk, with every response one click from its score. Checkpoints, samples and
    MLflow's runs are left out.

    Args:
        results: results/, where the studies lie.
        out: the zip file.
    """
    parts = [path for study in studies_of(results) for part in _PARTS for path in sorted(study.glob(part))]
    found = [file for path in parts for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    files = [file for file in found if file.is_file() and file.name != ".snakemake_timestamp"]
    if not any(file.name == "report.html" for file in files):
        raise UserError(f"{results}: holds no report.html; make it first: snakemake")
    if linked := [file for file in found if file.resolve() != results.resolve() / file.relative_to(results)]:
        raise UserError(f"{linked[0]}: is a link, or lies behind one; accepted: files of the study itself")
    with replacing(out) as temporary, ZipFile(temporary, "w", ZIP_DEFLATED) as packed:
        for file in files:
            packed.write(file, Path(out.stem) / file.relative_to(results))
    size = f"{counted(len(files), 'file')}, {out.stat().st_size / 2**20:.1f} MiB"
    print(f"{out}: {size}; unpack it and open {out.stem}/report.html")
