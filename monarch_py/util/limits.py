"""Names the limit (`ulimit`) that has made a system call of this process fail."""

import errno
import resource

from monarch_py.util.units import format_size

# A daemon needs two descriptors for each block that it is copying. A program under the library
# needs one more for each open copy through which it takes a lock.
MIN_DESCRIPTORS = 256


def met_limit(number: int | None) -> str:
    """Returns a sentence that names the limit behind an error, and a sufficient value; "" if no
    limit has caused the error.

    number : the errno of the error
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if number == errno.EMFILE:
        return (
            f"a process may have only {files} open files here; raise the limit:"
            f" `ulimit -n {MIN_DESCRIPTORS}` or more"
        )
    if number == errno.EFBIG and size != resource.RLIM_INFINITY:
        return (
            f"a process may write only {format_size(size)} to a file here; raise the limit:"
            " `ulimit -f unlimited`"
        )
    return ""
