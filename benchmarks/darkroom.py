"""Algorithm Distillation compared with Decision Transformer: training, and playing with cached computations.

The peer is Decision Transformer's architecture as published (Chen et al. 2021, section 3) and as its one-file versions
lay it out: three tokens a step, torch's MultiheadAttention with a mask, LayerNorm before it, GELU. An update is
forward, backward, clipping and optimizer, on windows that lie ready. The first two rows compare equal tokens, widths
and dropouts; the third is what the default preset saves. A batch of the seed is computed in parts that a processor's
caches hold: the next two rows compare that with all at once, and products in bf16 with those in fp32. Playing: 80 rooms
at once after the window is full, with the cache (over a cycle of forgetting half of it and filling it again) against
computing the full window anew at each step.
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

from darkroom.ad_options import Config  # noqa: E402
from darkroom.ad_training import add_gradients, rows_at_once  # noqa: E402
from darkroom.batch import RoomBatch  # noqa: E402
from darkroom.context import Context  # noqa: E402
from darkroom.grid import tasks  # noqa: E402
from darkroom.model import Transformer  # noqa: E402
from darkroom.player import Player  # noqa: E402
from darkroom.shape import Shape  # noqa: E402
from darkroom.windows import Windows  # noqa: E402

SIZE, LIMIT, ACTIONS = 9, 20, 5


def windows(count: int, steps: int) -> Windows:
    """Random steps: what they are does not matter for how long they take."""
    rng = np.random.default_rng(0)
    draw = partial(rng.integers, size=(count, steps))
    cells, times, actions = draw(SIZE**2), draw(LIMIT), draw(ACTIONS)
    context = Context(
        cells, times, actions, draw(2), draw(SIZE**2), draw(LIMIT), np.full(count, SIZE)
    )
    return Windows(context, draw(ACTIONS))


class Ours:
    """Updates of the project's transformer."""

    def __init__(
        self, shape: Shape, batch: int, rows: int | None = None, precision: str = "fp32"
    ) -> None:
        self.model = Transformer(shape, torch.Generator().manual_seed(0)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.windows = windows(batch, shape.window)
        self.count = self.windows.targets.size
        self._how = rows or rows_at_once(shape), precision

    def update(self) -> None:
        """One."""
        self.optimizer.zero_grad()
        self.gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def gradients(self) -> None:
        """Forward and backward."""
        add_gradients(self.model, self.windows, None, 0.0, *self._how)


class Peer(Ours):
    """Updates of Decision Transformer."""

    def __init__(self, shape: Shape, batch: int) -> None:
        self.model = DecisionTransformer(
            states=SIZE**2, actions=ACTIONS, rewards=2, times=LIMIT, window=shape.window,
            width=shape.width, layers=shape.layers, heads=shape.heads, feed_forward=shape.feed_forward,
            attention_dropout=shape.attention_dropout, residual_dropout=shape.residual_dropout,
        ).train()  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        made = windows(batch, shape.window)
        self.count, self.targets = made.targets.size, torch.from_numpy(made.targets)
        seen = made.context
        fields = seen.rewards, seen.cells, made.targets, seen.times
        self.context = tuple(map(torch.from_numpy, fields))

    def gradients(self) -> None:
        """See `Ours`."""
        logits = self.model(self.context)
        F.cross_entropy(logits.flatten(0, 1), self.targets.flatten()).backward()


def rate(learner: Ours, updates: int) -> float:
    """Transitions a second."""
    begin = time.perf_counter()
    for _ in range(updates):
        learner.update()
    return learner.count * updates / (time.perf_counter() - begin)


class Playing:
    """Agents in 80 rooms whose window is full."""

    def __init__(self, shape: Shape) -> None:
        self.model = Transformer(shape, torch.Generator().manual_seed(0)).eval()
        self.rooms = RoomBatch(tasks(SIZE), SIZE, limit=LIMIT)
        self.player = Player(self.model, self.rooms.cells, self.rooms.sizes)
        self.rng = np.random.default_rng(0)
        self.go(shape.window)

    def go(self, steps: int) -> None:
        """Play on."""
        for _ in range(steps):
            actions = self.player.act(self.rng.random(len(self.rooms)))
            gave = self.rooms.step(actions)
            self.player.saw(actions, gave.rewards, gave.cells, self.rooms.times)

    def cached(self) -> float:
        """Environment steps a second over a cycle."""
        steps, begin = self.model.shape.window // 2, time.perf_counter()
        self.go(steps)
        return len(self.rooms) * steps / (time.perf_counter() - begin)

    @torch.inference_mode()
    def anew(self, steps: int) -> float:
        """The same when each step computes the whole window."""
        begin = time.perf_counter()
        for _ in range(steps):
            logits = self.model(self.player.window)[:, -1]
            torch.softmax(logits, dim=-1).cumsum(dim=-1).numpy()
        return len(self.rooms) * steps / (time.perf_counter() - begin)


def main() -> None:
    """Measure all in turn and writes the result."""
    parser = _report.parser(__doc__)
    parser.add_argument("--updates", type=int, default=2, help="of a turn")
    parser.add_argument("--batch", type=int, default=16, help="windows of an update")
    parser.add_argument("--steps", type=int, default=2, help="of a turn that are computed anew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = training_rows(options) + part_rows(options) + playing_rows(options)
    _report.report("darkroom", rows, dry_run=options.dry_run)


def training_rows(options: argparse.Namespace) -> list[dict]:
    """Transitions a second, equal layouts first."""
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
        rates = _report.alternate(measures, options.repeats)
        rows.append(
            _report.row(
                f"training, width 64, 4 layers, 4 heads, 256 steps, {batch} windows: {what}",
                rates["ours"], rates["peer"], peer_name="Decision Transformer, three tokens a step",
                unit="transitions/s", target=target,
            )
        )  # fmt: skip
    return rows


def part_rows(options: argparse.Namespace) -> list[dict]:
    """The seed's whole batch: in parts and at once, in bf16 and in fp32."""
    shape, batch = Config(preset="seed").shape(SIZE, LIMIT), 2 * options.batch
    learners = {
        "once": Ours(shape, batch, batch),
        "parts": Ours(shape, batch),
        "bf16": Ours(shape, batch, precision="bf16"),
    }
    for each in learners.values():
        each.update()
    measures = {name: partial(rate, each, 1) for name, each in learners.items()}
    rates = _report.alternate(measures, options.repeats)
    return [
        _report.row(
            f"training, the seed's layout, size and dropouts, {batch} windows: {what}",
            rates[ours], rates[peer], peer_name=name, unit="transitions/s", target=None,
        )
        for what, ours, name, peer in (
            (f"in parts of {rows_at_once(shape)}", "parts", "all at once", "once"),
            ("in parts, products in bf16", "bf16", "the same in fp32", "parts"),
        )
    ]  # fmt: skip


def playing_rows(options: argparse.Namespace) -> list[dict]:
    """Environment steps a second with the cache and without."""
    rows = []
    for what, shape in (
        ("one token a step, feed-forward 256", Config().shape(SIZE, LIMIT)),
        ("three tokens a step, feed-forward 2048", Config(preset="seed").shape(SIZE, LIMIT)),
    ):
        playing = Playing(shape)
        measures = {"ours": playing.cached, "peer": partial(playing.anew, options.steps)}
        rates = _report.alternate(measures, options.repeats)
        rows.append(
            _report.row(
                f"playing, 80 rooms at once, window of 256 full: {what}",
                rates["ours"], rates["peer"], peer_name="the window computed anew at each step",
                unit="env steps/s", target=40,
            )
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
