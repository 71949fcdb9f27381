"""Language models: created, loaded, trained, saved and reloaded, in the files that `transformers` reads."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from runcatalog import record
from textgames.models import loading, tiny
from textgames.models.loading import ModelConfig

GRID = [
    "\n".join("".join(f" {c} \t" for c in row) for row in rows)
    for rows in (("######", "#_P__#", "#_X__#", "##_O_#", "#S√__#", "######"), ("PO_G", "____"))
]
TEXTS = [*GRID, "<answer>Up</answer>", "<answer>1 (Up)</answer>", "<think>to the left</think>"] * 9
SMALL = {"width": 32, "layers": 2, "heads": 2, "device": "cpu"}
IDS = torch.tensor([[5, 80, 200, 7, 9, 30, 31, 260, 12, 99]])


@pytest.fixture
def started(tmp_path: Path, monkeypatch) -> Callable[..., record.Run]:
    """Start runs in separate folders below the test's."""
    torch.set_num_threads(1)
    for name in ("RUN_ID", "GUILD_OP", "RECORD", "PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RECORD_MLFLOW", "off")

    def start(config: record.Config, folder: str = "run") -> record.Run:
        monkeypatch.setenv("RUN_DIR", str(tmp_path / folder))
        return record.start(config, study="textgames")

    return start


def loaded_in(run: record.Run, **kind) -> loading.Loaded:
    return loading.load(run.config, run, lambda: TEXTS, **kind)


def step(loaded: loading.Loaded) -> float:
    """A large step of all weights that are trained; the loss before it."""
    loaded.model.train()
    with loaded.autocast():
        loss = loaded.model(IDS, labels=IDS).loss
    loss.backward()
    torch.optim.SGD(loading.trainable(loaded.model), lr=0.5).step()
    loaded.model.zero_grad()
    return loss.item()


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model.eval()(IDS).logits.float()


def folder_logits(folder: Path) -> torch.Tensor:
    return logits(AutoModelForCausalLM.from_pretrained(folder))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.write(folder, TEXTS, width=16, layers=1, heads=2, seed=1)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def fresh():
    return tiny.tokenizer_for(TEXTS)


@settings(max_examples=60, deadline=None)
@given(
    st.text()
    | st.lists(st.sampled_from([*GRID, " # \t", "\n", "<answer>", "√", "e\u0301"])).map("".join)
)
def test_tokens_decode_to_the_same_text(tokenizer, fresh, text: str) -> None:
    import unicodedata

    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == fresh(text, add_special_tokens=False)["input_ids"]
    decoded = tokenizer.decode(ids)
    assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", text)


def test_games_take_few_tokens(tokenizer) -> None:
    assert len(tokenizer(GRID[0])["input_ids"]) == 21  # 16 cells, 3 row breaks, first and last row
    assert len(tokenizer("<answer>Up</answer><|im_end|>")["input_ids"]) == 4


def test_initial_weights_depend_on_the_seed_alone(started) -> None:
    weights = {}
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(3)
        before = torch.random.get_rng_state()
        with started(ModelConfig(**SMALL, seed=seed), folder) as run:
            weights[folder] = loading.tensors(loaded_in(run))
            run.finish({})
        assert torch.equal(torch.random.get_rng_state(), before)
    name = "model.model.layers.0.mlp.up_proj.weight"
    assert all(torch.equal(weights["a"][part], weights["b"][part]) for part in weights["a"])
    assert not torch.equal(weights["a"][name], weights["c"][name])


@pytest.mark.parametrize(
    "kind",
    [{}, {"lora_rank": 4}, {"precision": "bf16"}, {"precision": "bf16", "lora_rank": 4},
     {"gradient_checkpointing": True}, {"lora_rank": 4, "gradient_checkpointing": True}],
    ids=lambda kind: "-".join(map(str, kind)) or "full",
)  # fmt: skip
def test_trained_weights_are_saved_and_reloaded(started, tmp_path: Path, kind) -> None:
    with started(ModelConfig(**SMALL, **kind)) as run:
        loaded = loaded_in(run)
        before = logits(loaded.model)
        later = loading.reference(loaded)
        step(loaded)
        assert (logits(loaded.model) - before).abs().max() > 0.01
        if later is None:  # the model without its LoRA is as it was
            with loaded.model.disable_adapter():
                assert torch.equal(logits(loaded.model), before)
        else:
            assert torch.equal(logits(later), before)
        trained = {parameter.dtype for parameter in loading.trainable(loaded.model)}
        assert trained == {torch.float32}
        loading.save(loaded, run.artifact("model/config.json").parent)
        run.checkpoint(1, loading.tensors(loaded) | {"critic": torch.zeros(2)}, {})
        run.finish({})
    saved = tmp_path / "run/artifacts/model"
    assert not any(
        "lora" in key for key in AutoModelForCausalLM.from_pretrained(saved).state_dict()
    )
    if loaded.config.precision == "fp32":
        torch.testing.assert_close(folder_logits(saved), logits(loaded.model), rtol=0, atol=1e-5)
    else:  # the same weights, products rounded
        with loaded.autocast():
            apart = (folder_logits(saved) - logits(loaded.model)).abs()
        assert apart.mean() < 0.05 * folder_logits(saved).abs().mean()
    expected = folder_logits(saved)
    for name in ("run", "run/artifacts/model", "run/checkpoints", "run/checkpoints/00000001"):
        with started(ModelConfig(model=str(tmp_path / name), device="cpu"), "other") as other:
            again = loaded_in(other, training=False)
            assert again.run_id == run.id
            assert not loading.trainable(again.model)
            torch.testing.assert_close(logits(again.model), expected, rtol=0, atol=1e-5)
            other.finish({})
        shutil.rmtree(tmp_path / "other")


