"""Rewards: the formula of the source, and the shaped one of the study."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

CLOSED = 0.02  # rad: below this the door counts as closed; a latched door cannot get as far


@dataclass(frozen=True)
class RewardConfig:
    """Weights of the reward; all terms are summed once per decision.

    ``original`` is the source's formula: - d - ln(d^2 + 0.005) - 5 - |yaw, pitch| + 30 |hinge| + 50
    |handle| - mean(a^2), evaluated 0.02 s before the end of the decision, as the source does. It
    pays more for turning the handle further than for pulling. ``shaped`` caps the handle's credit
    and keeps it in full once the door moves, evaluated at the end of the decision.

    Attributes:
        kind: Which set of defaults: "shaped" or "original".
        door: Per rad of the hinge.
        handle: Per rad of the handle (latched doors only).
        handle_cap: Handle angle from which there is no more credit, rad.
        offset: Softens the logarithm, m^2.
        turn: Per rad of the tool's yaw and pitch relative to the handle.
        control: On the mean square of the commands.
        keeps_credit: Whether an open door gives the handle's whole credit, wherever the handle is.
    """

    kind: Literal["shaped", "original"] = "shaped"
    door: float = 30.0
    handle: float = 10.0
    handle_cap: float = 0.45
    offset: float = 5e-4
    turn: float = 0.3
    control: float = 1.0
    keeps_credit: bool = True

    @classmethod
    def of(cls, kind: str, handle: str = "own") -> "RewardConfig":
        """Return the weights of a kind.

        Args:
            kind: "shaped" or "original".
            handle: The term of the handle: "own" of the kind, "capped" as in the shaped reward, or "unlimited" as in
                the source's.

        Raises:
            ValueError: Unknown kind or term.
        """
        if kind not in ("shaped", "original"):
            raise ValueError(f"unknown reward {kind!r}: choose from shaped, original")
        if handle not in ("own", "capped", "unlimited"):
            raise ValueError(
                f"unknown handle's term {handle!r}: choose from own, capped, unlimited"
            )
        weights = cls() if kind == "shaped" else cls(kind="original", offset=5e-3, turn=1.0)
        if handle == "unlimited" or (handle == "own" and kind == "original"):
            weights = replace(weights, handle=50.0, handle_cap=math.inf, keeps_credit=False)
        return weights


def door_reward(
    config: RewardConfig,
    reach: np.ndarray,
    yaw: np.ndarray,
    pitch: np.ndarray,
    hinge: np.ndarray,
    handle: np.ndarray | None,
    action: np.ndarray,
) -> np.ndarray:
    """Return the reward of one decision in n environments.

    Args:
        config: Weights.
        reach: Finger minus knob, [n, 3], m.
        yaw: Tool's rotation about z, [n], rad.
        pitch: Tool's rotation about y, [n], rad.
        hinge: Door angle, [n], rad.
        handle: Handle angle, [n], rad; None for a door without a latch.
        action: Commands that pay the control cost, [n, k].

    Returns:
        [n], float64.
    """
    square = np.einsum("ij,ij->i", reach, reach)
    opening = np.abs(hinge)
    total = config.door * opening
    total -= np.sqrt(square)
    total -= np.log(square + config.offset)
    total -= 5.0
    turn = yaw - hinge
    total -= config.turn * np.sqrt(turn * turn + pitch * pitch)
    total -= config.control / action.shape[1] * np.einsum("ij,ij->i", action, action)
    if handle is not None:
        credit = np.minimum(np.abs(handle), config.handle_cap)
        if config.keeps_credit:
            credit[opening > CLOSED] = config.handle_cap
        total += config.handle * credit
    return total
