"""Supervised training: texts and masks against conversations built by hand, the loss, and whole runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from runcatalog import record
from runcatalog.record.evaluation import outcomes_of
from textgames import sft
from textgames.games import bounds, example_texts, levels, solver, wording
from textgames.games.config import make_game
from textgames.learning import demonstrations
from textgames.learning.demonstrations import texts
from textgames.learning.imitation import (
    ImitationSettings,
    SupervisedLearner,
    evaluate,
    updates_per_epoch,
)
from textgames.models import loading, tiny
from textgames.models.trajectories import Text

SMALL = {"width": 32, "layers": 1, "heads": 2, "device": "cpu", "max_response_length": 8}
GAMES = {
    "sokoban": {"env": "sokoban"},
    "two boxes": {"env": "sokoban", "boxes": 2, "size": 7},
    "lake": {"env": "frozenlake"},
    "firm lake": {"env": "frozenlake", "slippery": False},
    "bandit": {"env": "bandit"},
}
FORMS = {
    "whole": {"context": "whole", "think": False},
    "thought": {"context": "whole", "think": True},
    "numbers": {"context": "whole", "think": False, "numbers": True},
    "last": {"context": "last", "think": True},
    "no_think_rl": {"context": "last", "think": True, "no_think_rl": True, "prompt": "grid"},
}


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer_for(example_texts.texts(sft.Config()))


def by_hand(config: sft.Config, seed: int, tokenizer) -> list[tuple[list[int], list[bool]]]:
    """(tokens, loss mask) per reply, by the chat template over a list of messages."""
    game = make_game(config)
    game.reset(np.array([seed]))
    messages, replies, coded_texts = [], [], []
    thought = "<think></think>" if config.think else ""
    if config.no_think_rl:
        thought = "<think>"
    message = wording.first_prompt(config, game, 0, think=config.think)
    for action in solver.solutions(config, np.array([seed]))[0]:
        if config.context == "last":
            messages, replies = [], []
            message = wording.first_prompt(config, game, 0, think=config.think)
        reply = f"<answer>{action if config.numbers else game.actions[action - 1]}</answer>"
        messages += [
            {"role": "user", "content": message},
            {"role": "assistant", "content": thought + reply},
        ]
        replies.append(thought.removeprefix("<think>") + reply + "<|im_end|>")
        outcome = game.step(np.array([action]), np.array([0]))
        message = wording.feedback(config, game, 0, True, float(outcome.reward[0]), bool(outcome.done[0]))  # fmt: skip
        whole = tokenizer.apply_chat_template(messages, tokenize=False).removesuffix("\n")
        coded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        counted = np.zeros(len(whole), bool)
        at = 0
        for text in replies:
            at = whole.index(text, at)
            counted[at : at + len(text)] = True
            at += len(text)
        mask = [bool(counted[start:end].all()) for start, end in coded["offset_mapping"]]
        coded_texts.append((coded["input_ids"], mask))
    assert game.success[0]
    return coded_texts if config.context == "last" else coded_texts[-1:]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", GAMES)
def test_tokens_and_masks_are_those_of_conversations_by_hand(
    kind: str, form: str, tokenizer
) -> None:
    config = sft.Config(**GAMES[kind], **FORMS[form])
    chosen, _ = demonstrations.seeds(config, 6, 1)
    actual = texts(config, chosen, tokenizer, np.random.default_rng(0))
    expected = {
        (tuple(ids), tuple(mask))
        for seed in chosen
        for ids, mask in by_hand(config, seed, tokenizer)
    }
    assert {(tuple(text.tokens), tuple(text.turns >= 0)) for text in actual} == expected
    for text in actual:
        turns = text.turns[text.turns >= 0]
        assert (np.diff(turns) >= 0).all()
        assert config.context == "last" or set(turns) == set(range(turns[-1] + 1))


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("kind", ["sokoban", "lake"])
def test_seeds_share_no_level(kind: str, augment: bool) -> None:
    config = sft.Config(**GAMES[kind], val_data_num=600)
    train, test = demonstrations.seeds(config, 400, 60, augment=augment)
    assert (len(train), len(test)) == (400, 60)
    if augment:  # which turns and mirrors the levels
        turned = [set(levels.symmetric_keys(config, seeds)) for seeds in (train, test)]
        assert not turned[0] & turned[1]
    keys = [
        set(levels.level_keys(config, seeds))
        for seeds in (train, test, levels.validation(config, 600))
    ]
    assert not keys[0] & keys[1]
    assert not (keys[0] | keys[1]) & keys[2]
    assert all(
        solution is not None for solution in solver.solutions(config, np.concatenate([train, test]))
    )


@pytest.mark.parametrize("kind", ["sokoban", "lake"])
def test_after_wandering_the_solver_still_takes_shortest_ways(kind: str, tokenizer) -> None:
    config = sft.Config(**GAMES[kind], context="last", think=False, prompt="grid")
    chosen, _ = demonstrations.seeds(config, 60, 1)
    wandering = texts(config, chosen, tokenizer, np.random.default_rng(1), wander=4)
    plain = texts(config, chosen, tokenizer, np.random.default_rng(1), safe=True)
    starts = {tokenizer.decode(text.tokens) for text in plain}
    assert any(tokenizer.decode(text.tokens) not in starts for text in wandering)
    game = make_game(config)
    for text in wandering:
        shown = tokenizer.decode(text.tokens[text.turns < 0])
        reply = tokenizer.decode(text.tokens[text.turns >= 0]).removesuffix("<|im_end|>")
        grid = shown.split("user\n")[1].split("<|im_end|>")[0].splitlines()
        action = wording.parse(game, reply)
        assert action > 0
        if kind == "sokoban":
            codes = {"#": 1, "_": 0, "O": 2, "X": 4, "√": 6, "P": 8, "S": 10}
            inner = np.array([[codes[cell] for cell in row.split()] for row in grid], np.uint8)
            cells = np.pad(inner, 1, constant_values=1)[None]
            before = solver.lengths(cells)[0]
            game.load(cells)
            game.step(np.array([action]), np.array([0]))
            assert game.success[0] or solver.lengths(game.cells)[0] == before - 1
    whole = texts(
        replace(config, context="whole"), chosen, tokenizer, np.random.default_rng(1), wander=4
    )
    # Random moves are in the text, without loss
    assert any(text.turns[text.turns >= 0][0] > 0 for text in whole)


@pytest.mark.parametrize("kind", ["lake", "firm lake"])
def test_after_wandering_on_ice_the_solver_uses_the_known_slips(kind, tokenizer) -> None:
    """Demonstrations take a shortest way among those that reach the goal with the slips of the seed."""
    config = sft.Config(**GAMES[kind], context="whole", think=False, prompt="grid")
    chosen, _ = demonstrations.seeds(config, 80, 1)
    astray, game = 0, make_game(config)
    for seed in chosen:
        for text in texts(
            config, np.array([seed]), tokenizer, np.random.default_rng(seed), wander=4
        ):
            replies = re.findall("<answer>.*?</answer>", tokenizer.decode(text.tokens))
            count = len(set(text.turns[text.turns >= 0]))
            game.reset(np.array([seed]))
            for left, reply in zip(range(len(replies), 0, -1), replies, strict=True):
                if left == count:
                    (way,) = solver.walk(game.cells, game.player, game.slips(np.array([0])))
                    assert len(way) == count
                game.step(np.array([wording.parse(game, reply)]), np.array([0]))
            assert game.success[0]
            astray += len(replies) > count
    assert astray > 20


def test_turns_that_do_not_fit_are_left_out(tokenizer) -> None:
    config = sft.Config(env="sokoban", context="whole", prompt="grid", think=False)
    chosen, _ = demonstrations.seeds(config, 40, 1)
    whole = texts(config, chosen, tokenizer, np.random.default_rng(0))
    cut = texts(config, chosen, tokenizer, np.random.default_rng(0), max_length=100)
    assert max(len(text.tokens) for text in whole) > 100 >= max(len(text.tokens) for text in cut)
    for one, other in zip(whole, cut, strict=True):
        length = len(other.tokens)
        assert (one.tokens[:length] == other.tokens).all()
        assert (one.turns[:length] == other.turns).all()
        assert other.turns[-1] >= 0


@pytest.fixture
def started(tmp_path: Path, monkeypatch):
    torch.set_num_threads(1)
    for name in ("RUN_ID", "GUILD_OP", "RECORD", "PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RECORD_MLFLOW", "off")

    def start(name: str) -> None:
        monkeypatch.setenv("RUN_DIR", str(tmp_path / name))

    start("run")
    return start


def learner_of(loaded: loading.Loaded, examples: list[Text], micro: int) -> SupervisedLearner:
    settings = ImitationSettings(
        updates=10, batch_size=12, micro_batch_size=micro, lr=1e-3, warm_up=0.1
    )
    return SupervisedLearner(loaded, examples, settings, record.Seeds(3))


def test_the_loss_is_that_of_transformers_with_labels(started) -> None:
    """All texts padded into one batch, other labels -100, all logits; however many texts are computed together."""
    config = sft.Config(**SMALL, env="sokoban", context="whole", think=False)
    with record.start(config, study="textgames") as run:
        loaded = loading.load(config, run, lambda: example_texts.texts(config))
        run.finish({})
    examples = texts(
        config, demonstrations.seeds(config, 12, 1)[0], loaded.tokenizer, np.random.default_rng(0)
    )
    longest = max(len(example.tokens) for example in examples)
    ids, labels = torch.zeros(12, longest, dtype=torch.int64), torch.full((12, longest), -100)
    for row, example in enumerate(examples):
        length, counted = len(example.tokens), torch.from_numpy(example.turns >= 0)
        ids[row, :length] = torch.from_numpy(example.tokens)
        labels[row, :length] = torch.where(counted, ids[row, :length], -100)
    logits = loaded.model(input_ids=ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    expected.backward()
    norm = torch.stack([weight.grad.norm() for weight in loading.trainable(loaded.model)]).norm()
    first = {name: weight.clone() for name, weight in loading.tensors(loaded).items()}
    assert evaluate(loaded, examples, 5)["loss"] == pytest.approx(expected.item(), rel=1e-5)
    hits = (logits.argmax(-1)[:, :-1] == labels[:, 1:]) | (labels[:, 1:] < 0)
    assert evaluate(loaded, examples, 5)["right"] <= hits.float().mean()
    for micro in (12, 4, 1):
        loading.restore(loaded, first)
        metrics = learner_of(loaded, examples, micro).learn()
        assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
        assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_every_text_is_used_once_per_epoch(started) -> None:
    config = sft.Config(**SMALL, env="bandit", context="last", think=False)
    with record.start(config, study="textgames") as run:
        loaded = loading.load(config, run, lambda: example_texts.texts(config))
        run.finish({})
    examples = [Text(np.array([i, 1]), np.array([-1, 0])) for i in range(30)]
    learner, batches = learner_of(loaded, examples, 12), []
    assert updates_per_epoch(30, 12) == 3
    for _ in range(6):
        batches.append(learner.batch_indices())
        learner.learn()
    orders = [np.concatenate(batches[:3]), np.concatenate(batches[3:])]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert (orders[0] != orders[1]).any()


TRAINED = SMALL | {
    "env": "sokoban", "prompt": "grid", "context": "last", "think": False, "train_levels": 30, "test_levels": 6,
    "epochs": 3, "batch_size": 32, "micro_batch_size": 16, "lr": 5e-3, "val_data_num": 8, "max_turns": 3,
}  # fmt: skip


def trained(started, name: str, **more) -> dict:
    started(name)
    sft.main(sft.Config(**TRAINED | more))
    return json.loads((Path(record.run.os.environ["RUN_DIR"]) / "result.json").read_text())


@pytest.mark.parametrize(
    ("kind", "saved_at"),
    [({}, 4), ({"lora_rank": 2, "test_freq": 4}, 4),
     ({"epochs": 1, "batch_size": 8, "micro_batch_size": 8, "save_freq": 3}, 6)],
    ids=["full", "lora", "within an epoch"],
)  # fmt: skip
def test_an_interrupted_run_ends_with_the_same_weights(
    started, tmp_path: Path, monkeypatch, kind, saved_at
) -> None:
    whole = trained(started, "whole", **kind)
    learn = SupervisedLearner.learn

    def breaks(self: SupervisedLearner) -> dict[str, float]:
        if self.update == 7:
            raise OSError("the machine goes down")
        return learn(self)

    monkeypatch.setattr(SupervisedLearner, "learn", breaks)
    with pytest.raises(OSError, match="goes down"):
        trained(started, "broken", **kind)
    assert record.load_checkpoint(tmp_path / "broken").state["pupil"]["update"] == saved_at
    monkeypatch.setattr(SupervisedLearner, "learn", learn)
    resumed = trained(started, "broken", **kind)
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"] == whole["result"]
    saved = [tmp_path / name / "artifacts/model/model.safetensors" for name in ("whole", "broken")]
    assert saved[0].read_bytes() == saved[1].read_bytes()


def test_the_weights_with_the_lowest_validation_loss_are_kept(
    started, tmp_path: Path, monkeypatch
) -> None:
    """Later weights are spoilt, so that the first validation after the start is the best."""
    learn = SupervisedLearner.learn

    def spoilt(self: SupervisedLearner) -> dict[str, float]:
        metrics = learn(self)
        if self.update >= 4:
            for weight in loading.trainable(self.loaded.model):
                weight.data.mul_(1.5)
        return metrics

    monkeypatch.setattr(SupervisedLearner, "learn", spoilt)
    result = trained(started, "run", test_freq=2)["result"]
    lines = (tmp_path / "run/journal/metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    losses = [
        (point["m"]["validation/loss"], point["step"])
        for point in points
        if "validation/loss" in point["m"]
    ]
    best, at = min(losses)
    assert 0 < at < losses[-1][1]
    assert result["objective"]["at"] == at
    config = sft.Config(**TRAINED | {"model": str(tmp_path / "run")})
    started("again")
    with record.start(config, study="textgames") as run:
        loaded = loading.load(config, run, list, training=False)
        seeds = demonstrations.seeds(config, 30, 6)[1]
        others = texts(config, seeds, loaded.tokenizer, np.random.default_rng(0))
        assert evaluate(loaded, others, 16)["loss"] == pytest.approx(best, rel=1e-5)
        run.finish({})


def test_a_trained_model_chooses_as_demonstrated(started) -> None:
    """Of a bandit's two names, in either order, the one that the demonstrations choose; a chance of 1/2 before."""
    kind = {"env": "bandit", "train_levels": 64, "epochs": 30, "lr": 0.02, "val_data_num": 60}
    assert trained(started, "run", **kind)["result"]["metrics"]["greedy/success"] == 1.0


