"""The lab's own certificate authority, and a certificate for each user and machine.

A TLS folder holds `ca.pem`, and `NAME.pem` with `NAME.key` for each name used there. `authority.key`, which signs,
stays on one machine: a machine or user gets a copy of `ca.pem` and of its own two files, nothing else.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

from runcatalog.cluster.engines import NAME
from runcatalog.record.errors import UserError

AUTHORITY, AUTHORITY_KEY = "ca.pem", "authority.key"
SCHEDULER = "scheduler"  # name of its certificate
_YEARS = {"authority": 10, "certificate": 2}
_CLOCK_ERROR = datetime.timedelta(hours=1)  # by which clocks of machines may differ


def issue(folder: Path, name: str) -> Path:
    """Write a certificate and its key, signed by the authority in the folder, which is created with the first one.

    Args:
        folder: The TLS folder.
        name: Name of a user or machine, or "scheduler".

    Returns:
        The certificate; its key lies beside it, readable by its owner alone.

    Raises:
        UserError: The name is not valid or has a certificate, or the folder has an authority without its key.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    if not NAME.fullmatch(name) or name in ("ca", "authority"):
        raise UserError(f"{name!r} is no name for a certificate: letters, digits, _, - and .")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    if certificate.exists() or key.exists():
        raise UserError(f"{certificate} exists; remove it and {key.name} to replace them")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _keep_private(folder)
    if not (folder / AUTHORITY).exists():
        _write(folder, AUTHORITY, AUTHORITY_KEY, *_sign("lab authority", None, None))
    try:
        authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        signer = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    except FileNotFoundError:
        raise UserError(
            f"{folder / AUTHORITY_KEY} is missing: certificates are issued where the authority was created"
        ) from None
    except ValueError as error:
        raise UserError(f"{folder}: the authority cannot be read: {error}") from None
    _write(folder, certificate.name, key.name, *_sign(name, authority, signer))
    return certificate


def _keep_private(folder: Path) -> None:
    """Keep a folder that has nothing but certificates out of git, and out of the runs' copies of the code."""
    if all(path.suffix in (".pem", ".key") for path in folder.iterdir()):
        (folder / ".gitignore").write_text("*\n")
        (folder / ".guild-nocopy").touch()


def files_of(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Return the authority's certificate, and certificate and key of a name.

    Raises:
        UserError: One of them is missing, or others can read the key.
    """
    files = folder / AUTHORITY, folder / f"{name}.pem", folder / f"{name}.key"
    for path in files:
        if not path.is_file():
            raise UserError(f"{path} is missing; `catalog workers certificate {name}` issues it")
    if files[2].stat().st_mode & 0o077:
        raise UserError(f"{files[2]} can be read by others: chmod 600 {files[2]}")
    return files


def _sign(name: str, authority: Any, signer: Any) -> tuple[Any, Any]:
    """Return a certificate and its key; without an authority that of an authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    years = _YEARS["certificate" if authority else "authority"]
    is_authority = authority is None
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if is_authority else authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_ERROR)
        .not_valid_after(now + datetime.timedelta(days=365 * years))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                **usage,
            ),
            True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )
    issuer = key.public_key() if is_authority else authority.public_key()
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False
    )
    if not is_authority:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), False)
    return builder.sign(signer or key, hashes.SHA256()), key


def _write(folder: Path, certificate_name: str, key_name: str, certificate: Any, key: Any) -> None:
    from cryptography.hazmat.primitives import serialization

    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        descriptor = os.open(folder / key_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{folder / key_name} exists; it is being written, or was left") from None
    with open(descriptor, "wb") as file:
        file.write(content)
    (folder / certificate_name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
