"""Random numbers of one environment: SplitMix64 (Steele, Lea & Flood 2014), without any state that others share."""

from __future__ import annotations

import numpy as np

from rl.kernels import part

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NEXT = np.uint64(0xD1B54A32D192ED03)
_30, _27, _31, _32, _1 = (np.uint64(each) for each in (30, 27, 31, 32, 1))


@part
def mix(value):  # type: ignore[no-untyped-def]
    """A bijection of uint64 in which every bit depends on every bit."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@part
def begin(rng, seed):  # type: ignore[no-untyped-def]
    """Begins the stream of a seed; `rng`: uint64 [1]."""
    rng[0] = mix(np.uint64(seed) + _STEP)


@part
def draw(rng, count):  # type: ignore[no-untyped-def]
    """A whole number from 0 to count - 1, uniform to 2^-32."""
    rng[0] += _STEP
    return np.int64(((mix(rng[0]) >> _32) * np.uint64(count)) >> _32)


@part
def other_luck(rng, luck):  # type: ignore[no-untyped-def]
    """Goes on with another stream from here on, a different one for each luck over 0; with 0 it stays as it is."""
    if luck > 0:
        begin(rng, np.int64(mix(rng[0] ^ np.uint64(luck)) >> _1))


@part
def following(seed):  # type: ignore[no-untyped-def]
    """The seed of the level after that of `seed`, 0 to 2^63 - 1."""
    return np.int64(mix(np.uint64(seed) ^ _NEXT) >> _1)
