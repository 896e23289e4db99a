from __future__ import annotations

from dgpu.entry.ha.witness import run_witness, witness_beside


def test_an_agent_goes_on_if_its_witness_cannot_start(tmp_path) -> None:
    """The tasks of the node come first."""
    went_on = False
    with witness_beside(tmp_path / "none"):
        went_on = True
    assert went_on


def test_a_witness_without_a_member_says_how_to_get_one(tmp_path, capsys) -> None:
    assert run_witness(tmp_path / "none") == 1
    assert "dgpu ha join" in capsys.readouterr().err
