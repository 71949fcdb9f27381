"""RAGEN's commands, which name Qwen2.5, with a small local folder of that architecture."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.textgames import qwen_folders
from transformers import AutoConfig, AutoModelForCausalLM

import prepared
from runcatalog import record
from runcatalog.model.project import Project
from textgames import sft, train
from textgames.games.config import GAMES
from textgames.models import memory, sources

ROOT = Path(__file__).parents[2]
SCRIPTS = {"src/textgames.train": train, "src/textgames.sft": sft}
OPERATIONS = {
    name.partition(":")[2]: operation
    for name, operation in Project.find(ROOT).operations().items()
    if str(operation.flags.get("model", "")).startswith("Qwen/Qwen2.5-")
}
ALONE = [name for name, operation in OPERATIONS.items() if operation.flags.get("processes", 1) == 1]
FEWER = {"device": "cpu", "val-data-num": 2, "max-response-length": 4, "max-turns": 2}
FEWER_OF = {
    train: {"updates": 1, "train-size": 32},
    sft: {"epochs": 1, "train-levels": 4, "test-levels": 2, "batch-size": 4},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[bool, Path]:
    """A folder with tied embeddings, as the smaller models have, and one with its own and in parts, as 7B."""
    root = tmp_path_factory.mktemp("models")
    return {
        tied: qwen_folders.write(
            root / str(tied), qwen_folders.SMALL | {"tie_word_embeddings": tied},
            max_shard_size="5GB" if tied else "40KB",
        )
        for tied in (True, False)
    }  # fmt: skip


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch) -> Path:
    torch.set_num_threads(1)
    for name in ("RUN_ID", "GUILD_OP", "RECORD", "PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def command_line(name: str, folder: Path) -> list[str]:
    """The flags of an operation as Guild passes them, with the folder and less to do."""
    flags = OPERATIONS[name].flags | FEWER | FEWER_OF[SCRIPTS[OPERATIONS[name].main]]
    words = [[f"--{flag}", str(value)] for flag, value in (flags | {"model": str(folder)}).items()]
    return list(itertools.chain(*words))


def check_trained(run: Path, folder: Path) -> None:
    """A run ended well: finite losses, and other weights of the same model than before."""
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "FINISHED"
    points = [json.loads(line) for line in (run / "journal/metrics.jsonl").read_text().splitlines()]
    assert any("grad_norm" in str(point) for point in points)
    before, after = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
        for model in (folder, run / "artifacts/model")
    )
    assert before.keys() == after.keys()
    changes = {name: (after[name] - weight).abs().max().item() for name, weight in before.items()}
    assert max(changes.values()) > 0
    assert all(change < 0.1 for change in changes.values())  # not another model; NaN is not below
    kinds = [AutoConfig.from_pretrained(model) for model in (folder, run / "artifacts/model")]
    assert kinds[0].tie_word_embeddings == kinds[1].tie_word_embeddings


def test_there_are_18_commands_of_every_game_and_size() -> None:
    assert len(OPERATIONS) == 18
    assert {operation.flags["env"] for operation in OPERATIONS.values()} == set(GAMES)
    sizes = {operation.flags["model"].split("-")[1] for operation in OPERATIONS.values()}
    assert sizes == {"0.5B", "1.5B", "3B", "7B"}


@pytest.mark.parametrize("name", ALONE)
def test_a_command_trains_a_model_of_a_local_folder(folders, run_folder, name: str) -> None:
    script, folder = SCRIPTS[OPERATIONS[name].main], folders["3B" not in name]
    config = record.parse(script.Config, command_line(name, folder))
    assert config.precision == "bf16"
    assert config.gradient_checkpointing
    script.main(config)
    check_trained(run_folder, folder)


def test_the_command_of_two_processes_shares_the_model(folders, run_folder) -> None:
    (name,) = OPERATIONS.keys() - set(ALONE)
    words = [prepared.python(), str(ROOT / "src/textgames/train.py")]
    process = prepared.Process([*words, *command_line(name, folders[False])])
    assert process.wait(540) == 0
    check_trained(run_folder, folders[False])


def test_models_that_cannot_be_used_are_errors_before_the_run_starts(
    folders, run_folder, tmp_path: Path
) -> None:
    def changed(name: str, *removed: str, **config) -> Path:
        folder = shutil.copytree(folders[True], tmp_path / name)
        for file in removed:
            (folder / file).unlink()
        stored = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(stored | config))
        return folder

    cut = changed("cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:2000])
    indexed = changed("indexed")
    (indexed / "model.safetensors.index.json").write_text('{"weight_map": [')
    torn = changed("torn")
    (torn / "config.json").write_text("{")
    tokens = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    other = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    cases = [
        (tmp_path / "missing", "is no directory"),
        (tmp_path, "no config.json.* no run or checkpoint"),
        (changed("weightless", "model.safetensors"), "has no model.safetensors"),
        (changed("silent", "chat_template.jinja"), "no chat template"),
        (changed("wordless", *tokens), "no tokenizer"),
        (changed("other", **other), "T5ForConditionalGeneration, which is no causal language model"),
        (changed("unknown", model_type="none", architectures=["None"]), "does not recognize"),
        (changed("narrow", vocab_size=100), "has 502 tokens, the model 100"),
        (cut.parent, "model.safetensors is damaged"),
        (torn, "not a valid JSON file"),
        (indexed, "has a damaged model.safetensors.index.json"),
    ]  # fmt: skip
    for folder, line in cases:
        config = record.parse(train.Config, command_line(ALONE[-1], folder))
        with pytest.raises(record.UserError, match=line) as caught:
            train.main(config)
        assert "\n" not in str(caught.value)
    assert not run_folder.exists()


@pytest.mark.parametrize(
    "config", [{"intermediate_size": 96}, {"num_hidden_layers": 3, "layer_types": None}]
)
def test_weights_that_the_files_lack_are_not_made_up(folders, tmp_path: Path, config) -> None:
    folder = shutil.copytree(folders[True], tmp_path / "model")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | config))
    with pytest.raises(record.UserError, match=r"not those of its config\.json"):
        sources.load_weights(folder)


def test_a_model_that_exceeds_the_memory_is_an_error_before_the_run_starts(
    folders, run_folder, monkeypatch
) -> None:
    """The bytes of a weight are those of the tensors that a training of a loaded model has."""
    folder = folders[True]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(9)[None], labels=torch.arange(9)[None]).loss.backward()
    optimizer.step()
    tensors = [t for p in model.parameters() for t in (p, p.grad, p, *optimizer.state[p].values())]
    needed = sum(tensor.nbytes for tensor in tensors if tensor.numel() > 1)  # p twice: a copy
    config = record.parse(train.Config, command_line("sokoban_0_5B_instruct_ragen_main", folder))
    monkeypatch.setattr(memory, "_machine", lambda: needed - 1)
    with pytest.raises(record.UserError, match=r"--model: .*lora-rank=64"):
        train.main(config)
    assert not run_folder.exists()
    monkeypatch.setattr(memory, "_machine", lambda: needed)
    memory.check(config, reference=True)
    lora = record.parse(sft.Config, command_line("sokoban_0_5B_instruct_sft", folder))
    frozen = sum(weight.numel() for weight in model.parameters()) * 2  # bf16
    monkeypatch.setattr(memory, "_machine", lambda: frozen - 1)
    with pytest.raises(record.UserError, match="--model"):
        memory.check(lora)
    monkeypatch.setattr(memory, "_machine", lambda: frozen)
    memory.check(lora)
