"""Random numbers of one environment in compiled code: SplitMix64 (Steele, Lea and Flood 2014), its state an array."""

from __future__ import annotations

import numpy as np

from rl.kernels import part

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NEXT = np.uint64(0xD1B54A32D192ED03)
_30, _27, _31, _32, _1 = (np.uint64(bits) for bits in (30, 27, 31, 32, 1))


@part
def mix(value):  # type: ignore[no-untyped-def]
    """Return a bijection of uint64 in which every bit depends on every bit."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@part
def begin(rng, seed):  # type: ignore[no-untyped-def]
    """Start the stream of a seed; `rng`: uint64 [1]."""
    rng[0] = mix(np.uint64(seed) + _STEP)


@part
def draw(rng, count):  # type: ignore[no-untyped-def]
    """Draw an integer from 0 to count - 1, uniform to 2^-32."""
    rng[0] += _STEP
    return np.int64(((mix(rng[0]) >> _32) * np.uint64(count)) >> _32)


@part
def switch_stream(rng, stream):  # type: ignore[no-untyped-def]
    """Continue with another stream, a different one for every number above 0; 0 keeps the current one."""
    if stream > 0:
        begin(rng, np.int64(mix(rng[0] ^ np.uint64(stream)) >> _1))


@part
def following_seed(seed):  # type: ignore[no-untyped-def]
    """Return the seed of the level that follows the level of `seed`, 0 to 2^63 - 1."""
    return np.int64(mix(np.uint64(seed) ^ _NEXT) >> _1)
