"""Sealed values open only with the right key, for the right tenant and under the right name."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from dgpu.core.model.ids import TenantId
from dgpu.core.model.secrets import MAX_SEALED_BYTES, MAX_VALUE_BYTES, Secret, SecretUse, secret_id
from dgpu.core.model.task import TaskDetail
from dgpu.service.secrets.details import open_detail, seal_env, sealed_under_newest
from dgpu.service.secrets.opened import CannotOpen, Opened
from dgpu.service.secrets.vault import KEY_NAME, Vault

LAB, RIVAL = TenantId("lab"), TenantId("rival")
VALUE = b"xyzzy-plugh"


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault.load(tmp_path)


def detail_of(**fields: object) -> bytes:
    return msgspec.json.encode(TaskDetail(command="train", **fields))  # type: ignore[arg-type]


def opened(vault: Vault, detail: bytes, *secrets: Secret) -> tuple[TaskDetail, Opened]:
    found = open_detail(vault, LAB, detail, {secret_id(each.tenant_id, each.name): each for each in secrets})
    return msgspec.json.decode(found.detail, type=TaskDetail), found


def test_a_value_opens_again_also_after_a_restart(vault, tmp_path: Path) -> None:
    sealed = vault.seal_secret(LAB, "KEY", VALUE)
    assert VALUE not in sealed
    assert Vault.load(tmp_path).open_secret(LAB, "KEY", sealed) == VALUE
    assert stat.S_IMODE((tmp_path / KEY_NAME).stat().st_mode) == 0o600


def test_values_that_an_earlier_version_sealed_stay_readable(tmp_path: Path) -> None:
    """The derivation of keys and the format may not change without a new format number."""
    (tmp_path / KEY_NAME).write_text(bytes(range(32)).hex())
    vault = Vault.load(tmp_path)
    env = bytes.fromhex("020c1e686add91de65928b13a0636b27f73b48365b6565ee47e22e72f82a6d4a")
    secret = bytes.fromhex(
        "010c1e686a142b4586eb0d07a6f632455aa2cf09255ebd1b5a9de5e83a1fcd74aa5ef9eab765d69c70690b6a"
    )
    assert (vault.open_env(LAB, env), vault.open_secret(LAB, "KEY", secret)) == (VALUE, VALUE)
    assert vault.seal_env(LAB, VALUE) == env


def test_the_largest_value_fits_the_bound_of_the_state(vault) -> None:
    assert len(vault.seal_secret(LAB, "KEY", b"x" * MAX_VALUE_BYTES)) <= MAX_SEALED_BYTES


def test_equal_secrets_look_different(vault) -> None:
    assert vault.seal_secret(LAB, "KEY", VALUE) != vault.seal_secret(LAB, "KEY", VALUE)


def test_equal_variables_of_a_tenant_look_equal_and_of_two_tenants_different(vault) -> None:
    """Equal tasks of a batch share one detail in memory and in a snapshot."""
    first, second = vault.seal_env(LAB, VALUE), vault.seal_env(LAB, VALUE)
    assert first == second
    assert vault.seal_env(RIVAL, VALUE)[5:] != first[5:]
    assert vault.seal_env(LAB, VALUE + b"!")[5:20] != first[5:20], "similar values look similar"


@pytest.mark.parametrize("place", [(RIVAL, "KEY"), (LAB, "OTHER")])
def test_a_ciphertext_moved_to_another_tenant_or_name_does_not_open(
    vault, place: tuple[TenantId, str]
) -> None:
    sealed = vault.seal_secret(LAB, "KEY", VALUE)
    with pytest.raises(CannotOpen, match="another name or tenant"):
        vault.open_secret(*place, sealed)


def test_variables_do_not_open_as_a_secret(vault) -> None:
    with pytest.raises(CannotOpen):
        vault.open_secret(LAB, "env", vault.seal_env(LAB, VALUE))
    with pytest.raises(CannotOpen):
        vault.open_env(LAB, vault.seal_secret(LAB, "KEY", VALUE))
    with pytest.raises(CannotOpen):
        vault.open_env(RIVAL, vault.seal_env(LAB, VALUE))


@pytest.mark.parametrize("kind", ["secret", "env"])
def test_every_changed_byte_is_noticed(vault, kind: str) -> None:
    def open_it(sealed: bytes) -> bytes:
        return vault.open_secret(LAB, "KEY", sealed) if kind == "secret" else vault.open_env(LAB, sealed)

    sealed = vault.seal_secret(LAB, "KEY", VALUE) if kind == "secret" else vault.seal_env(LAB, VALUE)
    assert open_it(sealed) == VALUE
    for place in range(len(sealed)):
        with pytest.raises(CannotOpen):
            open_it(sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :])
    for length in range(len(sealed)):
        with pytest.raises(CannotOpen):
            open_it(sealed[:length])


def test_another_key_is_named_as_the_cause(vault, tmp_path: Path) -> None:
    sealed = vault.seal_secret(LAB, "KEY", VALUE)
    (tmp_path / KEY_NAME).unlink()
    with pytest.raises(CannotOpen, match=r"a key that secrets\.key does not have"):
        Vault.load(tmp_path).open_secret(LAB, "KEY", sealed)


@pytest.mark.parametrize("text", ["", "xyz", "00" * 31, "00" * 32 + "\n" + "11" * 31, "ü" * 64])
def test_a_damaged_key_file_is_refused_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / KEY_NAME).write_text(text)
    with pytest.raises(OSError, match="Restore the file from a backup, or delete it") as refused:
        Vault.load(tmp_path)
    assert "every secret has to be set again" in str(refused.value)
    assert (tmp_path / KEY_NAME).read_text() == text, "the file is evidence"


def test_a_rotation_keeps_one_old_key(vault, tmp_path: Path) -> None:
    first = vault.seal_secret(LAB, "KEY", VALUE)
    vault.begin_rotation()
    second = vault.seal_secret(LAB, "KEY", VALUE)
    assert vault.is_current(second)
    assert not vault.is_current(first)
    assert vault.end_rotation() == 0
    vault.begin_rotation()
    assert Vault.load(tmp_path).open_secret(LAB, "KEY", first) == VALUE, (
        "until it has ended, no key is dropped"
    )
    assert vault.end_rotation() == 1
    again = Vault.load(tmp_path)
    assert again.open_secret(LAB, "KEY", second) == VALUE
    with pytest.raises(CannotOpen):
        again.open_secret(LAB, "KEY", first)


def test_a_detail_without_values_passes_unchanged(vault) -> None:
    for detail in (
        detail_of(),
        detail_of(env={"A": "clear"}),
        detail_of(labels={"secrets": "x", "sealed_env": "y"}),
    ):
        assert open_detail(vault, LAB, detail, {}) == Opened(detail, {})


def test_variables_and_secrets_reach_the_order(vault) -> None:
    env = {"A": "1", "B": VALUE.decode()}
    uses = {"KEY": SecretUse(env="TOKEN"), "cert": SecretUse(file="tls.pem")}
    detail = detail_of(env=dict.fromkeys(env, ""), sealed_env=seal_env(vault, LAB, env), secrets=uses)
    assert VALUE not in detail
    known = [
        Secret(tenant_id=LAB, name=name, sealed=vault.seal_secret(LAB, name, value))
        for name, value in (("KEY", b"t"), ("cert", b"\0binary"))
    ]
    task, found = opened(vault, detail, *known)
    assert task == TaskDetail(command="train", env={**env, "TOKEN": "t"})
    assert found.files == {"tls.pem": b"\0binary"}
    assert "binary" not in repr(found)


def test_a_missing_secret_names_itself_and_its_remedy(vault) -> None:
    with pytest.raises(
        CannotOpen, match=r"secret KEY of tenant lab was deleted. To set it: dgpu secret set KEY -A lab"
    ):
        opened(vault, detail_of(secrets={"KEY": SecretUse(env="KEY")}))


def test_a_binary_secret_fits_no_variable_and_is_not_shown(vault) -> None:
    for value in (b"\xffword", b"wo\0rd"):
        secret = Secret(tenant_id=LAB, name="KEY", sealed=vault.seal_secret(LAB, "KEY", value))
        with pytest.raises(CannotOpen, match="--secret KEY:file") as refused:
            opened(vault, detail_of(secrets={"KEY": SecretUse(env="KEY")}), secret)
        assert "wo" not in str(refused.value)


def test_variables_of_an_older_journal_are_sealed_when_they_are_stored_again(vault) -> None:
    resealed = sealed_under_newest(vault, LAB, detail_of(env={"A": VALUE.decode()}))
    assert VALUE not in resealed
    assert opened(vault, resealed)[0].env == {"A": VALUE.decode()}
    assert sealed_under_newest(vault, LAB, resealed) == resealed
    vault.begin_rotation()
    newest = sealed_under_newest(vault, LAB, resealed)
    assert newest != resealed
    assert opened(vault, newest)[0] == opened(vault, resealed)[0]
