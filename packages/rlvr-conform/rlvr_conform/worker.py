"""Answer questions about a trainer's loss, a line of JSON each, in the environment that has the trainer.

    PYTHON worker.py ADAPTER.py [CHECKOUT]

Run by the command and the pytest plugin, never imported by them: what is here needs torch alone, so that it works
beside any trainer. README.md says what an adapter is. Nothing but JSON comes in and goes out; what trainers print goes
to the standard error.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

VARIABLES = {
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than all that is computed
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
}


class Anything(type):
    """The class of stand-ins: each has every attribute, and another stand-in as its value."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *given: Any, **options: Any) -> Any:
        # As a decorator it changes nothing; a subclass in the trainer's code is an ordinary class.
        if cls.__dict__.get("__module__") != __name__:
            return type.__call__(cls, *given, **options)
        return given[0] if len(given) == 1 and callable(given[0]) and not options else Anything(cls.__name__, (), {})

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *_: Any) -> None:
        return None


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules in the place of packages that a trainer imports and its loss does not need.

    Attributes:
        trainer: the trainer's own package; what its modules import and nobody has, gets a stand-in.
        replaced: modules that get one whether or not they are there.
    """

    def __init__(self, trainer: str = "", replaced: Sequence[str] = ()) -> None:
        self.trainer, self.replaced = trainer, replaced
        self.used: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module that is to be replaced, or that the trainer's own code asks for and no other finder found."""
        replaced = [given for given in self.replaced if name == given or name.startswith(f"{given}.")]
        top = name.partition(".")[0]
        asks = self.trainer and top != self.trainer and self._importer() in (self.trainer, "conform_adapter")
        if not replaced and not asks:
            return None
        self.used.add(replaced[0] if replaced else top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _importer(self) -> str:
        """The package of the code that imports."""
        frame: Any = sys._getframe(2)
        while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "importlib":
            frame = frame.f_back
        return frame.f_globals.get("__name__", "").partition(".")[0] if frame else ""

    def create_module(self, spec: Any) -> Any:
        """Make a module whose every attribute is a stand-in."""
        module = ModuleType(spec.name)
        module.__version__ = "0"  # type: ignore[attr-defined]
        module.__getattr__ = lambda name: getattr(Anything(spec.name, (), {}), name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        """Do nothing: all is there."""


def stand_ins_of(adapter: Any) -> list[StandIns]:
    """Put the stand-ins that an adapter asks for among the finders of modules: some before all others, some after."""
    replaced, missing = StandIns("", getattr(adapter, "STAND_INS", ())), StandIns(getattr(adapter, "TRAINER", ""))
    sys.meta_path[:] = [replaced, *sys.meta_path, missing]
    return [replaced, missing]


def load(path: str) -> Any:
    """Import an adapter from its file."""
    spec = importlib.util.spec_from_file_location("conform_adapter", path)
    assert spec is not None and spec.loader is not None, path
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    return adapter


class Answers:
    """The answers of one adapter."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.chain: Any = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question, or say why not: ``unsupported`` for what the trainer lacks, else ``error``."""
        try:
            return getattr(self, question["ask"])(question)  # type: ignore[no-any-return]
        except NotImplementedError as error:
            return {"unsupported": str(error) or "the trainer has no such option"}
        except Exception as error:
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            return {"error": " ".join(dict.fromkeys([lines[0][:200], lines[-1][:200]]))}

    def gradient(self, question: dict[str, Any]) -> dict[str, Any]:
        """Compute the gradient by the log-probabilities, of a batch that is cut into ranks and their micro-batches."""
        import torch

        case, batch = question["case"], question["batch"]
        options = {**self.adapter.options(case), **question["set_to"]}
        is_token = torch.arange(len(batch["new"][0])) < torch.tensor(batch["lengths"])[:, None]
        log_probs = torch.tensor(batch["new"], dtype=torch.float64).masked_fill(~is_token, question["padding"])
        log_probs.requires_grad_()
        losses = []
        for micro_batches in question["ranks"]:
            parts = [self._part(batch, rows, question, log_probs) for rows in micro_batches]
            # Ranks average their gradients.
            losses.append(sum(self.adapter.loss(part, options) for part in parts) / len(question["ranks"]))
        (gradient,) = torch.autograd.grad(sum(losses), log_probs, allow_unused=True)
        if gradient is None:
            return {"error": "the loss does not depend on the log-probabilities"}
        return {"gradient": gradient.tolist(), "options": {key: repr(value) for key, value in options.items()}}

    def _part(self, batch: dict[str, Any], rows: list[int], question: dict[str, Any], log_probs: Any) -> Any:
        """A micro-batch; padding holds what the question says."""
        import torch

        lengths = torch.tensor([batch["lengths"][i] for i in rows])
        mask = torch.arange(log_probs.shape[1]) < lengths[:, None]

        def of(name: str) -> Any:
            values = torch.tensor([batch[name][i] for i in rows], dtype=torch.float64)
            return values.masked_fill(~mask, question["padding"])

        return SimpleNamespace(
            log_probs=log_probs[rows],
            old_log_probs=of("old"),
            sampler_log_probs=of("sampler"),
            reference_log_probs=of("reference"),
            advantages=of("advantage"),
            mask=mask,
            groups=torch.tensor([batch["group"][i] for i in rows]),
            whole=SimpleNamespace(
                tokens=sum(batch["lengths"]),
                rows=len(batch["lengths"]),
                prompts=len(set(batch["group"])),
                longest=question["longest"],
                micro_batches=len(question["ranks"][0]),
                mini_batches=question["mini_batches"],
                ranks=len(question["ranks"]),
            ),
        )

    def choices(self, question: dict[str, Any]) -> dict[str, Any]:
        """List the values that the trainer documents for its own options, of those with a few."""
        return {"choices": getattr(self.adapter, "choices", dict)()}

    def advantages(self, question: dict[str, Any]) -> dict[str, Any]:
        """Compute advantages [B] of rewards [B] in groups."""
        import torch

        if not hasattr(self.adapter, "advantages"):
            raise NotImplementedError("the adapter does not call them")
        rewards = torch.tensor(question["rewards"], dtype=torch.float64)
        values = self.adapter.advantages(question["name"], rewards, torch.tensor(question["groups"]))
        return {"advantages": values.tolist()}

    def train(self, question: dict[str, Any]) -> dict[str, Any]:
        """Train a two-layer model for a few updates, by the trainer's own loop, as ``chains/`` has it."""
        self.chain = load(question["chain"]).Chain(question["options"], **question["settings"])
        return {"updates": self.chain.updates}

    def compare(self, question: dict[str, Any]) -> dict[str, Any]:
        """Give an update's gradient as the trainer accumulated it, and as slopes by the log-probabilities make it."""
        computed, wanted = self.chain.gradients(question["update"], question["slopes"])
        return {"computed": computed.tolist(), "wanted": wanted.tolist()}


def main(path: str, checkout: str = "") -> None:
    """Answer until there are no more questions."""
    os.environ.update(VARIABLES)
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = [checkout] if checkout else []
    adapter = load(path)
    stand_ins = stand_ins_of(adapter)
    answers = Answers(adapter)

    def say(answer: dict[str, Any]) -> None:
        answers_to.write(json.dumps(answer) + "\n")
        answers_to.flush()

    for line in sys.stdin:
        question = json.loads(line)
        if question["ask"] == "versions":
            used = sorted(set().union(*(finder.used for finder in stand_ins)))
            install = getattr(adapter, "INSTALL", "")
            about = {"versions": versions(adapter.PACKAGE), "missing": missing(adapter), "install": install}
            say({**about, "stand_ins": used})
        else:
            say(answers.answer(question))


def missing(adapter: Any) -> str:
    """The module that an adapter needs and this Python lacks; empty where there is none."""
    trainer = getattr(adapter, "TRAINER", adapter.PACKAGE.replace("-", "_"))
    lacking = [name for name in ("torch", trainer) if importlib.util.find_spec(name) is None]
    installed = versions(adapter.PACKAGE)  # under another name than its module's
    return next((name for name in lacking if name == "torch" or adapter.PACKAGE not in installed), "")


def versions(package: str) -> dict[str, str]:
    """The versions of what computes; a checkout has none."""
    installed = {}
    for name in (package, "torch", "transformers"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


if __name__ == "__main__":
    main(*sys.argv[1:])
