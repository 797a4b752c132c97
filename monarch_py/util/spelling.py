"""Guesses which known word a user meant who wrote an unknown one."""

from collections.abc import Iterable

# Shorter pieces occur in too many words.
LEAST_PIECE = 4


def nearest(written: str, known: Iterable[str]) -> str | None:
    """The word spelled most like `written`, else the first word that contains it, else None."""
    # Imported here because only errors need it; a daemon that starts well saves the memory.
    from difflib import get_close_matches

    words = list(known)
    plain = {word.lower(): word for word in reversed(words)}
    close = get_close_matches(written.lower(), plain, n=1)
    if close:
        return plain[close[0]]
    piece = written.lower() if len(written) >= LEAST_PIECE else "\0"
    return next((word for word in words if piece in word.lower()), None)


def hint(written: str, known: Iterable[str], otherwise: str) -> str:
    """The hint for an unknown word: what was probably meant, else `otherwise`."""
    meant = nearest(written, known)
    return f"did you mean {meant!r}?" if meant else otherwise
