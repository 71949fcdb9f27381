"""Training a transformer on histories: updates, step sizes, and how it plays meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from darkroom.a2c.histories import Histories
from darkroom.distillation.muon import Muon
from darkroom.distillation.options import Config, Settings
from darkroom.distillation.rollout import Tasks, learn_in_context
from darkroom.distillation.shape import TOKENS, Shape
from darkroom.distillation.task_split import Division, used_steps
from darkroom.distillation.transformer import WEIGHTS, Transformer
from darkroom.distillation.windows import Episodes, Sampler, Windows, moved
from runcatalog import record

TOLD = 5  # episodes at the beginning and at the end that are averaged
POINTS = 200  # of the loss's curve
# Numbers that a layer puts out at its widest: of more at once, a processor's caches keep too few (half the speed).
AT_ONCE = 7_000_000


class Learner:
    """A transformer and what it is trained with.

    Args:
        config: Flags.
        histories: Of each size.
        divisions: Of each size.
        seeds: Of the run.

    Attributes:
        model: See there.
        update: How many there were.
    """

    def __init__(
        self,
        config: Config,
        histories: Sequence[Histories],
        divisions: Sequence[Division],
        seeds: record.Seeds,
    ) -> None:
        self.settings = settings = config.settings()
        self.config, about = config, histories[0].about
        shape = config.shape(max(config.sides), about.limit)
        self.device = torch.device(config.device)
        self.model = Transformer(shape, seeds.torch("first weights")).to(self.device)
        self.optimizers = optimizers(self.model, settings)
        self._rows = rows_at_once(shape) if config.device == "cpu" else settings.batch_size
        sources = [
            Episodes(each, _tasks(each, division), used_steps(each, settings.history_steps))
            for each, division in zip(histories, divisions, strict=True)
        ]
        self.sampler = Sampler(sources, config.sampling(), seeds.generator("windows"))
        self._places = seeds.generator("places")
        # Dropout knows no generator but torch's own; nothing else draws from it.
        torch.manual_seed(int(seeds.sequence("dropout").generate_state(1)[0]))
        self.update = 0

    def step(self) -> torch.Tensor:
        """Makes an update; returns its loss."""
        settings = self.settings
        windows = self.sampler.draw(settings.batch_size)
        places = None
        if settings.shift or settings.stretch:
            drawn = moved(
                self._places,
                windows.context.sizes,
                self.model.shape.reach,
                settings.shift,
                settings.stretch,
            )
            places = torch.from_numpy(drawn).to(self.device)
        fraction = step_size(settings, self.update) / settings.lr
        for optimizer, highest in zip(
            self.optimizers, (settings.lr, settings.muon_lr), strict=False
        ):
            for group in optimizer.param_groups:
                group["lr"] = fraction * highest
        self.model.train()
        self.model.zero_grad()
        loss = add_gradients(
            self.model, windows, places, settings.label_smoothing, self._rows, self.config.precision
        )
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        self.update += 1
        return loss

    def state(self) -> dict[str, Any]:
        """What it needs to go on to the bit, besides the weights."""
        on_gpu = self.device.type == "cuda"
        return {
            "update": self.update,
            "optimizers": [each.state_dict() for each in self.optimizers],
            "sampler": self.sampler.state(),
            "places": self._places.bit_generator.state,
            "dropout": torch.cuda.get_rng_state() if on_gpu else torch.get_rng_state(),
            "device": self.device.type,
        }

    def restore(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Goes on from weights and `state()`."""
        self.model.load_state_dict(tensors)
        for optimizer, before in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(before)
        self.sampler.restore(state["sampler"])
        self._places.bit_generator.state = state["places"]
        if state["device"] == self.device.type:  # the two have other generators
            (torch.cuda if self.device.type == "cuda" else torch).set_rng_state(state["dropout"])
        self.update = int(state["update"])


