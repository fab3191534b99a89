"""The progress display of a terminal: the whole study and every running job, redrawn in place."""

import time
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from snakemake_logger_plugin_rlvr import wording
from snakemake_logger_plugin_rlvr.study import RunningJob, StepProgress, Study

_REDRAWS_PER_SECOND = 2
_MOST_JOBS_SHOWN = 12
_WIDE_TERMINAL = 90


class LiveDisplay:
    """A bar for the study with the time left, a row for each running job; messages scroll by above."""

    def __init__(self, stream: TextIO, study: Study, no_color: bool) -> None:
        self._study = study
        self._began = time.time()
        self._console = Console(file=stream, force_terminal=True, no_color=no_color, highlight=False)
        self._live = Live(
            console=self._console,
            get_renderable=lambda: self.render(time.time()),
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
        )

    def planned(self) -> None:
        self.lines([wording.plan(self._study)])
        self._live.start()

    def started(self, job: RunningJob) -> None:
        """A running job has a row of its own; nothing to say."""

    def finished(self, job: RunningJob, now: float) -> None:
        """A finished job moves the bar; nothing to say."""

    def message(self, text: str, is_error: bool) -> None:
        """Pass on what Snakemake says by itself, above the bar."""
        self._console.print(Text(text, style="red" if is_error else ""), soft_wrap=True)

    def lines(self, lines: Iterable[str], is_failure: bool = False) -> None:
        """Print lines above the bar."""
        for number, line in enumerate(lines):
            self._console.print(Text(line, style="bold red" if is_failure and number == 0 else ""), soft_wrap=True)

    def close(self) -> None:
        """Remove the bar and give the cursor back."""
        self._live.stop()

    def render(self, now: float) -> RenderableType:
        """The display at the time ``now``."""
        study = self._study.snapshot()
        jobs = list(study.running.values())
        progress = study.progress_of_running()
        outlook = study.outlook(now, progress)
        parts = [f"{outlook.fraction:4.0%}", f"{study.jobs_finished} of {study.jobs_total} jobs"]
        if study.failed:
            parts.append(f"{len(study.failed)} failed")
        parts += [f"{wording.duration(now - self._began)} so far", *filter(None, [wording.time_left(outlook)])]
        header = Table.grid(padding=(0, 1))
        header.add_row(self._bar(outlook.fraction, 30), Text("  ".join(parts), style="bold"))
        rows = Table.grid(padding=(0, 2))
        for job in jobs[:_MOST_JOBS_SHOWN]:
            rows.add_row(*self._row(job, progress[job.job_id], now))
        if len(jobs) > _MOST_JOBS_SHOWN:
            rows.add_row(Text(f"  and {len(jobs) - _MOST_JOBS_SHOWN} more", style="dim"))
        return Group(header, rows)

    def _row(self, job: RunningJob, progress: StepProgress | None, now: float) -> list[RenderableType]:
        """Name, bar, steps and time of one job."""
        elapsed = wording.duration(now - job.started)
        name = Text(f"  {job.name}", no_wrap=True, overflow="ellipsis")
        if progress is None:
            return [name, Text(""), Text(""), Text(elapsed, style="dim")]
        left = job.seconds_left(now, progress)
        timing = elapsed if left is None else f"{elapsed}, {wording.duration(left)} left"
        bar = self._bar(progress.step / progress.steps, 16)
        return [name, bar, Text(wording.steps(progress)), Text(timing, style="dim")]

    def _bar(self, fraction: float, width: int) -> RenderableType:
        """A bar, or nothing where the words alone fill the line."""
        if self._console.width < _WIDE_TERMINAL:
            return Text("")
        return ProgressBar(total=1.0, completed=fraction, width=width)
