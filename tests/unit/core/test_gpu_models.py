"""Names of GPU models, as people write them."""

from __future__ import annotations

import pytest

from building import cluster, node, run_pass, task, tried
from dgpu.core.rejections import NeverFits
from dgpu.core.rules.gpu_models import suits_model

A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("asked", "model", "suits"),
    [
        ("a100", A100, True),
        ("A100", "A100", True),
        ("nvidia_a100", A100, True),
        ("A100 80GB", A100, True),
        ("a100-40gb", A100, False),
        ("a10", A100, False),
        ("a10", "NVIDIA A10", True),
        ("a100", "NVIDIA A10", False),
        ("100", A100, False),
        ("l40", "NVIDIA L40S", False),
        ("rtx3090", "NVIDIA GeForce RTX 3090", True),
        ("rtx_3090", "NVIDIA GeForce RTX 3090", True),
        ("3090", "NVIDIA GeForce RTX 3090 Ti", True),
        ("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", True),
        ("rtx2080ti", "NVIDIA GeForce RTX 2080", False),
        ("?", A100, False),
        ("?", "?", True),
    ],
)
def test_a_model_is_named_by_its_words(asked, model, suits) -> None:
    assert suits_model((asked,), model) is suits
    assert suits_model(("H100", asked), model) is suits


def test_a_task_gets_a_gpu_of_the_model_that_it_names() -> None:
    state = cluster(
        node("n1", gpus=2, model="NVIDIA A10"), node("n2", gpus=2, model=A100), task(gpus=2, models=("a100",))
    )
    assert run_pass(state) == [1]
    assert state.tasks[1].node_id == "n2"
    assert isinstance(tried(state, task(models=("v100",))), NeverFits)
