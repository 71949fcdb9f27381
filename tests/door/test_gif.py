"""Animations: the same bytes for the same policy, and clear words where there is nothing to draw."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from door import gif
from door.env.render import GIF_SIZE, draw, film
from door.training import snapshots
from rl.normalise import ObservationNormaliser
from rl.policy import Policy
from runcatalog import record
from runcatalog.record import Seeds


def test_a_scene_becomes_an_animation(tmp_path: Path):
    scene = film(
        lambda obs: np.zeros((len(obs), 6)),
        "round",
        "floatinghook",
        seeds=Seeds(0),
        episodes=1,
        start="near",
    )
    scene["frames"] = [frames[:3] for frames in scene["frames"]]
    drawn = [draw(scene, tmp_path / name) for name in ("a.gif", "b.gif")]
    if drawn[0].path is None:
        pytest.skip(drawn[0].reason)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "b.gif"]
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    with Image.open(tmp_path / "a.gif") as image:
        assert image.size == GIF_SIZE
        assert image.info["duration"] == 3 * 80  # ms: frames that are alike are one
        assert np.asarray(image.convert("RGB")).std() > 15  # not a blank picture


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a finished run on two tasks leaves, as far as an animation needs it."""
    policies = []
    for task in ("pull", "lever"):
        actor = [torch.zeros(6, 15), torch.zeros(6), torch.zeros(6)]
        policies.append((task, Policy(actor, ObservationNormaliser(15), squash=False)))
    snapshots.save(tmp_path, 0, policies)
    flags = {"task": "lever", "robot": "floatinghook", "start": "near", "num-envs": 8}
    facts = {"id": "0" * 32, "seed": 1, "flags": flags | {"num-steps": 16, "pretrained": "x"}}
    result = {"variant": {"method": "HN-PPO"}, "metrics": {"opening_rate": 0.0}}
    result["objective"] = {"at": 0}
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "metrics.jsonl").write_text("")
    (tmp_path / "journal" / "run.json").write_text(json.dumps(facts))
    (tmp_path / "result.json").write_text(json.dumps({"status": "FINISHED", "result": result}))
    return tmp_path


def test_errors_of_the_animation_are_named(run: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(record.UserError, match=r"door\.mp4 does not end in \.gif"):
        gif.make(run, run / "door.mp4")
    with pytest.raises(record.UserError, match=r"a/door\.gif: there is no folder .*/a"):
        gif.make(run, run / "a" / "door.gif")
    with pytest.raises(record.UserError, match="--episodes: 0 is not 1 or more"):
        gif.make(run, run / "door.gif", episodes=0)
    with pytest.raises(record.UserError, match="that run learned pull, lever, not round"):
        gif.make(run, run / "door.gif", task="round")
    with pytest.raises(record.UserError, match="nowhere: not a run of door training"):
        gif.make(run / "nowhere", run / "door.gif")
    monkeypatch.setenv("MUJOCO_GL", "glx")  # needs a screen
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(record.UserError, match="no video: glx: "):
        gif.make(run, run / "door.gif", task="pull", episodes=1)
    # The flag of a run that learns several tasks at once names them all.
    path = run / "journal" / "run.json"
    path.write_text(path.read_text().replace('"lever"', '"pull lever"'))
    with pytest.raises(record.UserError, match="no video: glx: "):
        gif.make(run, run / "door.gif", episodes=1)
    assert not (run / "door.gif").exists()
