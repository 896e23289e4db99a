"""A language model for the other examples: weights of transformers, or a tiny model that needs no package.

DGPU_EXAMPLE_WEIGHTS names a directory. With a `bigrams.json` in it, that is the model: for each character, the
characters that may follow. Otherwise the directory (or a name on the Hugging Face hub) is loaded with transformers:

    pip install transformers torch accelerate
    export DGPU_EXAMPLE_WEIGHTS=/models/deepseek-llm-7b-chat
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import threading
from collections.abc import Iterator
from typing import Any, Protocol

MISSING = (
    "This example needs weights. Set DGPU_EXAMPLE_WEIGHTS to a directory with a model of transformers, for example "
    "deepseek-ai/deepseek-llm-7b-chat, and install: pip install transformers torch accelerate"
)


class LanguageModel(Protocol):
    def stream(self, prompt: str, length: int) -> Iterator[str]:
        """Pieces of text, as they are made."""


class Bigrams:
    """Good for nothing but tests: it runs anywhere, in no time."""

    def __init__(self, table: dict[str, str]) -> None:
        self._table = table

    def stream(self, prompt: str, length: int) -> Iterator[str]:
        chosen = random.Random(prompt)  # noqa: S311 - the same answer to the same prompt
        last = prompt[-1:] or " "
        for _ in range(length):
            last = chosen.choice(self._table.get(last) or " ")
            yield last


class Transformers:
    def __init__(self, weights: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(weights)
        is_gpu = torch.cuda.is_available()
        self._model = AutoModelForCausalLM.from_pretrained(
            weights, torch_dtype=torch.float16 if is_gpu else torch.float32
        ).to("cuda" if is_gpu else "cpu")

    def stream(self, prompt: str, length: int) -> Iterator[str]:
        from transformers import TextIteratorStreamer

        inputs: Any = self._tokenizer(prompt, return_tensors="pt").to(self._model.device)
        streamer = TextIteratorStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        arguments = {**inputs, "max_new_tokens": length, "streamer": streamer}
        worker = threading.Thread(target=self._model.generate, kwargs=arguments)
        worker.start()
        yield from streamer
        worker.join()


def load_model() -> LanguageModel:
    weights = os.environ.get("DGPU_EXAMPLE_WEIGHTS", "")
    tiny = pathlib.Path(weights) / "bigrams.json"
    if weights and tiny.is_file():
        return Bigrams(json.loads(tiny.read_text()))
    if not weights:
        raise RuntimeError(MISSING)
    try:
        return Transformers(weights)
    except ImportError as error:
        raise RuntimeError(f"{error}. {MISSING}") from error
