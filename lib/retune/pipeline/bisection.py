"""Find which of many records make a network wrong, by few trials: each compiles and verifies it.

Read `bisect`. This file knows neither networks nor records.
"""

from collections.abc import Callable, Sequence


def bisect(keys: Sequence[str], passes: Callable[[frozenset[str]], bool]) -> tuple[str, ...]:
    """A least set of keys without which the others pass; () if nothing passes without them either.

    The set of all `keys` does not pass; it is not tried again. Where more than what does not pass
    does not pass either, every key found is needed: with any one of them the others that are left
    fail. Where several fail only together, the last of them is found.

    The shortest failing run of first keys ends with an offending one, and is found by halving. It
    is left out, and the rest is tried. For g offending keys out of n that takes at most
    1 + g (1 + ceil(log2 n)) trials.
    """
    if not passes(frozenset()):
        return ()
    right: tuple[str, ...] = ()
    rest, offending = tuple(keys), list[str]()
    while rest:
        first = _shortest_failing(rest, lambda some, right=right: passes(frozenset(right + some)))
        offending.append(rest[first - 1])
        right, rest = right + rest[: first - 1], rest[first:]
        if rest and passes(frozenset(right + rest)):
            break
    return tuple(offending)


def _shortest_failing(keys: tuple[str, ...], passes: Callable[[tuple[str, ...]], bool]) -> int:
    """The least number of leading keys that fails; no keys pass, and all of them fail."""
    good, bad = 0, len(keys)
    while bad - good > 1:
        middle = (good + bad) // 2
        if passes(keys[:middle]):
            good = middle
        else:
            bad = middle
    return bad
