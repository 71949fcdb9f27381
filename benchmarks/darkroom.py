"""Algorithm Distillation against Decision Transformer: training, and rollouts with cached keys and values.

The peer is Decision Transformer's architecture as published (Chen et al. 2021, section 3) and as single-file
implementations write it: three tokens a step, torch's MultiheadAttention with a mask, LayerNorm before it, GELU. An
update is forward, backward, clipping and optimizer, on windows that are ready. The first two rows compare equal
tokens, widths and dropouts; the third is what the default preset saves. A batch of the seed is computed in parts that
fit a CPU's caches: the next two rows compare that with the whole batch at once, and products in bf16 with those in
fp32. Rollouts: 80 rooms at once with a full window, with the cache (over a cycle of forgetting half of it and filling
it again) against computing the full window at every step.
"""

import argparse
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarks import _report  # noqa: E402
from benchmarks._decision_transformer import DecisionTransformer  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from darkroom.distillation.ad_options import Config  # noqa: E402
from darkroom.distillation.context import Context  # noqa: E402
from darkroom.distillation.rollout import CachedPolicy  # noqa: E402
from darkroom.distillation.shape import Shape  # noqa: E402
from darkroom.distillation.transformer import Transformer  # noqa: E402
from darkroom.distillation.update import add_gradients, windows_at_once  # noqa: E402
from darkroom.distillation.windows import Windows  # noqa: E402
from darkroom.rooms.batch import RoomBatch  # noqa: E402
from darkroom.rooms.grid import tasks  # noqa: E402

SIZE, LIMIT, ACTIONS = 9, 20, 5


def windows(count: int, steps: int) -> Windows:
    """Return random steps, which take as long as real ones."""
    rng = np.random.default_rng(0)
    draw = partial(rng.integers, size=(count, steps))
    cells, times, actions = draw(SIZE**2), draw(LIMIT), draw(ACTIONS)
    context = Context(
        cells, times, actions, draw(2), draw(SIZE**2), draw(LIMIT), np.full(count, SIZE)
    )
    return Windows(context, draw(ACTIONS), np.ones((count, steps), np.float32))


