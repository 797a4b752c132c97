"""Which of the known words somebody meant who wrote another."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["hint", "nearest"]

# Shorter pieces are in too many words.
LEAST_PIECE = 4


def nearest(written: str, known: Iterable[str]) -> str | None:
    """The word that is spelled most like `written`, else the first that holds it, or None."""
    # Only needed on the way out, and not worth its memory in a daemon that starts well.
    from difflib import get_close_matches

    words = list(known)
    plain = {word.lower(): word for word in reversed(words)}
    close = get_close_matches(written.lower(), plain, n=1)
    if close:
        return plain[close[0]]
    piece = written.lower() if len(written) >= LEAST_PIECE else "\0"
    return next((word for word in words if piece in word.lower()), None)


def hint(written: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a sentence on a word that is not known: what was meant, else `otherwise`."""
    meant = nearest(written, known)
    return f"did you mean {meant!r}?" if meant else otherwise
