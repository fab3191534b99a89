"""A trainer's whole chain: its own loop trains a two-layer model, and its gradients and logged losses are compared."""

import ast
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlvr_conform.cases import CASES, LONGEST, Case
from rlvr_conform.loss_references import Batch, Rows
from rlvr_conform.trainer import Failed, Process, Unsupported, checked
from rlvr_conform.verdicts import TOLERANCE, Finding, Gap, Verdict

CHAINS = Path(__file__).parent / "chains"
LOGGED = 2e-4
"""The largest difference of a logged loss that rounding may make: transformers logs four decimals."""
AVERAGED = "its token mean divides by the tokens that a rollout batch has for an update on average, not by the update's"


class Cut(NamedTuple):
    """The micro-batches of a rank's update, and how many are sampled before the next update."""

    ranks: int
    micro_batches: int
    sampled_micro_batches: int

    def by_rollout_batch(self, update: int, lengths: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """List the micro-batches of a rank's responses of an update, each with the rollout batch that it is from."""
        first, rows = update * self.micro_batches, len(lengths) // self.micro_batches
        for index, start in enumerate(range(0, len(lengths), rows)):
            yield (first + index) // self.sampled_micro_batches, lengths[start : start + rows]


CUTS = {
    "two micro-batches an update": Cut(1, 2, 2),
    "two updates on one rollout batch": Cut(1, 2, 4),
    "two rollout batches an update": Cut(1, 4, 2),
    "two ranks": Cut(2, 2, 4),
}


class Update(NamedTuple):
    """The result of an update: the gap of its gradient, the loss that was logged and the one expected."""

    gap: Gap
    logged: float
    loss: float

    @property
    def is_logged(self) -> bool:
        """Return whether the loss that was logged is the one expected, but for rounding."""
        return abs(self.logged - self.loss) <= LOGGED * max(1.0, abs(self.loss))


@dataclass(frozen=True)
class Group:
    """The processes of a data-parallel training, one a rank."""

    processes: Sequence[Process]

    def answers(self, question: dict[str, Any], of_rank: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Ask all ranks at once, each with what is said to it alone: they wait for one another."""
        for rank, process in enumerate(self.processes):
            process.ask({**question, **(of_rank[rank] if of_rank else {})})
        answers = [process.hear() for process in self.processes]
        return [checked(answer) for answer in answers]

    def updates(self, chain: Path, case: Case, options: dict[str, Any], cut: Cut) -> tuple[list[Update], list[Update]]:
        """Train, and compare every update with the paper's on the responses that all ranks gave it.

        The second list holds the updates beside another convention: means over tokens divide by the tokens that a
        rollout batch has for an update on average, not by those of the update's own responses.
        """
        settings = {**cut._asdict(), "longest": LONGEST}
        question = {"ask": "train", "chain": str(chain), "options": options, "settings": settings}
        of_updates = list(zip(*(answer["updates"] for answer in self.answers(question)), strict=True))
        per_sample = cut.micro_batches / cut.sampled_micro_batches
        tokens: Counter[int] = Counter()  # of each rollout batch
        for number, parts in enumerate(of_updates):
            for part in parts:
                for batch, lengths in cut.by_rollout_batch(number, part["lengths"]):
                    tokens[batch] += sum(lengths)
        exact, averaged = [], []
        for number, parts in enumerate(of_updates):
            rows: dict[str, Any] = {
                name: [row for part in parts for row in part[name]] for name in parts[0] if name != "loss"
            }
            update = Batch(**rows, group=[0] * len(rows["lengths"]))
            tokens_of_update = float(sum(update.lengths))
            factors = [
                tokens_of_update / (tokens[batch] * per_sample)
                for part in parts
                for batch, lengths in cut.by_rollout_batch(number, part["lengths"])
                for _ in lengths
            ]
            exact.append(self._compared(number, parts, case, update, [1.0] * len(factors)))
            if case.objective.mode == "token-mean":
                averaged.append(self._compared(number, parts, case, update, factors))
        return exact, averaged

    def _compared(
        self, number: int, parts: Sequence[Any], case: Case, batch: Batch, factors: Sequence[float]
    ) -> Update:
        """Compare an update with the objective, each response's part of it times its factor."""
        rows = zip(case.objective.gradient(batch), factors, batch.lengths, strict=True)
        slopes = iter([[factor * slope for slope in row[:length]] for row, factor, length in rows])
        of_rank = [{"slopes": [next(slopes) for _ in part["lengths"]]} for part in parts]
        answers = self.answers({"ask": "compare", "update": number}, of_rank)
        wanted: Rows = [[sum(values) for values in zip(*(answer["wanted"] for answer in answers), strict=True)]]
        loss = sum(value * factor for value, factor in zip(case.objective.values(batch), factors, strict=True))
        return Update(Gap([answers[0]["computed"]], wanted), parts[0]["loss"], loss)


def chain_of(adapter: Path) -> Path:
    """The file of a trainer's chain, if it has one."""
    return CHAINS / adapter.name


def try_chain(
    adapter: Path, python: Sequence[str], checkout: Path | None, findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Try a trainer's chain with the losses found so far, under the options that make them the paper's.

    Losses that need a reference policy or another sampler are left out: the model samples for itself.
    """
    chain = chain_of(adapter)
    cases = {case.name: case for case in CASES if case.objective.kl is None and case.objective.cap is None}
    asked = {
        finding.objective: {key: ast.literal_eval(value) for key, value in (finding.remedy or finding.options).items()}
        for finding in findings
        if finding.objective in cases
        and (finding.verdict in ("equal", "depends on the cut") or (finding.verdict == "convention" and finding.remedy))
    }
    updates: dict[str, dict[str, tuple[list[Update], list[Update]]]] = {name: {} for name in asked}
    wrong: dict[str, Finding] = {}
    for ranks in sorted({cut.ranks for cut in CUTS.values()}):
        with ExitStack() as stack:
            group = Group(
                [stack.enter_context(Process(adapter, python, checkout, each)) for each in environments(ranks)]
            )
            for name, options in asked.items():
                for words, cut in CUTS.items():
                    if cut.ranks == ranks and name not in wrong:
                        try:
                            updates[name][words] = group.updates(chain, cases[name], options, cut)
                        except Unsupported:
                            continue
                        except Failed as error:
                            note = f"with {words}: {error}"
                            wrong[name] = Finding(objective=f"chain {name}", verdict="fails", note=note)
    for name, options in asked.items():
        if name in wrong:
            yield wrong[name]
        elif updates[name]:
            yield judged(name, {key: repr(value) for key, value in options.items()}, updates[name])


def judged(name: str, options: dict[str, str], of_cuts: dict[str, tuple[list[Update], list[Update]]]) -> Finding:
    """Judge the updates of one loss, by how they were cut."""
    worst = {words: max(exact, key=lambda update: update.gap.largest).gap for words, (exact, _) in of_cuts.items()}
    apart = [words for words, gap in worst.items() if gap.largest >= TOLERANCE]
    notes = [
        f"with {words} the gradient differs by {worst[words].largest:.1%}, scale {worst[words].scale:.3g}"
        for words in apart
    ]
    logged = [(words, update) for words, (exact, _) in of_cuts.items() for update in exact if not update.is_logged]
    if logged:
        words, update = max(logged, key=lambda entry: abs(entry[1].logged - entry[1].loss))
        notes.append(f"with {words} it logs {update.logged:.4f} where the loss is {update.loss:.4f}")
    averaged = [update for _, updates in of_cuts.values() for update in updates]
    verdict: Verdict = "equal"
    if notes:
        verdict = "depends on the cut" if apart else "differs"  # every update is of more than one micro-batch
        if averaged and all(update.gap.largest < TOLERANCE and update.is_logged for update in averaged):
            verdict = "convention"
    gap = max(worst.values(), key=lambda gap: gap.largest)
    return Finding(
        objective=f"chain {name}",
        verdict=verdict,
        convention=AVERAGED if verdict == "convention" else "",
        options=options,
        difference=min(gap.largest, 1e9),
        degrees=gap.degrees,
        scale=gap.scale,
        note="" if verdict == "convention" else "; ".join(notes),
    )


def environments(ranks: int) -> list[dict[str, str]]:
    """The variables by which processes on this machine find one another; none are needed for one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    of_all = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    of_all |= {"GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true"}
    return [{**of_all, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
