"""CONTRIBUTING's steps, written into a copy of the project word for word, give a study with a row in the catalog."""

import re
import uuid

from journeys.shell import Project

TOKEN, KEY = (f"{name}-{uuid.uuid4().hex}" for name in ("token", "key"))


def test_a_sixth_study_by_the_steps_of_contributing(project: Project) -> None:
    text = (project.root / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"^```\w+ (\w+)=?(\S*)\n(.*?)^```$", text, re.M | re.S)
    assert {kind for kind, _, _ in blocks} == {"file", "append", "run"}
    for kind, name, body in blocks:
        path = project.root / name
        if kind == "file":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body)
        elif kind == "append":
            path.write_text(path.read_text() + body)
    project.env |= {"HUB_TOKEN": TOKEN, "HUB_API_KEY": KEY}  # Guild keeps the second one
    commands = [body for kind, _, body in blocks if kind == "run"]
    for line in "".join(commands).splitlines():
        project.good(line)

    page = (project.root / "catalog/arms.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| train")]
    row = "".join(sorted(rows, key=lambda line: "epsilon 0.1" not in line))
    # Sutton & Barto, figure 2.2: after 1,000 pulls epsilon 0.1 chooses the best arm about 80 % of the time, 0.01 fewer.
    best, other = (float(value) for value in re.findall(r"(\d+(?:\.\d+)?) %", row)[:2])
    assert 65 < best < 90
    assert other < best

    # The shell of these runs held a token, and one of them printed it and died of it.
    (project.root / "src/arms/leak.py").write_text(
        "import os\nraise SystemExit(f\"401 for {os.environ['HUB_TOKEN']} {os.environ['HUB_API_KEY']}\")\n"
    )
    with (project.root / "experiments/arms/guild.yml").open("a") as file:
        file.write("    leak:\n      main: src/arms.leak\n")
    project.bad("guild run arms:leak -y", "401 for", TOKEN, KEY)
    project.good("catalog sync -q && catalog export && catalog render")
    assert any(KEY in (run / ".guild/attrs/env").read_text() for run in project.runs)
    private = (project.root / ".guild", project.root / ".git")
    for path in project.root.rglob("*"):
        if path.is_file() and not any(path.is_relative_to(each) for each in private):
            content = path.read_bytes()
            assert TOKEN.encode() not in content, path
            assert KEY.encode() not in content, path
    records = (path.read_text() for path in project.root.glob("experiments/records/arms/*.json"))
    assert any('"reason": "exit status 1: 401 for [hidden] [hidden]"' in text for text in records)
