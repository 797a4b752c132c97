"""Guesses which known word a user meant by an unknown word."""

from collections.abc import Iterable

# The smallest length of a word that is searched for inside known words. Shorter words occur inside
# too many known words.
LEAST_PIECE = 4


def nearest(written: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is most similar to `written`. If none is similar, returns the
    first known word that contains `written`; None if no known word contains it."""
    # difflib is imported only here, because it takes memory, and is needed only after a wrong word.
    from difflib import get_close_matches

    words = list(known)
    plain = {word.lower(): word for word in reversed(words)}
    close = get_close_matches(written.lower(), plain, n=1)
    if close:
        return plain[close[0]]
    piece = written.lower() if len(written) >= LEAST_PIECE else "\0"
    return next((word for word in words if piece in word.lower()), None)


def hint(written: str, known: Iterable[str], otherwise: str) -> str:
    """Returns the hint for an unknown word: the word that was probably meant (`nearest`), or
    `otherwise` if there is no such word."""
    meant = nearest(written, known)
    return f"did you mean {meant!r}?" if meant else otherwise
