"""The benchmark of DarkRoom's transformer fits the project's code."""

import subprocess
from pathlib import Path

import prepared

CODE = """
import sys
from dataclasses import replace
sys.path.insert(0, {root!r})
from benchmarks import darkroom
shape = darkroom.Config(preset="seed").shape(darkroom.SIZE, darkroom.LIMIT)
shape = replace(shape, window=8, width=8, layers=1, heads=2, feed_forward=16)
for learner in (darkroom.Ours(shape, 2), darkroom.Peer(shape, 2)):
    assert darkroom.rate(learner, 1) > 0
playing = darkroom.Playing(shape)
assert min(playing.cached(), playing.anew(1)) > 0
"""


def test_both_sides_of_every_row_run():
    code = CODE.format(root=str(Path(__file__).parents[2]))
    subprocess.run([prepared.python(), "-c", code], check=True)
