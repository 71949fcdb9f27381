"""Flags of the operations of `ragen`, as declared in the Guild file."""

import itertools
from pathlib import Path
from typing import Any

from runcatalog.model.project import Project
from runcatalog.model.values import parse_flag
from textgames import sft, train

PROJECT = Path(__file__).parents[2]
CONFIGS = {"src/textgames.train": train.Config, "src/textgames.sft": sft.Config}


def _parsed(value: Any) -> Any:
    """Return a flag's declared value in the type that a script gets; YAML reads 1e-3 as text."""
    return [parse_flag(item) for item in value] if isinstance(value, list) else parse_flag(value)


def test_the_flags_of_every_training_are_valid_together() -> None:
    configs = {}
    for operation in Project.find(PROJECT).operations().values():
        if (config_class := CONFIGS.get(operation.main)) is not None:
            flags = {
                name.replace("-", "_"): _parsed(value) for name, value in operation.flags.items()
            }
            assert flags.keys() <= config_class.__dataclass_fields__.keys()
            # A list is a batch: a run has one of its values.
            values = [value if isinstance(value, list) else [value] for value in flags.values()]
            for chosen in itertools.product(*values):
                configs[operation.name] = config_class(**dict(zip(flags, chosen, strict=True)))
    assert len(configs) >= 30
    # RAGEN learns from all 32 trajectories of an update at once (ppo_batch_size of its commands).
    ragen = [config for name, config in configs.items() if "_ragen_" in name]
    assert len(ragen) == 14
    assert {config.ppo_batch_size for config in ragen} == {32}
