"""Print how many private keys the run's directory has."""

from pathlib import Path

print("keys:", len(list(Path().rglob("*.key"))))
