"""Greedy tokens of transformers in float32 with a GGUF file's weights, for `benchmarks.language`.

    /path/to/other/bin/python -P benchmarks/language_reference.py FILE.gguf TOKENIZER.json OUT

Runs in an environment of its own with torch, transformers, gguf, accelerate and tokenizers; `-P`
keeps this folder from its path, as other packages have modules of the same names. For each prompt
OUT has its tokens, the tokens that follow, the margin of each one's logit over the next largest,
and the logits after the prompt.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "The three laws of thermodynamics are",
    "In 1969, the first humans",
    "Write a haiku about the sea.\n",
    "Water boils at 100 degrees because",
    "My favourite recipe needs 3 eggs,",
    "The difference between a list and a tuple in Python is",
    "Dear Sir or Madam,",
)
COUNT = 64


def followed(model: Any, prompt: str, ids: list[int], count: int = COUNT) -> dict[str, Any]:
    """What follows the prompt."""
    torch: Any = import_module("torch")
    given, past = torch.tensor([ids]), None
    found: dict[str, Any] = {"prompt": prompt, "ids": ids, "tokens": [], "margins": []}
    for _ in range(count):
        made = model(given, past_key_values=past, use_cache=True)
        past, logits = made.past_key_values, made.logits[0, -1]
        found.setdefault("logits", logits.tolist())
        best = logits.topk(2)
        found["tokens"].append(int(best.indices[0]))
        found["margins"].append(float(best.values[0] - best.values[1]))
        given = best.indices[:1][None]
    return found


def main() -> None:
    """The console script."""
    torch: Any = import_module("torch")
    tokenizers: Any = import_module("tokenizers")
    models: Any = import_module("transformers").AutoModelForCausalLM
    file, tokenizer, out = map(Path, sys.argv[1:])
    encode = tokenizers.Tokenizer.from_file(str(tokenizer)).encode
    weights = {"gguf_file": file.name, "dtype": torch.float32}
    model = models.from_pretrained(file.parent, **weights).eval()
    with torch.no_grad():
        found = [followed(model, prompt, list(encode(prompt).ids)) for prompt in PROMPTS]
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