def test_further_games_are_learned_on_the_levels_that_each_has_alone(started) -> None:
    config = sft.Config(**TRAINED | {"size": 7, "further_games": "bandit frozenlake"})
    own = replace(config, further_games="")
    alone = [own, *(replace(own, env=env, size=0) for env in ("bandit", "frozenlake"))]
    with record.start(config, study="textgames") as run:
        loaded = loading.load(config, run, lambda: example_texts.texts(config))
        together = sft.solver_texts(config, run, loaded)
        separate = [sft.solver_texts(game, run, loaded) for game in alone]
        run.finish({})
    for number, joined in enumerate(together):
        expected = [text for parts in separate for text in parts[number]]
        assert len(joined) == len(expected) > max(len(parts[number]) for parts in separate)
        for one, other in zip(joined, expected, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.turns.tolist() == other.turns.tolist()


def test_a_result_on_a_test_set_is_declared_and_has_its_levels(started) -> None:
    results = {
        name: trained(started, name, epochs=1, final_levels=name)["result"]
        for name in ("validation", "test", "test_hard")
    }
    config = sft.Config(**TRAINED)
    for name, result in results.items():
        assert result["evaluation"]["split"] == name.partition("_")[0]
        assert result["evaluation"]["name"] == f"{name} levels"
        keys = levels.level_keys(config, levels.evaluation(config, name, 8))
        assert (
            outcomes_of(result)["success"].levels
            == record.level_outcomes(keys, {"success": np.zeros(8, bool)})["levels"]
        )
    assert len({result["evaluation"]["digest"] for result in results.values()}) == 3


def test_augmented_copies_are_turned_and_have_as_many_actions(started) -> None:
    """As many replies as the level has moves, whatever its position."""
    started("augmented")
    own = TRAINED | {"copies": 3, "final_levels": "test"}
    config = sft.Config(**own | {"augment": True})
    with record.start(config, study="textgames") as run:
        loaded = loading.load(config, run, lambda: example_texts.texts(config))
        turned, validated = sft.game_texts(config, run, loaded)
        run.finish({})
    plain, others = (
        demonstrations.texts(config, seeds, loaded.tokenizer, np.random.default_rng(0))
        for seeds in demonstrations.seeds(config, 30, 6, augment=True)
    )
    assert len(turned) == 3 * len(plain)
    texts = {tuple(text.tokens.tolist()) for text in turned}
    assert len(texts) > 1.5 * len({tuple(text.tokens.tolist()) for text in plain})
    assert [text.tokens.tolist() for text in validated] == [text.tokens.tolist() for text in others]
    with pytest.raises(record.UserError, match="--augment: only Sokoban"):
        sft.main(sft.Config(**own | {"augment": True, "env": "frozenlake"}))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch_size": 10}, "--micro-batch-size: 4 does not divide batch-size"),
        ({"copies": 2}, "--copies: .*give wander"),
        ({"env": "sokoban", "augment": True}, "--augment: .*final-levels=validation_disjoint"),
        ({"safe": True, "teacher": "optimal"}, "--safe: belongs to teacher=solver"),
        ({"lr": 0.0}, "--lr"),
        (
            {"further_games": "sokoban chess"},
            "--further-games: 'sokoban chess' is no list of games",
        ),
        ({"further_games": "sokoban sokoban"}, "--further-games"),
    ],
)
def test_wrong_flags_are_named(flags: dict, message: str) -> None:
    sft.Config(copies=2, teacher="chance")  # whose copies differ
    with pytest.raises(record.UserError, match=message):
        sft.Config(**flags)


