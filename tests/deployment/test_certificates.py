"""Certificates over the years: a new site, a new certificate, a revoked key, and what is told before one ends."""

from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedwinnow.cli import main
from fedwinnow.deployment import certificates as making
from fedwinnow.deployment.expiry import COORDINATOR, SITE, check_expiry
from fedwinnow.deployment.keys import ServerFiles
from fedwinnow.errors import DataError

PASSPHRASE = "a long enough phrase"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "phrase").write_text(PASSPHRASE + "\n")
    code = command(
        "--host",
        "localhost",
        "127.0.0.1",
        "--sites",
        "a",
        "b",
        "--passphrase",
        tmp_path / "phrase",
        out=tmp_path / "certs",
    )
    assert code == 0
    return tmp_path / "certs"


def command(*words: object, out: Path) -> int:
    with pytest.raises(SystemExit) as end:
        main(["certificates", *map(str, words), "--out", str(out)])
    return int(end.value.code or 0)


def trusted(folder: Path) -> None:
    """What a TLS client does: the certificate is signed by ca.crt, and the key belongs to it."""
    authority, server = (
        x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(authority)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(folder / "server.crt", folder / "server.key")


def test_the_authority_key_is_kept_under_the_passphrase_only(folder: Path) -> None:
    kept = (folder / "ca.key").read_bytes()
    assert b"ENCRYPTED" in kept
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    for wrong in (None, b"another phrase, long"):
        with pytest.raises((TypeError, ValueError), match=r"[Pp]assword"):
            load_pem_private_key(kept, wrong)
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    assert load_pem_private_key(kept, PASSPHRASE.encode()).public_key() == authority.public_key()
    assert not list(folder.glob("*/ca.key"))  # no site gets it


def test_without_a_passphrase_the_key_is_not_kept_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--host", "localhost", "--sites", "a", out=tmp_path / "certs") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the authority's key was not kept" in said
    assert not (tmp_path / "certs" / "ca.key").exists()
    (tmp_path / "phrase").write_text(PASSPHRASE)
    for words in (("--passphrase", tmp_path / "phrase"), ()):  # nobody is asked for a passphrase that opens nothing
        assert command("--renew", *words, out=tmp_path / "certs") == 3
        assert "there is no ca.key" in " ".join(capsys.readouterr().err.split())
    assert command("--renew", out=tmp_path / "nowhere") == 3
    assert f"--out {tmp_path / 'nowhere'}: there is no ca.crt" in " ".join(capsys.readouterr().err.split())


def test_a_new_site_is_known_and_the_others_keep_their_keys(folder: Path) -> None:
    before = ServerFiles(folder).site_keys()
    assert command("--add", "c", out=folder) == 0
    after = ServerFiles(folder).site_keys()
    assert set(after) == {"a", "b", "c"}
    assert {name: after[name] for name in before} == before
    assert len(set(after.values())) == 3
    assert (folder / "c" / "ca.crt").read_bytes() == (folder / "ca.crt").read_bytes()
    assert stat.S_IMODE((folder / "c" / "site.key").stat().st_mode) == 0o600


def test_a_revoked_site_is_unknown_and_its_name_is_not_given_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ServerFiles(folder).site_keys()["a"]
    assert command("--revoke", "a", out=folder) == 0
    assert set(ServerFiles(folder).site_keys()) == {"b"}
    assert (folder / "revoked" / "a.pub").read_bytes() == key
    assert command("--add", "A", out=folder) == 2
    capsys.readouterr()
    assert command("--revoke", "a", out=folder) == 2
    assert "it was revoked already" in " ".join(capsys.readouterr().err.split())
    assert command("--revoke", "z", out=folder) == 2
    assert "has the sites b" in " ".join(capsys.readouterr().err.split())


def test_a_renewed_certificate_is_later_and_trusted_by_the_old_authority(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    authority, key = (folder / "ca.crt").read_bytes(), (folder / "server.key").read_bytes()
    monkeypatch.setattr(making, "DAYS_OF_SERVER", 900)
    assert command("--renew", "--passphrase", folder.parent / "phrase", out=folder) == 0
    new = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    assert new.not_valid_after_utc - old.not_valid_after_utc > datetime.timedelta(days=70)
    names = [each.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for each in (old, new)]
    assert names[0] == names[1]
    assert ((folder / "ca.crt").read_bytes(), (folder / "server.key").read_bytes()) == (authority, key)
    trusted(folder)


@pytest.mark.parametrize("phrase", ["", "not the phrase at all"])
def test_a_wrong_passphrase_changes_nothing(folder: Path, phrase: str) -> None:
    before = (folder / "server.crt").read_bytes()
    (folder.parent / "wrong").write_text(phrase)
    assert command("--renew", "--passphrase", folder.parent / "wrong", out=folder) == 2
    assert (folder / "server.crt").read_bytes() == before


def test_no_certificate_outlives_its_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "DAYS_OF_AUTHORITY", 10)
    making.make_certificates(tmp_path / "certs", ("localhost",), ("a",))
    dates = [
        x509.load_pem_x509_certificate((tmp_path / "certs" / name).read_bytes()).not_valid_after_utc
        for name in ("ca.crt", "server.crt")
    ]
    assert dates[1] <= dates[0]


@pytest.mark.parametrize(("days", "told"), [(31, 0), (29, 1)])
def test_an_end_is_told_thirty_days_ahead(
    days: int, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "DAYS_OF_SERVER", days)
    making.make_certificates(tmp_path / "certs", ("localhost",), ("a",))
    said: list[str] = []
    check_expiry(tmp_path / "certs", COORDINATOR, said.append)
    check_expiry(tmp_path / "certs" / "a", SITE, said.append)
    assert len(said) == told
    assert all("server.crt" in line and "28 days" in line and "--renew" in line for line in said)


def test_a_certificate_that_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "DAYS_OF_AUTHORITY", 0)
    making.make_certificates(tmp_path / "certs", ("localhost",), ("a",))
    with pytest.raises(DataError, match=r"ca\.crt: ended on"):
        check_expiry(tmp_path / "certs" / "a", SITE, print)


def test_a_file_that_is_no_certificate_is_named(folder: Path) -> None:
    (folder / "server.crt").write_text("text")
    with pytest.raises(DataError, match=r"server\.crt: is not a certificate"):
        check_expiry(folder, COORDINATOR, print)


@pytest.mark.parametrize(
    "words", [("--add", "c", "--renew"), ("--add", "c", "--host", "x"), ("--add", "ca.key"), ("--revoke", "z")]
)
def test_what_cannot_be_is_refused(folder: Path, words: tuple[str, ...]) -> None:
    before = sorted(path.name for path in folder.rglob("*"))
    assert command(*words, out=folder) == 2
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_short_passphrase_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "phrase").write_text("short")
    words = ("--host", "localhost", "--sites", "a", "--passphrase", tmp_path / "phrase")
    assert command(*words, out=tmp_path / "certs") == 2
    assert not (tmp_path / "certs").exists()
