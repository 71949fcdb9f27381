"""A random walk with checkpoints, which gives the same digests however often it is interrupted."""

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np

from runcatalog import record
from runcatalog.record.config import checkpoint_folder


@dataclass(frozen=True)
class Config(record.Config):
    updates: int = record.option(10, "updates", low=1)
    pause: float = record.option(0.0, "seconds after an update", low=0)
    fail: int = record.option(0, "update at which it fails")
    every: int = record.option(0, "updates between checkpoints (0: none)")
    start: str = record.option("", "folder of the checkpoint to begin with")


def main(config: Config) -> dict:
    with record.start(config, study="small") as run:
        position, begin = np.zeros(3), 0
        if config.start:
            first = record.load_checkpoint(checkpoint_folder("start", config.start))
            position = first.tensors["position"].numpy()
        if (last := run.restore()) is not None:
            position, begin = last.tensors["position"].numpy(), last.step
        for update in range(begin + 1, config.updates + 1):
            position = position + run.seeds.generator("step", update).standard_normal(3)
            run.log({"distance": float(np.linalg.norm(position))}, step=update)
            if update == config.fail:
                print("it fails", file=sys.stderr)
                raise record.RunFailed("as requested")
            if run.checkpoint_due(update, config.every):
                import torch

                run.checkpoint(update, {"position": torch.from_numpy(position)}, {})
            time.sleep(config.pause)
        run.digest_weights({"position": position})
        objective = {"name": "distance", "value": float(np.linalg.norm(position)), "goal": "max"}
        return run.finish({"objective": objective})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
