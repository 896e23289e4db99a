"""Key files of several schedulers: the engine holds a fingerprint of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.journal.engine import Term
from dgpu.journal.memory_engine import MemoryEngine
from dgpu.service.access.key_file import KEY_NAME, new_key, write_keys
from dgpu.service.leadership.shared_keys import SharedKeys, refuse_other_keys
from dgpu.service.options import OptionsRefused
from dgpu.service.secrets.vault import KEY_NAME as SECRETS_KEY
from dgpu.service.secrets.vault import Vault
from engine_contract import elected


@pytest.fixture
def master(tmp_path: Path) -> Path:
    return directory(tmp_path / "a", token=bytes(32), secrets=bytes(32))


@pytest.fixture
def standby(tmp_path: Path) -> Path:
    return directory(tmp_path / "b", token=bytes(32), secrets=bytes(32))


def directory(path: Path, *, token: bytes, secrets: bytes) -> Path:
    path.mkdir()
    write_keys(path / KEY_NAME, [token])
    write_keys(path / SECRETS_KEY, [secrets])
    return path


def keys(
    path: Path, engine: MemoryEngine, term: Term | None = None, *, accept_new: bool = False
) -> SharedKeys:
    return SharedKeys(path, engine, accept_new=accept_new, term=lambda: term, differs=lambda _: None)


def test_the_engine_learns_fingerprints_and_no_key(master: Path) -> None:
    engine = MemoryEngine()
    keys(master, engine).lead(elected(engine))
    prints = engine.key_prints()
    assert set(prints) == {KEY_NAME, SECRETS_KEY}
    assert prints[KEY_NAME] != prints[SECRETS_KEY], "equal keys of two files are not seen"
    assert bytes(32).hex() not in str(prints)


def test_equal_files_are_accepted_and_other_ones_named(master: Path, standby: Path) -> None:
    engine = MemoryEngine()
    keys(master, engine).lead(elected(engine))
    refuse_other_keys(standby, engine)
    assert keys(standby, engine).look() is None
    write_keys(standby / KEY_NAME, [new_key()])
    with pytest.raises(OptionsRefused, match=str(standby / KEY_NAME)):
        refuse_other_keys(standby, engine)


def test_an_authority_counts_too(master: Path, standby: Path) -> None:
    engine = MemoryEngine()
    for path, text in ((master, "one"), (standby, "two")):
        (path / "ca").mkdir()
        (path / "ca" / "authority.pem").write_text(text)
    keys(master, engine).lead(elected(engine))
    with pytest.raises(OptionsRefused, match=r"ca/authority\.pem is not the file"):
        refuse_other_keys(standby, engine)


def test_a_rotation_makes_a_standby_without_the_new_key_unfit(master: Path, standby: Path) -> None:
    """It could not open secrets after a takeover. A file that also has the earlier keys is accepted."""
    engine = MemoryEngine()
    term = elected(engine)
    leading = keys(master, engine, term)
    leading.lead(term)
    Vault.load(master).begin_rotation()
    refuse_other_keys(master, engine)  # before the engine knows the new key
    leading.look()
    assert "copy secrets.key" in (keys(standby, engine).look() or "")
    (standby / SECRETS_KEY).write_bytes((master / SECRETS_KEY).read_bytes())
    assert keys(standby, engine).look() is None


def test_a_scheduler_with_other_files_does_not_lead(master: Path, standby: Path) -> None:
    """Both may have started before either led."""
    engine = MemoryEngine()
    term = elected(engine)
    keys(master, engine).lead(term)
    before = engine.key_prints()
    engine.resign(term)
    write_keys(standby / KEY_NAME, [new_key()])
    later = elected(engine)
    with pytest.raises(OptionsRefused):
        keys(standby, engine).lead(later)
    assert engine.key_prints() == before
    keys(standby, engine, accept_new=True).lead(later)
    assert engine.key_prints() != before
