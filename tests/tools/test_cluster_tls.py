"""A cluster whose sides show each other certificates: who has none is not let in."""

from __future__ import annotations

import json

import pytest
from command_line import run_cli
from farms import farm_of_two, own_records

distributed = pytest.importorskip("distributed", reason="pip install 'convdispatch[cluster]'")
pytest.importorskip("cryptography", reason="makes the certificates")

PROBLEMS = [f"mb1ic4ih{size}oc4kh1" for size in (5, 6, 7, 8)]


def certificate(folder):
    """The options that name a new key, its certificate, and that as the one authority."""
    made = distributed.Security.temporary()
    folder.mkdir()
    (folder / "key.pem").write_text(made.tls_client_key)
    (folder / "cert.pem").write_text(made.tls_client_cert)
    files = {"--tls-ca-file": "cert.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
    return [word for option, name in files.items() for word in (option, str(folder / name))]


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    """Two workers and their scheduler, which share a certificate."""
    folder = tmp_path_factory.mktemp("tls")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONVDISPATCH_PLUGINS", "im2col")
        with farm_of_two(folder, *certificate(folder / "ours")) as made:
            yield made


@pytest.fixture
def find(farm, tmp_path, monkeypatch):
    """Runs ``find --cluster`` with these options more; an own database."""
    words = ["find", *PROBLEMS, "--budget", "100", "--json", "--cluster"]
    with own_records(tmp_path / "db", monkeypatch):
        yield lambda *options, address=farm.address: run_cli(*words, address, *options)


def test_two_workers_measure_for_who_shows_a_certificate(farm, find):
    assert farm.address.startswith("tls://127.0.0.1:")
    done = find(*farm.options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found) == len(PROBLEMS)
    assert {results["worker"].partition("/")[0] for results in found} == {"one", "two"}


@pytest.mark.parametrize(
    ("who", "hint"),
    [
        ("nobody", "--tls-ca-file, --tls-cert and --tls-key name the files"),
        ("a stranger", "wants a certificate that its authority signed"),
        ("not even TLS", "one that has certificates is at tls://"),
        ("by the wrong door", "its address begins with tls://"),
    ],
)
def test_who_has_none_or_another_authoritys_is_not_let_in(farm, find, tmp_path, monkeypatch, who, hint):
    monkeypatch.setattr("convdispatch.cluster.running.CONNECT_S", 2.0)  # who is never let in tries for as long
    options = {"a stranger": certificate(tmp_path / "theirs"), "by the wrong door": farm.options}.get(who, ())
    address = farm.address if who in ("nobody", "a stranger") else farm.address.replace("tls", "tcp")
    done = find(*options, address=address)
    assert done.exit_code != 0
    said = " ".join(done.stderr.split())
    assert f"no scheduler can be used at {address}" in said
    assert hint in said


def test_a_file_that_is_missing_is_named(find, tmp_path):
    missing = tmp_path / "nowhere.pem"
    done = find("--tls-ca-file", str(missing), "--tls-cert", str(missing), "--tls-key", str(missing))
    assert done.exit_code != 0
    assert str(missing) in done.stderr