def test_lora_applies_to_the_model_that_it_was_trained_on(started, tmp_path: Path) -> None:
    """A LoRA on a checkpoint that is itself a LoRA on a full training; and none of them on the tiny model of others."""
    before = "tiny"
    for name, kind in (
        ("full", {}),
        ("one", {"lora_rank": 2}),
        ("two", {"lora_rank": 3, "lora_alpha": 7.0}),
    ):
        with started(ModelConfig(**SMALL, model=before, seed=len(name), **kind), name) as run:
            loaded = loaded_in(run)
            step(loaded)
            run.checkpoint(1, loading.tensors(loaded), {})
            loading.save(loaded, tmp_path / f"{name}-saved")
            run.finish({})
        torch.testing.assert_close(
            folder_logits(tmp_path / f"{name}-saved"), logits(loaded.model), rtol=0, atol=1e-5
        )
        before = str(tmp_path / name)
    assert len(loaded.base.checkpoints) == 2


def test_all_weights_are_trained_on_a_lora_that_was_stopped(started, tmp_path: Path) -> None:
    """And a LoRA on the checkpoint of that training applies to what it learned."""
    before, trained = "tiny", torch.empty(0)
    for name, kind in (("lora", {"lora_rank": 2}), ("all", {}), ("last", {"lora_rank": 3})):
        with started(ModelConfig(**SMALL, model=before, **kind), name) as run:
            loaded = loaded_in(run)
            untrained = logits(loaded.model)
            if len(trained):
                torch.testing.assert_close(untrained, trained, rtol=0, atol=1e-3)
            step(loaded)
            trained = logits(loaded.model)
            assert (trained - untrained).abs().max() > 0.01
            run.checkpoint(1, loading.tensors(loaded), {})
            run.finish({})
        before = str(tmp_path / name)
    assert len(loaded.base.checkpoints) == 2


