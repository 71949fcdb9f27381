"""A run of a second: a rate that grows, explodes or is killed, as the flags say; continued, it lives."""

import argparse
import os
import signal
from dataclasses import dataclass

from runcatalog import record


@dataclass(frozen=True)
class Config(record.Config):
    lr: float = record.option(5e-3, "learning rate", low=0, high=1)
    updates: int = record.option(30, "updates", low=1)
    explode: int = record.option(0, "update at which it explodes")
    die: int = record.option(0, "update at which it is killed")


def main(config: Config) -> dict:
    with record.start(config, study="toy") as run:
        rng = run.seeds.generator("x")
        rate = 0.0
        for update in range(1, config.updates + 1):
            rate = min(1.0, rate + config.lr * rng.random() * 20)
            run.log({"opening_rate": rate, "loss": 1.0 / update}, step=update)
            if config.explode == update:
                raise record.NumericalError(update, "log_std")
            if config.die == update and not run.resumed:
                os.kill(os.getpid(), signal.SIGKILL)
        objective = {
            "name": "opening_rate",
            "value": round(rate, 2),
            "kind": "rate",
            "count": 100,
            "goal": "max",
            "at": config.updates,
            "axis": "update",
        }
        variant = {"reward": "capped"}
        return run.finish({"objective": objective, "task_id": 0, "variant": variant})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
