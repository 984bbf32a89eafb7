"""`retune import-gguf`: the ONNX model of a GGUF file."""

from pathlib import Path
from typing import Annotated

import typer

from retune.cli.console import print_json, print_line
from retune.cli.options import Json
from retune.core.files import check_folder

File = Annotated[Path, typer.Argument(help="GGUF file of a llama-like decoder.", metavar="FILE")]
Out = Annotated[
    Path, typer.Option(help="Folder for model.onnx, tokenizer.json and genai_config.json.")
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Number of tokens of a text at most. Default: as many as the model was trained for."
    ),
]
AllLogits = Annotated[
    bool, typer.Option("--all-logits", help="Return logits of all tokens, not of the last alone.")
]
Level = Annotated[
    int,
    typer.Option(
        help="Accuracy of products with quantized weights: 0 computes in floats, 4 rounds rows to "
        "int8, which is faster. Default: 0.",
        show_default=False,
    ),
]
Tokenizer = Annotated[bool, typer.Option(help="Write tokenizer.json.")]


def import_gguf(
    file: File,
    out: Out,
    context: Context = None,
    all_logits: AllLogits = False,
    accuracy_level: Level = 0,
    tokenizer: Tokenizer = True,
    json: Json = False,
) -> None:
    """Write the ONNX model of a GGUF file, for `retune tune`.

    Quantized weights keep their bits.
    """
    check_folder("--out", out)
    from retune.frontend.gguf.folder import import_gguf as written

    made = written(
        file,
        out,
        context=context,
        all_logits=all_logits,
        accuracy_level=accuracy_level,
        tokenizer=tokenizer,
    )
    if json:
        print_json(made)
        return
    kinds = ", ".join(f"{count} of {kind}" for kind, count in made.kinds.items())
    print_line(f"{out}: {made.architecture} of {made.layers} layers, tensors: {kinds}")
    for kind, form in made.widened.items():
        print_line(f"{kind} is stored as {form}, with the same values")
    print_line(
        f"{made.weight_bytes / 1e6:,.1f} MB of weights; texts of up to {made.context:,} tokens"
    )
    length = min(512, max(1, made.context // 2))
    print_line(
        f"next: retune tune {out / 'model.onnx'} --out build --shape batch=1 "
        f"--shape sequence=1..{length} --shape past=0..{min(1023, made.context - length)}"
    )
