"""The update of Algorithm Distillation (Laskin et al. 2022, arXiv 2210.14215, section 3).

With the learning histories D of source agents, the transformer P of weights theta, and a window h of c steps, at which
an agent was in cell o_t, took action a_t and got reward r_t:

    repeat:
        h ~ D                                                  # batch_size windows: `windows.Sampler`
        L(theta) = -1/c sum_t w_t log P(a_t | o_0, a_0, r_0, ..., o_t)    # cross-entropy of the next action
        g = clip(gradient of L, max_grad_norm)
        theta = theta - step(g, lr(update))                    # Muon for hidden matrices, AdamW for the rest

The loss does not say what a good action is: it is lowered by improving as the source agents did. The weights w_t of the
paper are 1. Here they can rise with what the source agent had learned (`learned_weight`), since its policy changes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from darkroom.distillation.ad_options import Config, Settings
from darkroom.distillation.muon import Muon
from darkroom.distillation.shape import TOKENS, Shape
from darkroom.distillation.transformer import DECAYED, Transformer
from darkroom.distillation.windows import Sampler, Windows, draw_coordinates
from runcatalog.record import Seeds

# Numbers in the widest layer's output that fit a CPU's caches; more at once take twice as long.
CACHED_NUMBERS = 7_000_000


class Learner:
    """The transformer, its optimizers and its training windows.

    Args:
        config: Flags.
        shape: The transformer's shape.
        sampler: Source of the training windows.
        seeds: Source of the run's random numbers.

    Attributes:
        model: The transformer.
        updates: Number of updates so far.
    """

    def __init__(self, config: Config, shape: Shape, sampler: Sampler, seeds: Seeds) -> None:
        self.config, self.settings, self.sampler = config, config.settings(), sampler
        self.device = torch.device(config.device)
        self.model = Transformer(shape, seeds.torch("first weights")).to(self.device)
        self.optimizers = optimizers(self.model, self.settings)
        on_cpu = self.device.type == "cpu"
        self._windows_at_once = windows_at_once(shape) if on_cpu else self.settings.batch_size
        self._coordinates = seeds.generator("places")
        # Dropout has no generator but torch's global one, which nothing else uses.
        torch.manual_seed(seeds.integer("dropout"))
        self.updates = 0

    def update(self) -> Tensor:
        """Make one update and return its loss, []."""
        windows = self.sampler.draw(self.settings.batch_size)
        coordinates = self._draw_coordinates(windows.context.sizes)
        self.model.train()
        self.model.zero_grad()
        loss = add_gradients(
            self.model,
            windows,
            coordinates,
            label_smoothing=self.settings.label_smoothing,
            windows_at_once=self._windows_at_once,
            precision=self.config.precision,
        )
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        set_learning_rates(self.optimizers, self.settings, self.updates)
        for optimizer in self.optimizers:
            optimizer.step()
        self.updates += 1
        return loss

    def _draw_coordinates(self, sizes: np.ndarray) -> Tensor | None:
        """Return random coordinates of the windows' rooms, see `draw_coordinates`; None without augmentation."""
        shift, stretch = self.settings.shift, self.settings.stretch
        if not shift and not stretch:
            return None
        drawn = draw_coordinates(self._coordinates, sizes, self.model.shape.reach, shift, stretch)
        return torch.from_numpy(drawn).to(self.device)

    def state(self) -> dict[str, Any]:
        """Return what continues the training bit for bit, besides the weights."""
        on_gpu = self.device.type == "cuda"
        return {
            "update": self.updates,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "sampler": self.sampler.state(),
            "places": self._coordinates.bit_generator.state,
            "dropout": torch.cuda.get_rng_state() if on_gpu else torch.get_rng_state(),
            "device": self.device.type,
        }

    def restore(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Continue from weights and `state()`."""
        self.model.load_state_dict(weights)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.sampler.restore(state["sampler"])
        self._coordinates.bit_generator.state = state["places"]
        if state["device"] == self.device.type:  # the states of CPU and GPU generators differ
            (torch.cuda if self.device.type == "cuda" else torch).set_rng_state(state["dropout"])
        self.updates = int(state["update"])


def add_gradients(
    model: Transformer,
    windows: Windows,
    coordinates: Tensor | None,
    *,
    label_smoothing: float,
    windows_at_once: int,
    precision: str,
) -> Tensor:
    """Add the gradient of the mean cross-entropy of the next action to the weights' gradients, and return it, [].

    Equals `loss(model, all windows).backward()`, in parts whose gradients add up. The mean is weighted by
    `windows.weights`.

    Args:
        model: The transformer.
        windows: The batch, R windows of n steps.
        coordinates: Of the windows' rooms, see :class:`darkroom.distillation.embedding.TokenEmbedding`.
        label_smoothing: Share of a target that is spread over all actions.
        windows_at_once: Windows of a part.
        precision: Of matrix products, "fp32" or "bf16".
    """
    device, count = model.head.weight.device, len(windows.targets)
    weights = torch.from_numpy(windows.weights / windows.weights.mean())
    losses = []
    for begin in range(0, count, windows_at_once):
        part = slice(begin, begin + windows_at_once)
        context, actions = windows.context.rows(part), torch.from_numpy(windows.targets[part])
        with torch.autocast(device.type, torch.bfloat16, precision == "bf16"):
            logits = model(context, coordinates=None if coordinates is None else coordinates[part])
        of_steps = F.cross_entropy(
            logits.float().flatten(0, 1),
            actions.to(device).flatten(),
            label_smoothing=label_smoothing,
            reduction="none",
        )
        loss = (of_steps * weights[part].to(device).flatten()).mean() * (len(actions) / count)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def windows_at_once(shape: Shape) -> int:
    """Return the number of windows whose widest layer fits a CPU's caches."""
    widest = TOKENS[shape.layout] * shape.window * max(shape.width, shape.feed_forward)
    return max(1, CACHED_NUMBERS // widest)


def optimizers(model: Transformer, settings: Settings) -> list[torch.optim.Optimizer]:
    """Return AdamW and, if chosen, Muon for the matrices between hidden layers; biases and norms do not decay."""
    hidden = model.hidden_matrices() if settings.optimizer == "muon" else []
    with_muon = {id(parameter) for parameter, _ in hidden}
    rest = {name: p for name, p in model.named_parameters() if id(p) not in with_muon}
    decayed = [p for name, p in rest.items() if name.endswith(DECAYED)]
    others = [p for name, p in rest.items() if not name.endswith(DECAYED)]
    adamw = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=settings.lr,
        betas=(0.9, settings.beta2),
        fused=True,
    )
    if not hidden:
        return [adamw]
    return [adamw, Muon(hidden, settings.muon_lr, weight_decay=settings.weight_decay)]


def learning_rate(settings: Settings, update: int) -> float:
    """Return AdamW's learning rate: linear to `lr` over `warmup` updates, times half a cosine down to `lr_min`."""
    rise = min(1.0, (update + 1) / settings.warmup) if settings.warmup else 1.0
    fall = 0.5 * (1 + math.cos(math.pi * update / settings.updates))
    return rise * (settings.lr_min + (settings.lr - settings.lr_min) * fall)


def set_learning_rates(
    optimizers: list[torch.optim.Optimizer], settings: Settings, update: int
) -> None:
    """Set the learning rates of AdamW and Muon, the same fraction of their highest ones."""
    fraction = learning_rate(settings, update) / settings.lr
    for optimizer, highest in zip(optimizers, (settings.lr, settings.muon_lr), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = fraction * highest
