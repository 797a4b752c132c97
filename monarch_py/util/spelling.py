"""Guesses which known word a user meant by an unknown word."""

from collections.abc import Iterable

# The least length of a word that is searched for inside known words. Shorter words occur inside too
# many of them.
LEAST_PIECE = 4


def nearest(written: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is spelled most like `written`. If no word is similar, returns
    the first known word that contains `written`; None if there is no such word."""
    # difflib is imported only here, because it takes memory, and is needed only for a wrong word.
    from difflib import get_close_matches

    words = list(known)
    plain = {word.lower(): word for word in reversed(words)}
    close = get_close_matches(written.lower(), plain, n=1)
    if close:
        return plain[close[0]]
    piece = written.lower() if len(written) >= LEAST_PIECE else "\0"
    return next((word for word in words if piece in word.lower()), None)


def hint(written: str, known: Iterable[str], otherwise: str) -> str:
    """Returns the hint for an unknown word: the word that was probably meant, or `otherwise` if
    there is none."""
    meant = nearest(written, known)
    return f"did you mean {meant!r}?" if meant else otherwise
