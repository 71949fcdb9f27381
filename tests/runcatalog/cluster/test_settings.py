"""Entries of engines.yml, certificates, checks of a machine, the table of machines."""

import datetime
import os
import ssl
import stat

import pytest
from cryptography import x509

from runcatalog.cli.workers import table
from runcatalog.cluster import certificates, engines, health
from runcatalog.cluster.engines import Needs
from runcatalog.record.errors import UserError

GOOD = "{scheduler: 'tls://host:8786', tls: tls"


def settings(root, text, name=""):
    path = root / "experiments/engines.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return engines.read(root, name)


def test_an_entry(tmp_path, monkeypatch):
    text = f"lab: {GOOD}, needs: {{gpu: 1, memory: 10}}, lease: 30}}\nother: {GOOD}}}"
    monkeypatch.setenv("ENGINE", "lab")
    entry = settings(tmp_path, text)
    assert (entry.name, entry.needs, entry.lease) == ("lab", Needs(gpu=1, memory=10), 30)
    assert entry.tls == tmp_path / "tls"
    assert settings(tmp_path, text, "other").needs == Needs()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "must map names to entries"),
        ("lab: [", "not YAML"),
        ("other: {}", "ENGINE=lab: experiments/engines.yml has no such entry, only other"),
        ("lab: 3", "must have scheduler and tls"),
        ("lab: {scheduler: 'tcp://host:8786', tls: tls}", "must be tls://HOST:PORT"),
        ("lab: {scheduler: 'tls://host:8786'}", "tls must be the folder"),
        (f"lab: {GOOD}, shedule: 3}}", "unknown shedule"),
        (f"lab: {GOOD}, needs: {{gpus: 1}}}}", "unknown need 'gpus'"),
        (f"lab: {GOOD}, needs: {{gpu: 0.5}}}}", "gpu must be a number"),
        (f"lab: {GOOD}, needs: {{gpu: .inf}}}}", "lab: need gpu must be a number"),
        (f"lab: {GOOD}, needs: {{memory: .nan}}}}", "lab: need memory must be a number"),
        (f"lab: {GOOD}, needs: {{disk: 1{'0' * 400}}}}}", "lab: need disk must be a number"),
        ("lab: {scheduler: 'tls://host:8786', tls: ~nobodyhere/x}", "lab: tls: ~nobodyhere/x: "),
        (f"lab: {GOOD}, scratch: ~nobodyhere/x}}", "lab: scratch: ~nobodyhere/x: "),
        (f"lab: {GOOD}, needs: {{machine: 7}}}}", "machine must be a name"),
        (f"lab: {GOOD}, needs: gpu}}", "needs must be like"),
        (f"lab: {GOOD}, lease: soon}}", "lease must be a number of seconds"),
        (f"lab: {GOOD}, poll: 0}}", "poll must be a number of seconds"),
        (f"lab: {GOOD}, certificate: ../x}}", "certificate must be a name"),
        (f"lab: {GOOD}, variables: HOME}}", "variables must be a list"),
        (f"lab: {GOOD}, probe: [nvidia-smi]}}", "probe must be a command"),
    ],
)
def test_a_wrong_entry_is_a_one_line_error(tmp_path, text, words):
    with pytest.raises(UserError, match=words.replace("{", "\\{")) as caught:
        settings(tmp_path, text, "lab")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [KeyError, OSError])  # of Python up to 3.12, and later
def test_a_user_without_a_name_needs_the_name_of_a_certificate(tmp_path, monkeypatch, error):
    def getuser():
        raise error("no such user")

    monkeypatch.setattr(engines.getpass, "getuser", getuser)
    named = settings(tmp_path, f"lab: {GOOD}, certificate: anna}}")
    assert named.certificate == "anna"
    with pytest.raises(UserError, match="certificate must name the submitter's certificate"):
        settings(tmp_path, f"lab: {GOOD}}}")


def test_a_missing_file_is_a_one_line_error(tmp_path):
    with pytest.raises(UserError, match=r"engines.yml is missing; docs/cluster.md"):
        engines.read(tmp_path, "lab")


