"""What tests of onnx files share with others."""

NAMES = (
    *("a b", 'say "hi"', "it's", "back\\slash", "/model/layer.0/Add", "x:0", "%s {} $x;", "\n\t"),
    *(
        "gewicht_ß",
        "重み",
        "\N{SNAKE}",
        "while",
        "float4",
        "__kernel",
        "__metadata__",
        "w" * 70_000,
    ),
)
