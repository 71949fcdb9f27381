"""Updates: step sizes, parts of a batch, what is learned."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from darkroom import train_ad
from darkroom.a2c import histories
from darkroom.distillation import task_split, update
from darkroom.distillation.ad_options import Config
from runcatalog import record
from runcatalog.record import Seeds
from small_histories import SMALL, recorded


def learner_of(config: Config) -> update.Learner:
    opened = task_split.open_histories(config)
    splits, seeds = task_split.split_tasks(config, opened), Seeds(1)
    sampler = train_ad.training_windows(config, opened, splits, seeds.generator("windows"))
    return update.Learner(config, config.shape(4, 6), sampler, seeds)


def test_the_step_size_rises_and_falls():
    settings = Config(lr=0.5, lr_min=0.1, warmup=10, updates=100).settings()
    sizes = [update.learning_rate(settings, u) for u in range(100)]
    assert sizes[0] == pytest.approx(0.05, rel=1e-2)
    assert max(sizes) == sizes[9]
    assert all(after < before for before, after in itertools.pairwise(sizes[9:]))
    assert sizes[50] == pytest.approx(0.3)
    assert 0.1 < sizes[-1] < 0.101


def test_it_learns_a_deterministic_policy(tmp_path):
    """Agents that go by the cell that they are in: nothing is left to chance."""
    folder = recorded(tmp_path / "certain", steps=200)
    opened = histories.Histories.open(folder, mode="r+")
    opened.actions[:] = opened.cells % 5
    opened.flush()
    config = Config(
        **{**SMALL, "histories": str(folder), "updates": 80, "lr": 1e-2, "batch_size": 16}
    )
    learner = learner_of(config)
    losses = [float(learner.update()) for _ in range(80)]
    assert abs(np.mean(losses[:2]) - np.log(5)) < 0.1
    assert np.mean(losses[-5:]) < 0.7


@pytest.mark.parametrize("learned_weight", [1.0, 4.0, 0.1])
def test_the_loss_weighs_what_a_learned_agent_does(tmp_path, learned_weight):
    """In parts and at once, against the gradient of a mean that is written out."""
    folder = recorded(tmp_path / "learning", steps=200)
    opened = histories.Histories.open(folder, mode="r+")
    opened.rewards[:] = np.arange(opened.rewards.shape[-1]) % 200 > 100  # all learn halfway
    opened.flush()
    config = Config(**{**SMALL, "histories": str(folder), "learned_weight": learned_weight})
    learner = learner_of(config)
    learner.model.eval()  # without dropout
    drawn, coordinates = learner.sampler.draw(6), None
    assert len(np.unique(drawn.weights)) > 1 or learned_weight == 1
    loss = update.add_gradients(
        learner.model, drawn, coordinates, label_smoothing=0.0, windows_at_once=4, precision="fp32"
    )
    found = learner.model.head.weight.grad.clone()
    learner.model.zero_grad()
    log_policy = learner.model(drawn.context).log_softmax(dim=-1)
    total = sum(
        float(drawn.weights[row, at]) * -log_policy[row, at, drawn.targets[row, at]]
        for row, at in itertools.product(*map(range, drawn.targets.shape))
    ) / float(drawn.weights.sum())
    total.backward()
    assert float(loss) == pytest.approx(float(total.detach()), rel=1e-5)
    torch.testing.assert_close(found, learner.model.head.weight.grad)


def test_the_speed_counts_updates_alone(monkeypatch):
    """Two updates of 2 s and 1 s; 100 s of playing between them are not training."""
    now = iter([0.0, 2.0, 2.0, 102.0, 103.0, 103.0])
    monkeypatch.setattr(train_ad.time, "perf_counter", lambda: next(now))
    meter = train_ad.Meter(30, None)
    meter.add(torch.tensor(1.0))
    meter.restart_clock()
    meter.add(torch.tensor(2.0))
    assert meter.means() == {"loss": 1.5, "time/transitions_per_s": 20.0}


def test_the_losses_before_an_interruption_count_in_the_next_point(monkeypatch):
    monkeypatch.setattr(train_ad.time, "perf_counter", itertools.count().__next__)
    whole, killed = train_ad.Meter(30, None), train_ad.Meter(30, None)
    for loss in (1.0, 0.1, 0.3):
        whole.add(torch.tensor(loss))
    for loss in (1.0, 0.1):
        killed.add(torch.tensor(loss))
    kept = record.Checkpoint(2, {}, {"losses": killed.losses()}, Path(), "")
    resumed = train_ad.Meter(30, kept)
    resumed.add(torch.tensor(0.3))
    assert resumed.means()["loss"] == whole.means()["loss"]
    assert resumed.losses() == []


def test_a_batch_in_parts_or_in_bf16_gives_the_same_update(tmp_path, monkeypatch):
    """Six windows at once, one by one, four and two; and products in bf16."""
    flags = SMALL | {"histories": str(recorded(tmp_path)), "batch_size": 6, "residual_dropout": 0.0}
    results = {}
    for name, at_once, precision in (
        ("whole", 10**9, "fp32"),
        ("one", 1, "fp32"),
        ("four", 4 * 24 * 16, "fp32"),
        ("bf16", 10**9, "bf16"),
    ):
        monkeypatch.setattr(update, "CACHED_NUMBERS", at_once)
        learner = learner_of(Config(**flags, precision=precision))
        losses = torch.stack([learner.update() for _ in range(8)])
        weights = torch.cat([p.detach().flatten() for p in learner.model.parameters()])
        results[name] = losses, weights
    for name in ("one", "four"):
        assert not torch.equal(results[name][1], results["whole"][1])
        torch.testing.assert_close(results[name], results["whole"], rtol=1e-4, atol=1e-5)
    assert not torch.equal(results["bf16"][0], results["whole"][0])
    torch.testing.assert_close(results["bf16"][0], results["whole"][0], rtol=0, atol=0.02)
