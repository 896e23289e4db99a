"""Generates a text for each line of a file, on all free GPUs. The model is loaded once per worker.

DGPU_EXAMPLE_WEIGHTS=/models/deepseek-llm-7b-chat python examples/batch_inference.py prompts.txt
"""

from __future__ import annotations

import argparse
import os
import pathlib

from language_model import MISSING, LanguageModel, load_model

import dgpu

WEIGHTS = {"DGPU_EXAMPLE_WEIGHTS": os.environ.get("DGPU_EXAMPLE_WEIGHTS", "")}


@dgpu.model("deepseek-7b", memory_mb=16_000)
def load() -> LanguageModel:
    return load_model()


@dgpu.task(model="deepseek-7b", timeout=600, env=WEIGHTS)
def generate(model: LanguageModel, prompt: str, length: int = 64) -> str:
    return "".join(model.stream(prompt, length))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=pathlib.Path, help="a file with one prompt per line")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--api", help="the scheduler; without it the one that `dgpu up` started")
    options = parser.parse_args()
    if not WEIGHTS["DGPU_EXAMPLE_WEIGHTS"]:
        parser.error(MISSING)
    dgpu.connect(options.api)
    prompts = options.prompts.read_text().splitlines()
    answers = generate.map(prompts, kwargs={"length": options.length})
    for prompt, answer in zip(prompts, answers, strict=True):
        print(f"{prompt}{answer}")


if __name__ == "__main__":
    main()
