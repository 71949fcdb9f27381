"""A training that can be killed anywhere: a random walk whose points hold every kind of number."""

import argparse
import math
import os
import time
from dataclasses import dataclass

import numpy as np

from runcatalog import record

ODD = (math.nan, math.inf, -math.inf, 5e-324, -0.0, 1 / 3)


@dataclass(frozen=True)
class Config(record.Config):
    """A random walk."""

    updates: int = record.option(200, "number of updates", low=1)
    width: int = record.option(6, "walkers, one metric per walker", low=1)
    every: int = record.option(0, "updates between checkpoints; 0: none", low=0)
    pause: float = record.option(0.02, "seconds between updates", low=0, resumable=True)


def main(config):
    """Walks."""
    with record.start(config, study="faults") as run:
        generator = run.seeds.generator("walk")
        place, first = np.zeros(config.width), 1
        checkpoint = run.restore() if config.every else None
        if checkpoint:
            place, first = checkpoint.tensors["place"].numpy(), checkpoint.step + 1
            generator.bit_generator.state = checkpoint.state["generator"]
        for update in range(first, config.updates + 1):
            place = place + generator.normal(size=config.width)
            values = {f"walk/{i}": value for i, value in enumerate(place)}
            odd = ODD[update % len(ODD)]
            run.log(values | {"odd": odd, "time/update": time.time()}, step=update)
            run.progress(update, config.updates, "update")
            if config.every and update % config.every == 0:
                state = {"generator": generator.bit_generator.state}
                run.checkpoint(update, {"place": place}, state, keep=2)
            time.sleep(config.pause)
        run.artifact("figures/walk.txt").write_text(f"{place.tolist()}\n")
        run.artifact("walk.bin").write_bytes(place.tobytes() * 1000)
        objective = {"name": "walk/0", "value": float(place[0]), "kind": "mean", "goal": "max"}
        return run.finish({"objective": objective | {"at": config.updates, "axis": "update"}})


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