def test_a_grid_with_too_few_levels_is_named() -> None:
    """Of 5 x 5 cells there are few levels, and nearly all of them are in the training, turned or mirrored."""
    config = sft.Config(env="sokoban", size=5, augment=True, final_levels="test")
    words = r"--test-levels: 130, but of 1040 levels beyond the 4000 .* only [01] are others"
    with pytest.raises(record.UserError, match=words):
        demonstrations.seeds(config, 4_000, 130, augment=True)


def test_a_length_into_which_nothing_fits_is_named(started) -> None:
    with pytest.raises(record.UserError, match="--max-length: no reply fits"):
        trained(started, "run", prompt="full", max_length=40)


@pytest.mark.parametrize("context", ["whole", "last"])
def test_optimal_demonstrations_succeed_more_often_than_shortest_ways(context, tokenizer):
    """Played with the optimal actions, games succeed as often as the optimal player, within the sampling error."""
    config = sft.Config(**GAMES["lake"], context=context, think=False, prompt="grid", max_turns=25)
    chosen = levels.training(config, 600)
    best = bounds.success_rates(config, chosen, config.max_steps).optimal[:, -1].mean()
    share = {}
    for name, flags in {"optimal": {"teacher": "optimal"}, "shortest": {"safe": True}}.items():
        game, rng = make_game(config), np.random.default_rng(0)
        game.reset(chosen)
        replies = iter(
            re.findall("<answer>.*?</answer>", tokenizer.decode(text.tokens[text.turns >= 0]))
            for text in texts(config, chosen, tokenizer, rng, **flags)
        )
        if context == "whole":
            for b, actions in enumerate(replies):
                for reply in actions:
                    game.step(np.array([wording.parse(game, reply)]), np.array([b]))
        else:
            while len(active := np.flatnonzero(~game.done)):
                actions = [wording.parse(game, next(replies)[0]) for _ in active]
                game.step(np.array(actions), active)
        share[name] = game.success.mean()
    assert share["optimal"] > share["shortest"] + 0.1
    assert share["optimal"] == pytest.approx(best, abs=4 * 0.5 / np.sqrt(len(chosen)))


