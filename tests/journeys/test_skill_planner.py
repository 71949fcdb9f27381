"""A planner as typed: a language model is trained from nothing, served by an existing server, and plans."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import prepared
from journeys.shell import Project
from mlflow_server import free_port

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
RECORDS = ("skills",)
# Trained for so long that it ends its answers: they would have 256 tokens otherwise.
TINY = (
    "stage=nlm0 levels=10 validation=2 updates=80 lr=0.01 prompt-weight=0 batch=8 width=32 layers=1 "
    "heads=2"
)


@pytest.fixture(scope="module")
def model(project: Project) -> Path:
    project.good(f"guild run skill:planner_model {TINY} -y")
    return project.finished("planner_model") / "artifacts/model"


@pytest.fixture(scope="module")
def url(project: Project, model: Path) -> Iterator[str]:
    """`transformers serve`, as docs/skills.md has it."""
    port = free_port()
    command = Path(sys.executable).with_name("transformers")
    server = prepared.Process(
        [prepared.python(), command, "serve", str(model), "--port", str(port), "--device", "cpu"],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 300
    while True:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            break
        except OSError:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.2)
    yield address
    server.send_signal(signal.SIGKILL)
    server.wait(240)


def test_the_model_that_is_served_is_what_plans(project: Project, model: Path, url: str) -> None:
    does = f"planner=openai model={model} url={url} agent=search stage=nlm0 shared=2 more=2"
    project.good(f"guild run skill:llm {does} -y")
    run = project.finished("llm")
    result = json.loads((run / "result.json").read_text())["result"]
    parents = json.loads((run / "journal/parents.json").read_text())["parents"]
    assert parents == [project.finished("planner_model").name]
    lines = [json.loads(line) for line in (run / "artifacts/calls.jsonl").read_text().splitlines()]
    asked = sum(line["attempt"] == 0 for line in lines)
    assert asked == result["metrics"]["calls"] * 4
    twice = len(lines) - asked
    assert twice == result["metrics"]["invalid_once"] + result["metrics"]["invalid_twice"]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(model)
    mine = AutoModelForCausalLM.from_pretrained(model)
    for line in (lines[0], lines[-1]):
        prompt = tokens.apply_chat_template(
            line["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        said = mine.generate(**prompt, max_new_tokens=256, do_sample=False)
        reply = tokens.decode(said[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        assert line["reply"].strip() == reply.strip()


def test_another_model_is_named(project: Project, url: str) -> None:
    project.bad(f"guild run skill:llm planner=openai model=other url={url} -y", "other", "pinned")
