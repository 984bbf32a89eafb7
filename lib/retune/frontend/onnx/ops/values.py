"""Values of an ONNX model that are not tensors of the graph: they exist only while importing.

A sequence is a tuple of tensors, and an optional a tensor or nothing; operators on them choose
among tensors, so that none of them is left in the graph. Another name for a tensor is not a node.
"""


class Values:
    """What is known of names that no tensor of the graph has."""

    def __init__(self) -> None:
        self.sequences: dict[str, tuple[str, ...]] = {}
        """Name -> the tensors of a sequence."""
        self.empty: set[str] = set()
        """Names of optionals that hold nothing."""
        self._same: dict[str, str] = {}

    def alias(self, name: str, value: str) -> None:
        """From here on `name` is another name of the value."""
        value = self.resolve(value)
        if value != name:
            self._same[name] = value

    def resolve(self, name: str) -> str:
        """The value that the name stands for; most names stand for themselves."""
        return self._same.get(name, name)
