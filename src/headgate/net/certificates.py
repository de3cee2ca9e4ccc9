"""Certificates of one job: each names one worker, and is signed by the job's authority.

The driver creates one `Authority` per job, on the thread that starts the job, and sends each worker its `Credentials`
with the job's secret. The authority's own key never leaves the driver process. A worker creates its two contexts from
its credentials once, and `net.tls` uses them for every stream. The cryptography is that of the `cryptography` package
and of OpenSSL.

Every server sends its certificate to any peer that connects, so it contains nothing secret: the job's name is a digest,
which also bounds its length.

Invariants: a certificate names exactly one worker; every authority has a key of its own, so that a certificate of one
job is not accepted by another; no `repr` contains a private key, and none is left on a disk.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headgate.errors import AuthError, LocalProtocolError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from headgate.ids import JobId

__all__ = [
    "CLOCK_SKEW",
    "LIFETIME",
    "Authority",
    "Credentials",
    "client_context",
    "explain_tls_error",
    "server_context",
    "worker_name",
    "worker_of",
]

LIFETIME: Final = timedelta(days=30)
"""How long a certificate is valid. It is checked when a connection is opened, so an open connection outlives it."""

CLOCK_SKEW: Final = timedelta(hours=1)
"""How far a worker's clock may be behind the driver's."""

_MAX_WORKER: Final = 2**32 - 1  # 32 bits in the handshake and in frames
_DOMAIN: Final = "headgate.internal"  # .internal is reserved for private use: it has no owner
_WORKER_NAME: Final = re.compile(rf"worker-(0|[1-9][0-9]{{0,9}})\.{re.escape(_DOMAIN)}")

# OpenSSL's reasons for a missing or bad certificate: the peer's, or in an alert of the peer this worker's own.
_NO_PROOF: Final = frozenset({"PEER_DID_NOT_RETURN_A_CERTIFICATE", "BAD_SIGNATURE"})
_REFUSED: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_NO_CERTIFICATE",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The certificate and key of one worker, and the authority that it trusts. Secret: it holds a private key.

    >>> from datetime import UTC, datetime
    >>> from headgate.ids import JobId
    >>> Authority(JobId("etl"), datetime.now(UTC)).issue(3)
    Credentials(worker=3)
    """

    worker: int
    """The worker that the certificate names."""
    certificate: str = field(repr=False)
    """The worker's certificate, PEM. The authority's own is not part of it: every worker has that."""
    private_key: str = field(repr=False)
    """The certificate's key, PEM (PKCS 8), not encrypted."""
    authority: str = field(repr=False)
    """The certificate of the job's authority, PEM: the only trusted one."""


class Authority:
    """Issues the certificates of one job's workers, in the driver. It cannot be pickled: its key stays in the process.

    >>> from datetime import UTC, datetime
    >>> from headgate.ids import JobId
    >>> authority = Authority(JobId("etl"), datetime.now(UTC))
    >>> [authority.issue(worker) for worker in range(2)]
    [Credentials(worker=0), Credentials(worker=1)]
    """

    def __init__(self, job: JobId, now: datetime, *, lifetime: timedelta = LIFETIME) -> None:
        self._now = now
        self._lifetime = lifetime
        digest = Hash(SHA256())
        digest.update(job.encode(errors="surrogatepass"))
        self._job = x509.UniformResourceIdentifier(f"urn:headgate:job:{digest.finalize().hex()}")
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "headgate job authority")])
        public = self._key.public_key()
        constraints = x509.NameConstraints(
            permitted_subtrees=[x509.DNSName(_DOMAIN)],
            excluded_subtrees=[x509.IPAddress(ipaddress.ip_network(every)) for every in ("0.0.0.0/0", "::/0")],
        )
        self._certificate = (
            self._builder(name, public, now)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(key_cert_sign=True), critical=True)
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectAlternativeName([self._job]), critical=False)
            .sign(self._key, SHA256())
        )

    def issue(self, worker: int, *, now: datetime | None = None) -> Credentials:
        """Return a new key and certificate for a worker, valid from `now`; None: from the authority's creation.

        >>> from datetime import UTC, datetime
        >>> from headgate.ids import JobId
        >>> Authority(JobId("etl"), datetime.now(UTC)).issue(3).private_key.splitlines()[0]
        '-----BEGIN PRIVATE KEY-----'
        """
        name = worker_name(worker)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        key = ec.generate_private_key(ec.SECP256R1())
        # One certificate for both directions: every worker both listens and connects.
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            self._builder(subject, key.public_key(), self._now if now is None else now)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(usages, critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), self._job]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        return Credentials(
            worker=worker,
            certificate=_pem(certificate),
            private_key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"),
            authority=_pem(self._certificate),
        )

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
        """Return the common part of the authority's certificate and those of workers."""
        if now.tzinfo is None:
            raise LocalProtocolError("a certificate takes a time with a time zone: datetime.now(UTC)")
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + self._lifetime)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )


def worker_name(worker: int) -> str:
    """Return the name of a worker in its certificate. It is not an address: those are not known at that time.

    >>> worker_name(3)
    'worker-3.headgate.internal'
    """
    if not 0 <= worker <= _MAX_WORKER:
        raise LocalProtocolError(f"worker {worker}: workers are numbered from 0 to {_MAX_WORKER}")
    return f"worker-{worker}.{_DOMAIN}"


def worker_of(certificate: bytes) -> int:
    """Return the number of the worker that a certificate (DER) names. The caller has verified its signature.

    >>> import ssl
    >>> from datetime import UTC, datetime
    >>> from headgate.ids import JobId
    >>> credentials = Authority(JobId("etl"), datetime.now(UTC)).issue(3)
    >>> worker_of(ssl.PEM_cert_to_DER_cert(credentials.certificate))
    3

    Raises:
        AuthError: it names no worker, or several.
    """
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise AuthError("the peer's certificate names no worker") from error
    found = [_WORKER_NAME.fullmatch(name) for name in names.get_values_for_type(x509.DNSName)]
    if len(found) != 1 or found[0] is None or (worker := int(found[0][1])) > _MAX_WORKER:
        raise AuthError("the peer's certificate names no worker")
    return worker


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of the connecting side: it trusts the job's authority only, and checks the worker's name.

    >>> from datetime import UTC, datetime
    >>> from headgate.ids import JobId
    >>> context = client_context(Authority(JobId("etl"), datetime.now(UTC)).issue(0))
    >>> context.verify_mode.name, context.check_hostname, context.minimum_version.name
    ('CERT_REQUIRED', True, 'TLSv1_3')
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)
    # The name is that of a worker number (`worker_name`), not of a host. OpenSSL compares it within its handshake, so
    # that the wrong worker does not even get this worker's certificate.
    context.check_hostname = True
    context.hostname_checks_common_name = False
    return context


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of the accepting side: it requires a certificate of the job's authority.

    >>> from datetime import UTC, datetime
    >>> from headgate.ids import JobId
    >>> context = server_context(Authority(JobId("etl"), datetime.now(UTC)).issue(1))
    >>> context.verify_mode.name, context.num_tickets
    ('CERT_REQUIRED', 0)
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
    context.num_tickets = 0  # OP_NO_TICKET covers only TLS 1.2: no session is ever resumed
    return context


def explain_tls_error(error: ssl.SSLError, peer: str) -> AuthError | TransportError:
    """Return headgate's error for one of TLS: AuthError if a certificate is the reason, the peer's or this worker's.

    It has no `__cause__`: that would keep frames alive, and its text is included.

    >>> arrived = ssl.MemoryBIO(); arrived.write(b"HTTP/1.1 400 Bad Request")
    24
    >>> try:
    ...     ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_bio(arrived, ssl.MemoryBIO(), server_side=True).do_handshake()
    ... except ssl.SSLError as error:
    ...     explain_tls_error(error, "10.0.0.7:7077")
    TransportError('TLS failed: wrong version number; does the peer speak TLS 1.3? (10.0.0.7:7077)')
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthError(f"the certificate of {peer} is not accepted: {error.verify_message}")
    reason = error.reason or str(error)
    text = reason.lower().replace("_", " ")
    if reason in _NO_PROOF:
        return AuthError(f"{peer} did not prove that it belongs to this job: {text}")
    if reason in _REFUSED:
        return AuthError(f"{peer} does not accept this worker's certificate: {text}")
    hint = "; does the peer speak TLS 1.3?" if "version" in text or "protocol" in text or "http" in text else ""
    return TransportError(f"TLS failed: {text}{hint}", peer=peer)


def _context(protocol: int, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.load_verify_locations(cadata=credentials.authority)  # and no authority of the system
    with _nameless_file(credentials.certificate + credentials.private_key) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _nameless_file(text: str) -> Iterator[str]:
    """Yield a path with the text, for `load_cert_chain`, which takes only paths: in memory if the system can."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("headgate credentials"), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:  # readable by this user only
            file.write(text)
            file.flush()
            yield file.name


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode("ascii")