def test_the_optimal_teacher_is_frozenlakes_alone(started) -> None:
    with pytest.raises(record.UserError, match="--teacher: optimal is FrozenLake's"):
        trained(started, "run", env="sokoban", teacher="optimal")


@pytest.mark.parametrize("context", ["whole", "last"])
@pytest.mark.parametrize("env", ["bandit", "sokoban", "frozenlake"])
def test_random_demonstrations_have_uniform_actions_and_at_most_the_allowed_turns(
    env, context, tokenizer
):
    config = sft.Config(env=env, context=context, think=False, max_turns=3)
    chosen = levels.training(config, 300)
    examples = texts(config, chosen, tokenizer, np.random.default_rng(4), teacher="chance")
    replies = [
        tokenizer.decode(text.tokens[text.turns == turn])
        for text in examples
        for turn in np.unique(text.turns[text.turns >= 0])
    ]
    game = make_game(config)
    actions = np.array([wording.parse(game, reply.removesuffix("<|im_end|>")) for reply in replies])
    shares = np.bincount(actions, minlength=len(game.actions) + 1) / len(actions)
    assert shares[0] == 0
    assert shares[1:] == pytest.approx([1 / len(game.actions)] * len(game.actions), abs=0.06)
    assert max(int(text.turns.max()) for text in examples) <= 2
