"""Names the run that this one requires, which it reaches through a link, and counts the committed records."""

import argparse
import os
from pathlib import Path

argparse.ArgumentParser(description=__doc__).parse_args()
required = Path("earlier/result.json").resolve().parent
words = (required / ".guild/opref").read_text().split()
print("requires", required.name, words[2:4], (Path("earlier/result.json")).stat().st_size > 0)
records = Path(os.environ["PROJECT_DIR"]) / "experiments" / "records"
print("records", len(list(records.glob("*/*.json"))))
