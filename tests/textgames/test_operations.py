"""The operations of `ragen`, as a user starts them."""

import itertools
from pathlib import Path

from guild import guildfile, op_util

from textgames import sft, train

PROJECT = Path(__file__).parents[2]
CONFIGS = {"src/textgames.train": train.Config, "src/textgames.sft": sft.Config}


def test_the_flags_of_every_training_go_together() -> None:
    found = {}
    for operation in guildfile.for_dir(str(PROJECT)).models["ragen"].operations:
        if (kind := CONFIGS.get(operation.main)) is not None:
            flags = op_util.flag_vals_for_opdef(operation, {}, force=True)
            named = {name.replace("-", "_"): value for name, value in flags.items()}
            wanted = kind.__dataclass_fields__.keys() & named.keys()
            given = {name: named[name] for name in wanted if named[name] is not None}
            # A list is a batch: each run has one of its values.
            lists = [each if isinstance(each, list) else [each] for each in given.values()]
            for values in itertools.product(*lists):
                found[operation.name] = kind(**dict(zip(given, values, strict=True)))
    assert len(found) >= 30
    # The source's RL learns from all 32 trajectories of an update at once (its command's ppo_batch_size).
    of_source = [config for name, config in found.items() if "_ragen_" in name]
    assert len(of_source) == 14
    assert {config.ppo_batch_size for config in of_source} == {32}
