"""Logs unexpected errors in a daemon's threads, with tracebacks, and lists them for `status`."""

import logging
import threading

log = logging.getLogger("monarch.threads")

# For each thread that has failed, by the thread's name: its latest error.
_failures: dict[str, str] = {}


def note_failure(error: BaseException) -> None:
    """Records that this thread has failed, and logs the error. If the thread fails again with the
    same error, the error is not logged again."""
    name, told = threading.current_thread().name, described(error)
    if _failures.get(name) != told:
        _failures[name] = told
        log.error("the thread %s has failed", name, exc_info=error)


def described(error: BaseException) -> str:
    """Returns the error's class and text, because the text alone may be empty."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def failures() -> list[str]:
    """Returns the latest error of each thread that has failed so far in this process."""
    return [f"{name} ({told})" for name, told in list(_failures.items())]


def note_all_failures() -> None:
    """From now on, records every exception that ends a thread of this process."""

    def note(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not None and ended.exc_type is not SystemExit:
            note_failure(ended.exc_value)

    threading.excepthook = note
