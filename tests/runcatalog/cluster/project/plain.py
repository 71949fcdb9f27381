"""Write a file whose name is not UTF-8, and print how many private keys the run's directory has."""

from pathlib import Path

open(b"caf\xe9.txt", "w").close()
print("keys:", len(list(Path().rglob("*.key"))))
