"""The errors that end a command with one sentence instead of a traceback.

Each class is for one kind of cause. The number after a class is the command's exit status::

    MonarchError            1   something went wrong; the message says what
    ├── ConfigError         2   the configuration cannot work
    ├── SessionError        3   a daemon cannot be reached, cannot start or cannot join a cluster
    │   ├── NoDaemonError   3   no daemon serves the configuration
    │   └── SilentError     3   a daemon serves but does not answer
    ├── TierError           4   a tier cannot be used
    └── PolicyError         5   a policy cannot work on this job
"""

from typing import ClassVar


class MonarchError(Exception):
    """The base of all errors of this package. The message is one sentence for the user."""

    exit_status: ClassVar[int] = 1


class ConfigError(MonarchError):
    """The configuration cannot work. The message names the file, the line and the key, and gives a
    hint."""

    exit_status: ClassVar[int] = 2


class SessionError(MonarchError):
    """A daemon cannot be reached, cannot start or cannot join a cluster. For example, no daemon
    answers, another process holds the session's lock, or the nodes' settings differ."""

    exit_status: ClassVar[int] = 3


class NoDaemonError(SessionError):
    """No daemon serves the configuration."""


class SilentError(SessionError):
    """A daemon serves the configuration but does not answer in time."""


class TierError(MonarchError):
    """A tier cannot be used, because it is gone, full, read-only or held by another daemon."""

    exit_status: ClassVar[int] = 4


class PolicyError(MonarchError):
    """A policy (the rules by which nodes keep and load samples) cannot work on this job, because
    the paper that describes the policy excludes jobs of this kind. The message says what the job
    lacks."""

    exit_status: ClassVar[int] = 5