def test_four_bit_weights_carry_a_lora_that_learns(started, tmp_path: Path) -> None:
    """Its gradients are those on the same weights unpacked; what it learned goes into the unquantised ones."""
    from bitsandbytes.functional import dequantize_4bit

    grads = {}
    for name, quantise in (("packed", "4bit"), ("plain", "none")):
        with started(ModelConfig(**SMALL, lora_rank=4, quantise=quantise), name) as run:
            loaded = loaded_in(run)
            layers = dict(loaded.model.base_model.model.model.layers.named_modules())
            if name == "packed":
                packed, kept = layers, loaded
            for key, layer in layers.items():
                if name == "plain" and hasattr(layer, "base_layer"):
                    weight = packed[key].base_layer.weight
                    assert weight.dtype == torch.uint8
                    assert weight.quant_state.nested
                    layer.base_layer.weight.data = dequantize_4bit(weight, weight.quant_state)
            loaded.model(IDS, labels=IDS).loss.backward()
            grads[name] = [parameter.grad for parameter in loading.trainable(loaded.model)]
            run.finish({})
    assert len(grads["packed"]) == 2 * 7 * 2
    playing = logits(kept.model)
    torch.testing.assert_close(playing, kept.model.train()(IDS).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(playing, logits(loaded.model), rtol=0, atol=1e-5)
    for one, other in zip(*grads.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)

    adam, losses = torch.optim.Adam(loading.trainable(kept.model), lr=0.02), []
    for _ in range(30):
        loss = kept.model(IDS, labels=IDS).loss
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2  # frozen small embeddings keep it from falling much further
    loading.save(kept, tmp_path / "saved")
    first, saved = (
        AutoModelForCausalLM.from_pretrained(model_folder).model.layers[1].mlp.down_proj.weight
        for model_folder in (tmp_path / "packed" / loading.FIRST, tmp_path / "saved")
    )
    layer = packed["1.mlp.down_proj"]
    low = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(saved, first + low * (32 / 4), rtol=0, atol=1e-6)


def test_checkpointed_activations_give_the_same_gradients(started) -> None:
    gradients = []
    for kept in (False, True):
        with started(ModelConfig(**SMALL, gradient_checkpointing=kept), str(kept)) as run:
            loaded = loaded_in(run)
            loaded.model.train()
            loaded.model(IDS, labels=IDS).loss.backward()
            gradients.append([parameter.grad for parameter in loading.trainable(loaded.model)])
            run.finish({})
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_hub_model_is_loaded_from_the_cache(started, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached = tmp_path / "cache/models--some--small"
    tiny.write(cached / "snapshots/abc", TEXTS, width=16, layers=1, heads=2, seed=3)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("abc")
    with started(ModelConfig(model="some/small", device="cpu")) as run:
        loading.check(run.config, 100)
        assert torch.equal(logits(loaded_in(run).model), folder_logits(cached / "snapshots/abc"))
        run.finish({})
    (cached / "snapshots/abc/model.safetensors").unlink()
    with pytest.raises(record.UserError, match="not on this machine"):
        loading.find("some/small")


def test_wrong_models_are_one_line_errors_before_anything_is_loaded(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "short"
    tiny.write(folder, TEXTS, width=16, layers=1, heads=2, seed=1)
    model_config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(model_config | {"max_position_embeddings": 64}))
    (tmp_path / "torn").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "torn")
    (tmp_path / "empty").mkdir()
    cases = [
        ({"model": "Qwen/Qwen2.5-0.5B-Instruct"}, "not on this machine.*hf download.*model=tiny"),
        ({"model": "no name"}, "neither a name of a hub's model.*model=tiny"),
        ({"model": "./nowhere"}, "no directory.*model=tiny"),
        ({"model": str(tmp_path / "torn")}, "has no model.safetensors"),
        ({"model": str(tmp_path / "empty")}, "no config.json.*model=tiny"),
        ({"model": str(folder)}, "--max-turns: .* 100 tokens.* at most 64"),
        ({"quantise": "4bit"}, "--quantise: .*lora-rank=64"),
    ]
    if not torch.cuda.is_available():
        cases.append(({"device": "cuda"}, "--device: .*no GPU"))
    for flags, line in cases:
        with pytest.raises(record.UserError, match=line) as caught:
            loading.check(ModelConfig(**flags), 100)
        assert "\n" not in str(caught.value)
    with pytest.raises(record.UserError, match="--width: 100"):
        ModelConfig(width=100, heads=3)


def test_code_in_the_folder_of_a_model_is_not_run_whoever_answers(
    started, tmp_path: Path, monkeypatch
) -> None:
    """`transformers` would ask whether to run it, and `y` stands in the input."""
    folder, ran = tmp_path / "hostile", tmp_path / "ran"
    tiny.write(folder, TEXTS, width=16, layers=1, heads=2, seed=1)
    code = f"open({str(ran)!r}, 'w')\nfrom transformers import PretrainedConfig, PreTrainedModel\n"
    code += "class C(PretrainedConfig):\n    model_type = 'hostile'\n"
    code += "class M(PreTrainedModel):\n    config_class = C\n"
    code += "class T:\n    from_pretrained = classmethod(lambda *a, **k: None)\n"
    (folder / "hostile.py").write_text(code)
    models = {"AutoConfig": "hostile.C", "AutoModelForCausalLM": "hostile.M"}
    for part, changes in {
        "config.json": {"model_type": "hostile", "architectures": ["M"], "auto_map": models},
        "tokenizer_config.json": {
            "tokenizer_class": "T",
            "auto_map": {"AutoTokenizer": ["hostile.T", None]},
        },
    }.items():
        content = json.loads((folder / part).read_text())
        (folder / part).write_text(json.dumps(content | changes))
    answers = io.StringIO("y\n" * 9)
    monkeypatch.setattr("sys.stdin", answers)
    words = rf"--model: {folder} needs code of its own"
    with pytest.raises(record.UserError, match=words) as caught:
        loading.pretrained(AutoTokenizer, folder)
    assert "\n" not in str(caught.value)
    with (
        pytest.raises(record.UserError, match=words),
        started(ModelConfig(model=str(folder), device="cpu")) as run,
    ):
        loaded_in(run)
    assert not ran.exists()
    assert not answers.tell()
