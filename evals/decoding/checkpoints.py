"""A pair of checkpoints: where they are, that they speak one vocabulary, and what identifies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file
from evals.core.manifest import verify_outputs
from evals.generation.checkpoint import context_length, end_token_ids, load_tokenizer, resolved_dtype
from evals.generation.evaluate import source_kind
from evals.generation.import_model import checkpoint_files


@dataclass(frozen=True)
class Checkpoint:
    """One model.

    Attributes:
        directory: in Hugging Face format.
        hashes: path -> SHA-256 of every file that the model is made of.
    """

    directory: Path
    hashes: Mapping[str, str]

    @property
    def identity(self) -> str:
        """Fingerprint of the files' bytes."""
        return fingerprint({Path(path).name: digest for path, digest in self.hashes.items()})


@dataclass(frozen=True)
class CheckpointPair:
    """A model before and after training. The prompts, and a chat template, are the trained one's."""

    base: Checkpoint
    trained: Checkpoint

    @property
    def end_tokens(self) -> list[int]:
        """What ends a response: whatever ends one of either model."""
        return sorted({token for each in (self.base, self.trained) for token in end_token_ids(each.directory)})

    def context_length(self, limit: int | None) -> int:
        """Longest prompt and response together that both models take."""
        return min(context_length(each.directory, limit) for each in (self.base, self.trained))


def read_pair(base: Path, trained: Path, dtype: str) -> CheckpointPair:
    """Two checkpoints, each a directory in Hugging Face format or one of a base model or run of ours.

    Raises:
        UserError: one is missing or damaged, their vocabularies differ, or ``dtype`` is auto and means two things.
    """
    pair = CheckpointPair(_read(base), _read(trained))
    directories = [pair.base.directory, pair.trained.directory]
    vocabularies = [load_tokenizer(directory).get_vocab() for directory in directories]
    if vocabularies[0] != vocabularies[1]:
        differing = sorted(
            token
            for token in vocabularies[0].keys() | vocabularies[1].keys()
            if vocabularies[0].get(token) != vocabularies[1].get(token)
        )
        raise UserError(
            f"{directories[0]}, {directories[1]}: their tokenizers differ in {len(differing)} tokens, such as "
            f"{differing[0]!r}; accepted: two models of one vocabulary"
        )
    dtypes = [resolved_dtype(directory, dtype) for directory in directories]
    if dtypes[0] != dtypes[1]:
        raise UserError(f"--dtype: auto is {dtypes[0]} for {base} and {dtypes[1]} for {trained}; accepted: one of them")
    return pair


def _read(directory: Path) -> Checkpoint:
    if (directory / "manifest.json").is_file() and (directory / "checkpoint").is_dir():
        manifest = verify_outputs(directory / "manifest.json", source_kind(directory))
        files = {name: digest for name, digest in manifest.outputs.items() if name.startswith("checkpoint/")}
        return Checkpoint(directory / "checkpoint", {str(directory / name): files[name] for name in files})
    return Checkpoint(directory, {str(path): sha256_file(path) for path in checkpoint_files(directory)})