def test_certificates_are_of_one_authority_and_keys_are_private(tmp_path):
    for name in ("scheduler", "anna"):
        certificates.issue(tmp_path / "tls", name)
    authority, certificate, key = certificates.files_of(tmp_path / "tls", "anna")
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(certificate, key)
    for path in (key, tmp_path / "tls" / certificates.AUTHORITY_KEY):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    signed = x509.load_pem_x509_certificate(certificate.read_bytes())
    signed.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
    assert signed.not_valid_after_utc > datetime.datetime.now(datetime.UTC) + datetime.timedelta(
        700
    )
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with pytest.raises(UserError, match="exists"):
        certificates.issue(tmp_path / "tls", "anna")
    with pytest.raises(UserError, match="no name"):
        certificates.issue(tmp_path / "tls", "../anna")
    key.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        certificates.files_of(tmp_path / "tls", "anna")
    (tmp_path / "tls" / certificates.AUTHORITY_KEY).unlink()
    with pytest.raises(UserError, match="issued where the authority was created"):
        certificates.issue(tmp_path / "tls", "ben")
    with pytest.raises(UserError, match="catalog workers certificate ben"):
        certificates.files_of(tmp_path / "tls", "ben")


def test_a_folder_of_certificates_alone_is_kept_out_of_git_and_of_copies(tmp_path):
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/train.py").touch()
    for folder in ("tls", "mixed"):
        certificates.issue(tmp_path / folder, "anna")
    assert (tmp_path / "tls/.gitignore").read_text() == "*\n"
    assert (tmp_path / "tls/.guild-nocopy").exists()
    assert not (tmp_path / "mixed/.gitignore").exists()
    assert not (tmp_path / "mixed/.guild-nocopy").exists()


def test_a_machine_is_healthy_or_reports_a_reason(tmp_path):
    fit = {"scratch": str(tmp_path), "seconds": 0.01}
    assert health.problem(fit) == ""
    assert "GPUs that answer" in health.problem(fit | {"gpu": 99})
    assert health.unmet(fit) == ""
    assert "GB of memory are free" in health.unmet(fit | {"memory": 1e6})
    assert "GB of disk are free" in health.unmet(fit | {"disk": 1e6})
    wrong = {"numpy": "1.0", "no-such-package": "2"}
    assert "no-such-package none instead of 2" in health.unmet(fit | {"versions": wrong})
    assert health.clock_problem(1000, 1010) == ""
    assert health.clock_problem(1000, 2000) == "its clock is 1000 s behind the submitter's"


def test_a_wrong_or_varying_product_fails_the_check(tmp_path, monkeypatch):
    demands = {"scratch": str(tmp_path), "seconds": 5.0}
    right = health._on_cpu

    def flawed(left, right_factor):
        multiply, count = right(left, right_factor), iter(range(1000))

        def sometimes():
            product = multiply()
            if next(count) == 3:
                product[0, 0] += 1
            return product

        return sometimes

    monkeypatch.setattr(health, "_on_cpu", flawed)
    assert health.problem(demands) == "the same matrix product differs from one time to the next"
    monkeypatch.setattr(health, "_on_cpu", lambda a, b: lambda: a @ b + 1)
    assert health.problem(demands) == "a matrix product is wrong by 1"

    def throws():
        raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`")

    monkeypatch.setattr(health, "_on_cpu", lambda a, b: throws)
    assert "CUBLAS_STATUS_EXECUTION_FAILED" in health.problem(demands)


def test_the_table_lists_workers_their_runs_and_which_are_drained():
    worker = {
        "gpus": ["NVIDIA GeForce RTX 3090"], "cores": 16, "memory": 64.0, "free_memory": 50.0, "free_disk": 900.0,
        "slots": 1, "running": [], "drained": "", "gpu_problem": "",
    }  # fmt: skip
    run = {"run": "7623993d" * 4, "operation": "ppo:train", "since": 0.0}
    lines = table(
        [worker | {"name": "gpu7", "running": [run]}, worker | {"name": "gpu9", "drained": "CUBLAS \x1b[31m"}],
        3660.0,
    )  # fmt: skip
    assert len(lines) == 3
    assert "RTX 3090, 16 cores, 64 GB" in lines[1]
    assert "1 of 1  ok" in lines[1]
    assert lines[1].endswith("7623993d ppo:train for 1 h 01 min")
    assert "drained: CUBLAS [31m" in lines[2]
    assert table([], 0.0) == []
