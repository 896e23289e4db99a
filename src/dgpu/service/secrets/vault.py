"""Seals values of tenants with AES-256-GCM. Only the service has the keys; the core and the journal get ciphertext.

A sealed value is: format (1 byte), key id (4), nonce (12), ciphertext with tag. Each tenant has its own keys, derived
with HKDF from the newest key of the key file. The associated data binds a value to its tenant and its name, so a
ciphertext that is moved to another place of the state does not open there.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dgpu.core.model.ids import TenantId
from dgpu.service.access.key_file import load_keys, new_key, write_keys
from dgpu.service.secrets.opened import CannotOpen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_NAME: Final = "secrets.key"
MAX_KEYS: Final = 16  # more than two only after rotations that did not end
_FORMAT: Final = b"\x01"
_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = len(_FORMAT) + _ID_BYTES + _NONCE_BYTES
_KNOWN_TENANTS: Final = 4_096

_SECRETS_LOST: Final = (
    "every secret has to be set again, and waiting tasks with variables have to be submitted again"
)


class _TenantKeys(NamedTuple):
    cipher: AESGCM
    nonce_key: bytes


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
        return self._seal(tenant_id, _aad("secret", tenant_id, name), value, os.urandom(_NONCE_BYTES))

    def open_secret(self, tenant_id: TenantId, name: str, sealed: bytes) -> bytes:
        return self._open(tenant_id, _aad("secret", tenant_id, name), sealed)

    def seal_env(self, tenant_id: TenantId, values: bytes) -> bytes:
        """Equal values of a tenant give equal ciphertext, so equal tasks still share one detail. The nonce is a keyed
        hash of the values: it repeats only with them.
        """
        keys = _tenant_keys(self._keys[0], tenant_id)
        nonce = hmac.digest(keys.nonce_key, values, "sha256")[:_NONCE_BYTES]
        return self._seal(tenant_id, _aad("env", tenant_id), values, nonce)

    def open_env(self, tenant_id: TenantId, sealed: bytes) -> bytes:
        return self._open(tenant_id, _aad("env", tenant_id), sealed)

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
        return self._by_id.get(sealed[1 : 1 + _ID_BYTES]) if sealed.startswith(_FORMAT) else None

    def _seal(self, tenant_id: TenantId, aad: bytes, value: bytes, nonce: bytes) -> bytes:
        key = self._keys[0]
        return _FORMAT + _id_of(key) + nonce + _tenant_keys(key, tenant_id).cipher.encrypt(nonce, value, aad)

    def _open(self, tenant_id: TenantId, aad: bytes, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        key = self._key_of(sealed)
        if key is None or len(sealed) <= _HEAD_BYTES:
            raise CannotOpen(f"it is sealed under a key that {self._path.name} does not have")
        nonce = sealed[1 + _ID_BYTES : _HEAD_BYTES]
        try:
            return _tenant_keys(key, tenant_id).cipher.decrypt(nonce, sealed[_HEAD_BYTES:], aad)
        except InvalidTag:
            raise CannotOpen("its ciphertext is damaged or belongs to another name or tenant") from None


@functools.lru_cache(maxsize=_KNOWN_TENANTS)
def _tenant_keys(key: bytes, tenant_id: TenantId) -> _TenantKeys:
    # Imported at the first use: it takes as long as a tenth of a start.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"dgpu tenant " + tenant_id.encode()
    derived = HKDF(algorithm=SHA256(), length=64, salt=None, info=info).derive(key)
    return _TenantKeys(AESGCM(derived[:32]), derived[32:])


@functools.lru_cache(maxsize=64)
def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"dgpu key id " + key).digest()[:_ID_BYTES]


def _aad(*words: str) -> bytes:
    """No name contains a NUL."""
    return "\0".join(("dgpu", *words)).encode()