class Ours:
    """Updates of the project's transformer."""

    def __init__(
        self, shape: Shape, batch: int, rows: int | None = None, precision: str = "fp32"
    ) -> None:
        self.model = Transformer(shape, torch.Generator().manual_seed(0)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.windows = windows(batch, shape.window)
        self.count = self.windows.targets.size
        self._how = rows or windows_at_once(shape), precision

    def update(self) -> None:
        """Make an update."""
        self.optimizer.zero_grad()
        self.gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def gradients(self) -> None:
        """Run the forward and backward pass."""
        rows, precision = self._how
        add_gradients(
            self.model,
            self.windows,
            None,
            label_smoothing=0.0,
            windows_at_once=rows,
            precision=precision,
        )


class Peer(Ours):
    """Updates of Decision Transformer."""

    def __init__(self, shape: Shape, batch: int) -> None:
        self.model = DecisionTransformer(
            states=SIZE**2, actions=ACTIONS, rewards=2, times=LIMIT, window=shape.window,
            width=shape.width, layers=shape.layers, heads=shape.heads, feed_forward=shape.feed_forward,
            attention_dropout=shape.attention_dropout, residual_dropout=shape.residual_dropout,
        ).train()  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        batch_windows = windows(batch, shape.window)
        targets, context = batch_windows.targets, batch_windows.context
        self.count, self.targets = targets.size, torch.from_numpy(targets)
        fields = context.rewards, context.cells, targets, context.times
        self.context = tuple(map(torch.from_numpy, fields))

    def gradients(self) -> None:
        """Run the forward and backward pass."""
        logits = self.model(self.context)
        F.cross_entropy(logits.flatten(0, 1), self.targets.flatten()).backward()


def rate(learner: Ours, updates: int) -> float:
    """Return transitions per second."""
    begin = time.perf_counter()
    for _ in range(updates):
        learner.update()
    return learner.count * updates / (time.perf_counter() - begin)


class Playing:
    """Agents in 80 rooms whose window is full."""

    def __init__(self, shape: Shape) -> None:
        self.model = Transformer(shape, torch.Generator().manual_seed(0)).eval()
        self.rooms = RoomBatch(tasks(SIZE), SIZE, limit=LIMIT)
        self.policy = CachedPolicy(self.model, self.rooms.cells, self.rooms.sizes)
        self.rng = np.random.default_rng(0)
        self.go(shape.window)

    def go(self, steps: int) -> None:
        """Act for some steps."""
        for _ in range(steps):
            actions = self.policy.sample(self.rng.random(len(self.rooms)))
            step = self.rooms.step(actions)
            self.policy.observe(actions, step.rewards, step.cells, self.rooms.times)

    def cached(self) -> float:
        """Return environment steps per second over a cycle of forgetting and filling."""
        steps, begin = self.model.shape.window // 2, time.perf_counter()
        self.go(steps)
        return len(self.rooms) * steps / (time.perf_counter() - begin)

    @torch.inference_mode()
    def anew(self, steps: int) -> float:
        """Return the same where every step computes the whole window."""
        begin = time.perf_counter()
        for _ in range(steps):
            logits = self.model(self.policy.window)[:, -1]
            torch.softmax(logits, dim=-1).cumsum(dim=-1).numpy()
        return len(self.rooms) * steps / (time.perf_counter() - begin)


def main() -> None:
    """Measure all rows and write the result."""
    parser = _report.parser(__doc__)
    parser.add_argument("--updates", type=int, default=2, help="of a turn")
    parser.add_argument("--batch", type=int, default=16, help="windows of an update")
    parser.add_argument("--steps", type=int, default=2, help="of a turn that are computed anew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = training_rows(options) + part_rows(options) + playing_rows(options)
    _report.report("darkroom", rows, dry_run=options.dry_run)


def training_rows(options: argparse.Namespace) -> list[dict]:
    """Return rows of transitions per second, equal layouts first."""
    default, seed = Config().shape(SIZE, LIMIT), Config(preset="seed").shape(SIZE, LIMIT)
    plain = replace(seed, attention_dropout=0.0, residual_dropout=0.0, feed_forward=256)
    cases = [
        ("the seed's layout and size, its dropouts, a quarter of its windows", seed, seed, 2),
        ("the seed's layout, feed-forward 256, no dropout", plain, plain, None),
        ("the default preset: one token a step", default, plain, 2),
    ]
    rows = []
    for what, ours, peer, target in cases:
        batch = max(1, options.batch // (2 if ours is seed else 1))
        pair = {"ours": Ours(ours, batch), "peer": Peer(peer, batch)}
        for each in pair.values():
            each.update()
        measures = {name: partial(rate, each, options.updates) for name, each in pair.items()}
        found = _report.alternate(measures, options.repeats)
        rows.append(
            _report.row(
                f"training, width 64, 4 layers, 4 heads, 256 steps, {batch} windows: {what}",
                found["ours"], found["peer"], peer_name="Decision Transformer, three tokens a step",
                unit="transitions/s", target=target,
            )
        )  # fmt: skip
    return rows


def part_rows(options: argparse.Namespace) -> list[dict]:
    """Return rows of the seed's batch: in parts and at once, in bf16 and in fp32."""
    shape, batch = Config(preset="seed").shape(SIZE, LIMIT), 2 * options.batch
    learners = {
        "once": Ours(shape, batch, batch),
        "parts": Ours(shape, batch),
        "bf16": Ours(shape, batch, precision="bf16"),
    }
    for each in learners.values():
        each.update()
    measures = {name: partial(rate, each, 1) for name, each in learners.items()}
    found = _report.alternate(measures, options.repeats)
    return [
        _report.row(
            f"training, the seed's layout, size and dropouts, {batch} windows: {what}",
            found[ours], found[peer], peer_name=name, unit="transitions/s", target=None,
        )
        for what, ours, name, peer in (
            (f"in parts of {windows_at_once(shape)}", "parts", "all at once", "once"),
            ("in parts, products in bf16", "bf16", "the same in fp32", "parts"),
        )
    ]  # fmt: skip


def playing_rows(options: argparse.Namespace) -> list[dict]:
    """Return rows of environment steps per second with the cache and without."""
    rows = []
    for what, shape in (
        ("one token a step, feed-forward 256", Config().shape(SIZE, LIMIT)),
        ("three tokens a step, feed-forward 2048", Config(preset="seed").shape(SIZE, LIMIT)),
    ):
        playing = Playing(shape)
        measures = {"ours": playing.cached, "peer": partial(playing.anew, options.steps)}
        found = _report.alternate(measures, options.repeats)
        rows.append(
            _report.row(
                f"playing, 80 rooms at once, window of 256 full: {what}",
                found["ours"], found["peer"], peer_name="the window computed anew at each step",
                unit="env steps/s", target=40,
            )
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
