"""Prompts by verl are those of evaluation, token by token, and responses end where they end in evaluation."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from evals.core.errors import InvalidInput, UserError
from evals.core.files import write_json
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.problems.arithmetic import FAMILIES
from evals.problems.problem_set import write_problem_set
from rlvr.engines.verl import registered
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, PLAIN_TEXT, RUN_VARIABLE, Places, launch
from rlvr.engines.verl.registered import group_ids
from rlvr.engines.verl.train import prompts_by_verl, require_ends, write_prompts
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.unit.generation.test_thinking import a_model
from tests.unit.verl.conftest import CLUSTER, make_cluster, make_run, run_content

TEMPLATE = "{{ bos_token }}{% for turn in messages %}U {{ turn.content }} <turn>{% endfor %}"
WORDS = ["What", "is", "1", "+", "2", "?", "Answer", ":", "U"]


def checkpoint(directory: Path, begins: bool, **more: Any) -> Checkpoint:
    """A tokenizer of words that begins a text with <s>, or does not."""
    special = ["<s>", "</s>", "<unk>", "<turn>"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    whole.chat_template = TEMPLATE
    whole.save_pretrained(directory)
    write_json(directory / "config.json", {"model_type": "llama", "eos_token_id": 1, "bos_token_id": 0, **more})
    return Checkpoint(directory)


def tokens_of_verl(contents: list[str], directory: Path, template: str) -> list[list[int]]:
    """verl's own call."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    tokenizer.chat_template = template
    chats = [[{"role": "user", "content": content}] for content in contents]
    return tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=True, return_dict=False)


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize(("form", "template"), [("base", PLAIN_TEXT), ("chat", TEMPLATE)])
def test_verl_s_prompts_have_the_tokens_of_evaluation(begins: bool, form: str, template: str, tmp_path: Path) -> None:
    model, run = checkpoint(tmp_path, begins), make_run().model_copy(update={"prompt_form": form})
    text = "What is 1 + 2 ? Answer :"
    contents, lengths = prompts_by_verl(run, model, [text], ["p-1"])
    (ours,) = encode_prompts(model, [text], form)
    assert tokens_of_verl(contents, tmp_path, template) == [list(ours)] and lengths == [len(ours)]
    assert ours.count(0) == (1 if begins or form == "chat" else 0)
    assert contents == ["<s>" + text if begins and form == "base" else text]


PUBLISHED = "Let $x_1 < 2$.\n\n  ```python\ndef f(n):\n\treturn n  \n```\n Was ist \u00bd? \n"


@pytest.mark.parametrize("form", ["base", "chat"])
def test_problems_of_every_kind_have_the_prompt_of_evaluation(form: str, tmp_path: Path) -> None:
    """Of every family that is drawn, and as published sets have them, byte by byte."""
    model, _ = a_model(tmp_path, "<think>", True, True)
    run = make_run().model_copy(update={"prompt_form": form})
    texts = [draw(3, random.Random(1)).statement for draw in FAMILIES.values()] + [PUBLISHED]
    contents, lengths = prompts_by_verl(run, model, texts, [*FAMILIES, "published"])
    assert contents == texts and min(lengths) > 5
    opening = len("User: \nAssistant: ") + 1 if form == "chat" else 0  # the tag of thinking is one token
    assert lengths[-1] == len(PUBLISHED.encode()) + opening


def test_a_prompt_with_other_tokens_is_an_error(tmp_path: Path) -> None:
    model, run = checkpoint(tmp_path, begins=True), make_run()
    with pytest.raises(UserError, match="problem p-2: from token 3 on verl's prompt is another one") as error:
        prompts_by_verl(run, model, ["What is 1", "What is 1</s>"], ["p-1", "p-2"])
    assert "\n" not in str(error.value)


def test_an_end_that_verl_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = TEMPLATE.replace("U {{ turn.content }} <turn>", "{{ turn.content }} <turn>")
    model = checkpoint(tmp_path, begins=True)
    (tmp_path / "chat_template.jinja").write_text(chat)
    run = make_run().model_copy(update={"prompt_form": "chat"})
    with pytest.raises(InvalidInput, match=r"turns end with <turn> \(3\), which ends no rollout by verl"):
        require_ends(run, model)
    require_ends(make_run(), model)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [1, 3]})
    capsys.readouterr()
    require_ends(run, Checkpoint(tmp_path))
    assert capsys.readouterr().out == f"{run.run}: responses end with </s> (1), <turn> (3)\n"


