"""`retune generate`: text from a bundle of a decoder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retune.cli.console import print_json, print_line, say
from retune.cli.options import Digest, Json, Module, RunsOn, Trusted, check_module, opened_bundle

if TYPE_CHECKING:
    from retune.bundle.plan import NetworkPlan
    from retune.language.generation import Generation
    from retune.language.text import Text

Prompt = Annotated[str, typer.Option(help="Prompt: text that the tokens follow.")]
Tokens = Annotated[int, typer.Option(help="Number of tokens to generate at most.")]
Temperature = Annotated[
    float,
    typer.Option(help="Temperature, which divides logits; 0: the likeliest token (greedy)."),
]
TopK = Annotated[int, typer.Option(help="Number of likeliest tokens to draw from; 0: all.")]
TopP = Annotated[
    float,
    typer.Option(
        help="Nucleus sampling: draw from the likeliest tokens of this total probability."
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed: the same one draws the same tokens.")]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        help="Tokenizer: tokenizer.json, or its folder. Default: that of the bundle, of the folder "
        "above it, or of the model."
    ),
]


def generate(
    module: Module,
    prompt: Prompt,
    tokens: Tokens = 64,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    tokenizer: Tokenizer = None,
    device: RunsOn = None,
    json: Json = False,
    trust: Trusted = None,
    digest: Digest = "",
) -> None:
    """Generate text with a bundle of a decoder.

    The text is on stdout, tokens per second on stderr. A bundle is a program: run those you trust.
    """
    check_module(module)
    from retune.language.generation import Generation
    from retune.language.loading import decoder_of
    from retune.language.sampling import Sampling
    from retune.language.text import Text

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    with opened_bundle(module, trust, digest) as (bundle, plan):
        text = Text.of([tokenizer] if tokenizer else _folders(module, plan))
        say("retune: compiling the bundle's kernels ...")
        decoder = decoder_of(bundle, device)
        made = Generation(decoder, text.tokens(prompt), tokens, sampling=sampling, ends=text.ends)
        _show(made, text, prompt, json=json)


def _folders(module: Path, plan: "NetworkPlan") -> list[Path]:
    """Where the tokenizer may be."""
    return [module, module.parent, Path(plan.notes.get("model", "")).parent]


def _show(made: "Generation", text: "Text", prompt: str, *, json: bool) -> None:
    if json:
        print_json(_data(made, "".join(text.pieces(iter(made))), prompt))
        return
    sys.stdout.write(prompt)
    for piece in text.pieces(iter(made)):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print_line()
    say(
        f"retune: prompt of {len(made.prompt)} tokens: {made.prefill_rate:,.1f} tokens/s; then "
        f"{len(made.tokens)} tokens: {made.decode_rate:,.1f} tokens/s"
    )
    if made.ended_by == "capacity":
        say(
            f"retune: the text has as many tokens as the bundle has space for, "
            f"{made.decoder.capacity:,}; compile the model with a larger range of its past for more"
        )


def _data(made: "Generation", text: str, prompt: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": text,
        "prompt_tokens": list(made.prompt),
        "tokens": made.tokens,
        "ended_by": made.ended_by,
        "prefill_s": made.prefill_s,
        "decode_s": made.decode_s,
        "prefill_tokens_per_s": made.prefill_rate,
        "decode_tokens_per_s": made.decode_rate,
    }
