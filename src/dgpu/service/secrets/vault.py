"""Seals values of tenants. Only the service has the keys; the core and the journal get ciphertext.

Secrets are sealed with AES-256-GCM and a random nonce, variables with AES-256-SIV (RFC 5297), which needs none: equal
variables give equal ciphertext. Each tenant has its own keys, derived with HKDF from the newest key of the key file.
The associated data binds a value to its tenant and its name, so a ciphertext that is moved to another place of the
state does not open there. A sealed value begins with its format (1 byte) and the id of its key (4).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dgpu.core.model.ids import TenantId
from dgpu.service.access.key_file import load_keys, new_key, write_keys
from dgpu.service.secrets.opened import CannotOpen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

KEY_NAME: Final = "secrets.key"
MAX_KEYS: Final = 16  # more than two only after rotations that did not end
_SECRET, _ENV = b"\x01", b"\x02"  # formats
_ID_BYTES: Final = 4
_HEAD_BYTES: Final = 1 + _ID_BYTES
_NONCE_BYTES: Final = 12
_KNOWN_TENANTS: Final = 4_096
_KNOWN_VALUES: Final = 256
_MAX_KNOWN_BYTES: Final = 8_192

_SECRETS_LOST: Final = (
    "every secret has to be set again, and waiting tasks with variables have to be submitted again"
)


class _TenantKeys(NamedTuple):
    of_secrets: AESGCM
    of_env: AESSIV


class Vault:
    """The first key seals; all keys open."""

    def __init__(self, path: Path, keys: list[bytes]) -> None:
        self._path = path
        self._keys = keys
        self._by_id = {_id_of(key): key for key in keys}

    @classmethod
    def load(cls, directory: Path) -> Vault:
        """Raises OSError for a damaged key file."""
        path = directory / KEY_NAME
        return cls(path, load_keys(path, most=MAX_KEYS, without=_SECRETS_LOST))

    def seal_secret(self, tenant_id: TenantId, name: str, value: bytes) -> bytes:
        key, nonce = self._keys[0], os.urandom(_NONCE_BYTES)
        cipher = _tenant_keys(key, tenant_id).of_secrets
        return _SECRET + _id_of(key) + nonce + cipher.encrypt(nonce, value, _aad(tenant_id, name))

    def open_secret(self, tenant_id: TenantId, name: str, sealed: bytes) -> bytes:
        """Raises CannotOpen."""
        cipher, sealed = self._opener(_SECRET, tenant_id, sealed).of_secrets, sealed[_HEAD_BYTES:]
        with _explained():
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _aad(tenant_id, name))

    def seal_env(self, tenant_id: TenantId, values: bytes) -> bytes:
        """Equal values of a tenant give equal ciphertext, so equal tasks still share one detail."""
        seal = _seal_env if len(values) > _MAX_KNOWN_BYTES else _seal_env_again
        return seal(self._keys[0], tenant_id, values)

    def open_env(self, tenant_id: TenantId, sealed: bytes) -> bytes:
        """Raises CannotOpen."""
        cipher = self._opener(_ENV, tenant_id, sealed).of_env
        with _explained():
            return cipher.decrypt(sealed[_HEAD_BYTES:], [_aad(tenant_id)])

    def is_current(self, sealed: bytes) -> bool:
        return self._key_of(sealed) == self._keys[0]

    def is_known(self, sealed: bytes) -> bool:
        """Whether the key file still has its key."""
        return self._key_of(sealed) is not None

    def begin_rotation(self) -> None:
        """From now on a new key seals. All earlier ones still open. Blocks until the file is durable."""
        self._adopt([new_key(), *self._keys][:MAX_KEYS])

    def end_rotation(self) -> int:
        """The key before the newest one stays: submits that were under way and older records use it. Returns the number
        of dropped keys.
        """
        dropped = len(self._keys[2:])
        if dropped:
            self._adopt(self._keys[:2])
        return dropped

    def _adopt(self, keys: list[bytes]) -> None:
        write_keys(self._path, keys)
        self._keys = keys
        self._by_id = {_id_of(key): key for key in keys}

    def _key_of(self, sealed: bytes) -> bytes | None:
        return self._by_id.get(sealed[1:_HEAD_BYTES])

    def _opener(self, form: bytes, tenant_id: TenantId, sealed: bytes) -> _TenantKeys:
        key = self._key_of(sealed)
        if key is None or not sealed.startswith(form):
            raise CannotOpen(f"it is sealed under a key that {self._path.name} does not have")
        return _tenant_keys(key, tenant_id)


def _seal_env(key: bytes, tenant_id: TenantId, values: bytes) -> bytes:
    return _ENV + _id_of(key) + _tenant_keys(key, tenant_id).of_env.encrypt(values, [_aad(tenant_id)])


# A client that submits task after task sends the same variables each time.
_seal_env_again = functools.lru_cache(maxsize=_KNOWN_VALUES)(_seal_env)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from cryptography.exceptions import InvalidTag

    try:
        yield
    except (InvalidTag, ValueError):  # ValueError: too short
        raise CannotOpen("its ciphertext is damaged or belongs to another name or tenant") from None


@functools.lru_cache(maxsize=_KNOWN_TENANTS)
def _tenant_keys(key: bytes, tenant_id: TenantId) -> _TenantKeys:
    # Imported at the first use: it takes as long as a tenth of a start.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"dgpu tenant " + tenant_id.encode()
    derived = HKDF(algorithm=SHA256(), length=96, salt=None, info=info).derive(key)
    return _TenantKeys(AESGCM(derived[:32]), AESSIV(derived[32:]))


@functools.lru_cache(maxsize=64)
def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"dgpu key id " + key).digest()[:_ID_BYTES]


def _aad(*names: str) -> bytes:
    """No name contains a NUL."""
    return "\0".join(names).encode()