def test_a_template_is_told_the_same_in_training_and_evaluation(tmp_path: Path, places: Places) -> None:
    model, told = checkpoint(tmp_path, begins=True), {"enable_thinking": False}
    opened = TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %}Answer{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(opened)
    found = []
    for kwargs in ({}, told):
        run = make_run().model_copy(update={"prompt_form": "chat", "chat_template_kwargs": kwargs})
        assert prompts_by_verl(run, model, ["What is 1"], ["p-1"])[0] == ["What is 1"]  # compared with evaluation's
        found.append(encode_prompts(model, ["What is 1"], "chat", template=kwargs)[0])
        assert launch(run, make_cluster(), places).overrides.get("++data.apply_chat_template_kwargs", {}) == kwargs
    assert found[0][:-1] == found[1]
    study = read_study_file(REPOSITORY / "config/papers/dapo.yaml")
    (name,) = study["models"]
    study["models"][name] |= {"prompt_form": "chat", "chat_template_kwargs": told}
    assert Study.resolve(study, "study").run_spec(f"{name}-dapo-s1").chat_template_kwargs == told
    local = read_study_file(REPOSITORY / "config/smollm2_smoke.yaml")
    local["models"]["smollm2"]["chat_template_kwargs"] = told
    of_run = Study.resolve(local, "study").trained_runs[0].run
    assert Study.resolve(local, "study").run_spec(of_run).chat_template_kwargs == told


@pytest.mark.parametrize("with_rows", [False, True])
def test_problems_are_messages_with_their_truths(with_rows: bool, tmp_path: Path) -> None:
    rows = [{"id": "train-0", "problem": "1 + 2", "answer": "3", "family": "f", "solution": "1 + 2 = 3"}]
    write_problem_set(tmp_path / "train", rows, {}, {}, {})
    more = {"verifier": {"directory": "results/verifiers/train", "version": 1}} if with_rows else {}
    content = {**make_run().to_json(), "prompt": "What is {problem} ?", **more}
    run = type(make_run()).parse(content, "run.json")
    write_prompts(run, tmp_path / "train", checkpoint(tmp_path / "model", True), tmp_path / "prompts.parquet")
    (row,) = parquet.read_table(tmp_path / "prompts.parquet").to_pylist()
    assert row["prompt"] == [{"role": "user", "content": "<s>What is 1 + 2 ?"}]
    assert row["extra_info"] == {"index": 0, "id": "train-0"}
    truth = row["reward_model"]["ground_truth"]
    assert json.loads(truth) == rows[0] if with_rows else truth == "3"


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("1 + 2", "1 + 2 + 1", "2")
    rows = [{"id": f"train-{n}", "problem": text, "answer": "3", "family": "f"} for n, text in enumerate(texts)]
    write_problem_set(tmp_path / "train", rows, {}, {}, {})
    model, path = checkpoint(tmp_path / "model", True), tmp_path / "prompts.parquet"

    def left_out(longest: int) -> int:
        content = {**make_run(max_prompt_tokens=longest).to_json(), "prompt": "What is {problem} ?"}
        return write_prompts(type(make_run()).parse(content, "run.json"), tmp_path / "train", model, path)

    assert left_out(9) == 0 and "left out" not in capsys.readouterr().out
    assert left_out(7) == 1  # <s> What is 1 + 2 ?
    assert "1 of 3 prompts have more than 7 tokens, and are left out" in capsys.readouterr().out
    assert [row["extra_info"]["id"] for row in parquet.read_table(path).to_pylist()] == ["train-0", "train-2"]
    with pytest.raises(InvalidInput, match="is 4; accepted: at least 5, the shortest prompt"):
        left_out(4)


# The run of a process of verl: its grader, and the numbers of its prompts.


def test_prompts_are_numbered_as_they_come() -> None:
    assert group_ids(["x", "a", "x", "b"]).tolist() == [0, 1, 0, 2]


def byte_level(directory: Path) -> tuple[Checkpoint, Tokenizer]:
    """A checkpoint whose tokens are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "config.json", {"model_type": "llama", "eos_token_id": 0})
    return Checkpoint(directory), tokenizer


VERIFIERS = Path(__file__).parents[3] / "config/verifiers"
VERIFIER = """
def verify(problem, response):
    return 0.25 if response == problem["solution"] else response == problem["answer"]
"""


CODE = json.dumps({"inputs": ["1 2"], "outputs": ["3"]})


@pytest.mark.parametrize(
    ("verifier", "row", "rewards"),
    [
        (None, None, {"2": 0, r"\boxed{2}": 1, "1 + 1": 0}),
        (VERIFIER, {"answer": "2", "solution": "1 + 1"}, {"2": 1, r"\boxed{2}": 0, "1 + 1": 0.25}),
        ("program.py", {"answer": "4567890123"}, {"b=a+4\n\\boxed{b}": 1, "b=a+3\n\\boxed{b}": 0}),
        ("program_tests.py", {"answer": CODE}, {"```python\nprint(3)\n```": 1, "```\nprint(input())\n```": 0}),
    ],
)
def test_rewards_are_those_of_the_grader_or_of_a_verifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verifier: str | None, row: Any, rewards: dict[str, float]
) -> None:
    content = run_content()
    if verifier is not None:
        content["verifier"] = {"directory": "results/verifiers/train", "version": 1}
        (tmp_path / "verl").mkdir()
        source = (VERIFIERS / verifier).read_text() if verifier.endswith(".py") else verifier
        (tmp_path / "verl/verifier.py").write_text(source)
    for variable, name, each in ((RUN_VARIABLE, "run.json", content), (CLUSTER_VARIABLE, "cluster.json", CLUSTER)):
        write_json(tmp_path / name, each)
        monkeypatch.setenv(variable, str(tmp_path / name))
    for cached in (registered.current_run, registered._pool):
        cached.cache_clear()
    truth = "2" if row is None else json.dumps({"id": "p", **row})
    checkpoint, tokenizer = byte_level(tmp_path)
    try:
        graded = {
            text: registered.grade(checkpoint, [], tokenizer.encode(text).ids, True, truth).reward for text in rewards
        }
        assert graded == rewards
    finally:
        registered._pool().close()
        for cached in (registered.current_run, registered._pool):
            cached.cache_clear()