def rows_at_once(shape: Shape) -> int:
    """How many windows a processor's caches hold."""
    widest = TOKENS[shape.layout] * shape.window * max(shape.width, shape.feed_forward)
    return max(1, AT_ONCE // widest)


def add_gradients(
    model: Transformer,
    windows: Windows,
    places: torch.Tensor | None,
    label_smoothing: float,
    rows: int,
    precision: str,
) -> torch.Tensor:
    """Adds the gradients of the windows' mean loss to those of the weights; returns it.

    Args:
        model: Learns.
        windows: R of them.
        places: See `darkroom.distillation.tokens.Tables`, of all windows.
        label_smoothing: Share of a target that is spread over all actions.
        rows: Windows that are computed at once; the gradients of such parts add up.
        precision: Of products, "fp32" or "bf16".
    """
    device, count = model.head.weight.device, len(windows.targets)
    losses = []
    for begin in range(0, count, rows):
        part = slice(begin, begin + rows)
        targets = torch.from_numpy(windows.targets[part]).to(device)
        with torch.autocast(device.type, torch.bfloat16, precision == "bf16"):
            logits = model(
                windows.context.rows(part), places=places if places is None else places[part]
            )
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), label_smoothing=label_smoothing
        )
        loss = loss * (len(targets) / count)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def optimizers(model: Transformer, settings: Settings) -> list[torch.optim.Optimizer]:
    """Returns AdamW and, where it is wanted, Muon for the matrices between hidden layers."""
    inner = model.inner_matrices() if settings.optimizer == "muon" else []
    known = {id(parameter) for parameter, _ in inner}
    rest = {name: p for name, p in model.named_parameters() if id(p) not in known}
    tables = [p for name, p in rest.items() if name.endswith(WEIGHTS)]
    others = [p for name, p in rest.items() if not name.endswith(WEIGHTS)]
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [
                {"params": tables, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=(0.9, settings.beta2),
            fused=True,
        )
    ]
    if inner:
        found.append(Muon(inner, settings.muon_lr, weight_decay=settings.weight_decay))
    return found


def step_size(settings: Settings, update: int) -> float:
    """A rise to `lr` in `warmup` updates, then half a cosine down to `lr_min` at the last one."""
    rise = min(1.0, (update + 1) / settings.warmup) if settings.warmup else 1.0
    fall = 0.5 * (1 + math.cos(math.pi * update / settings.updates))
    return rise * (settings.lr_min + (settings.lr - settings.lr_min) * fall)


def play_parts(
    model: Transformer, tasks: dict[str, Tasks], config: Config, rng: np.random.Generator
) -> dict[str, float]:
    """Lets agents play; returns mean normalised returns in the first and in the last episodes, by part."""
    found: dict[str, float] = {}
    for part, each in tasks.items():
        returns, _ = learn_in_context(
            model, each, config.episodes, config.copies, rng, config.when_full
        )
        curve = each.normalised(returns).mean(axis=(0, 1))
        found |= {
            f"{part}/episode_1": float(curve[0]),
            f"{part}/{first_name()}": float(curve[:TOLD].mean()),
            f"{part}/{last_name(config.episodes)}": float(curve[-TOLD:].mean()),
        }
    return found


def first_name() -> str:
    """Name of the mean over the first episodes."""
    return f"episodes_1_{TOLD}"


def last_name(episodes: int) -> str:
    """Name of the mean over the last of so many episodes."""
    return f"episodes_{episodes - TOLD + 1}_{episodes}"


def parts(
    divisions: Sequence[Division], histories: Sequence[Histories], *, validating: bool
) -> dict[str, Tasks]:
    """The tasks that are played while it learns: those that were kept out, and those that were not.

    Args:
        divisions: Of each size.
        histories: Of each size.
        validating: Variants are being chosen: tasks for testing are not to be looked at.
    """
    about = histories[0].about
    names = {"validation": "validation"} if validating else {"held_out": "test"}
    found = {}
    for part, name in (names | {"training": "training"}).items():
        rooms = [(each.size, getattr(each, name)) for each in divisions if getattr(each, name)]
        if rooms:
            found[part] = Tasks.of(rooms, about.limit, about.terminating)
    return found


class Pace:
    """Mean loss and transitions a second between two points of a curve."""

    def __init__(self, transitions: int) -> None:
        self._transitions = transitions  # of an update
        self._losses: list[torch.Tensor] = []
        self._seconds = 0.0
        self._since = time.perf_counter()

    def add(self, loss: torch.Tensor) -> None:
        """Counts an update that has just ended."""
        self._losses.append(loss)
        self._seconds += time.perf_counter() - self._since
        self.skip()

    def point(self) -> dict[str, float]:
        """The means since the last point."""
        found = {
            "loss": float(torch.stack(self._losses).mean()),
            "time/transitions_per_s": len(self._losses) * self._transitions / self._seconds,
        }
        self._losses, self._seconds = [], 0.0
        return found

    def skip(self) -> None:
        """What was done since the last update was none."""
        self._since = time.perf_counter()


def _tasks(histories: Histories, division: Division) -> np.ndarray:
    """Places of the tasks for training in the file."""
    goals = list(histories.about.goals)
    return np.array([goals.index(goal) for goal in division.training])
