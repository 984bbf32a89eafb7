"""Text from a language model: a GGUF file to ONNX, to a bundle, to tokens.

    python examples/generate.py model.gguf "The capital of France is"

Needs `pip install '.[language]'`. The bundle is kept in build/generate.
"""

import sys
from pathlib import Path

import retune
from retune.api import Generation, Sampling, Text, decoder_of, import_gguf

folder = Path("build/generate")
file, prompt = Path(sys.argv[1]), sys.argv[2]

if not (folder / "module").is_dir():
    import_gguf(file, folder / "model", context=512)
    retune.tune_network(
        str(folder / "model/model.onnx"),
        out=folder,
        trials=0,
        shapes={"batch": "1", "sequence": "1..128", "past": "0..383"},
    )

text = Text.of([folder / "model"])
generation = Generation(
    decoder_of(folder / "module"),
    text.tokens(prompt),
    count=64,
    sampling=Sampling(temperature=0.7, top_k=40, seed=1),
    ends=text.ends,
)
for piece in text.pieces(iter(generation)):
    print(piece, end="", flush=True)
print(f"\n{generation.decode_rate:.1f} tokens per second")
