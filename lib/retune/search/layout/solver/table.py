"""What choices cost: an option for each variable, alone and beside another variable's.

Read `CostTable`. Variables are the steps of a network or its values and options their layouts, but
nothing here knows that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.core.errors import InputError

Pair = tuple[int, int]
"""Numbers of two variables, the lower one first."""


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """Variables with options; every choice of one option for each has a total."""

    names: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    """Of each variable; of choices that cost the same, solvers prefer options that stand first."""
    own: tuple[np.ndarray, ...]
    """Of each variable, what its options cost alone: float64 [options]. Infinite: impossible."""
    pairs: Mapping[Pair, np.ndarray]
    """What options of two variables cost together: float64 [options of one, options of the other].
    """

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of options."""
        return tuple(map(len, self.options))

    def total(self, choice: Sequence[int]) -> float:
        """The cost of a choice: of each variable, the number of its option."""
        own = sum(float(costs[one]) for costs, one in zip(self.own, choice, strict=True))
        return own + sum(float(costs[choice[a], choice[b]]) for (a, b), costs in self.pairs.items())

    def named(self, choice: Sequence[int]) -> dict[str, str]:
        """The chosen option of each variable, by names."""
        chosen = (options[one] for options, one in zip(self.options, choice, strict=True))
        return dict(zip(self.names, chosen, strict=True))


class TableBuilder:
    """A table as it grows. Costs of the same pair of variables add up."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._options: list[tuple[str, ...]] = []
        self._own: list[np.ndarray] = []
        self._pairs: dict[Pair, np.ndarray] = {}

    def variable(self, name: str, costs: Mapping[str, float]) -> None:
        """A new variable, with what each of its options costs alone.

        Raises: InputError for a name that is taken, no options, or a cost that is no cost.
        """
        if name in self._numbers:
            raise InputError(f"cost table: expected one variable {name!r}; got a second one")
        if not costs:
            raise InputError(
                f"cost table: variable {name!r}: expected an option at least; got none"
            )
        self._numbers[name] = len(self._numbers)
        self._options.append(tuple(costs))
        self._own.append(_costs(f"variable {name!r}", list(costs.values()), (len(costs),)))

    def between(self, first: str, second: str, costs: np.ndarray) -> None:
        """Adds what the options of two variables cost together: [options, options of the second].

        Raises: InputError for unknown variables, another shape, or a cost that is no cost.
        """
        where = f"between {first!r} and {second!r}"
        unknown = [name for name in (first, second) if name not in self._numbers]
        if unknown or first == second:
            raise InputError(f"cost table: {where}: expected two variables of it; got {unknown}")
        a, b = self._numbers[first], self._numbers[second]
        given = _costs(where, costs, (len(self._options[a]), len(self._options[b])))
        key, given = ((a, b), given) if a < b else ((b, a), given.T)
        self._pairs[key] = self._pairs[key] + given if key in self._pairs else given

    def table(self) -> CostTable:
        """What was added so far."""
        return CostTable(
            tuple(self._numbers), tuple(self._options), tuple(self._own), dict(self._pairs)
        )


def _costs(where: str, given: object, shape: tuple[int, ...]) -> np.ndarray:
    costs = np.array(given, np.float64)
    if costs.shape != shape:
        raise InputError(f"cost table: {where}: expected costs of shape {shape}; got {costs.shape}")
    if np.isnan(costs).any() or (costs == -np.inf).any():
        raise InputError(f"cost table: {where}: expected numbers or infinity; got {costs.tolist()}")
    return costs
