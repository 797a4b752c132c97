/* Opens and reads a file once for each line of standard input, and prints the descriptor, errno and
 * a checksum of the bytes read. If the line is "last", the program lowers its limit on descriptors
 * during the open, so that it can get only one more descriptor. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void limit(rlim_t descriptors) {
    struct rlimit now;
    getrlimit(RLIMIT_NOFILE, &now);
    now.rlim_cur = descriptors;
    setrlimit(RLIMIT_NOFILE, &now);
}

static uint64_t sum_of(int fd) {
    unsigned char bytes[512];
    uint64_t sum = 14695981039346656037ULL; /* FNV-1a */
    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0;)
        for (ssize_t i = 0; i < got; i++)
            sum = (sum ^ bytes[i]) * 1099511628211ULL;
    return sum;
}

int main(int n, char **words) {
    char line[16];
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    while (n == 2 && fgets(line, sizeof line, stdin)) {
        int is_last = strcmp(line, "last\n") == 0;
        if (is_last) {
            int lowest = dup(0);
            close(lowest);
            limit((rlim_t)lowest + 1);
        }
        errno = 77;
        int fd = open(words[1], O_RDONLY), error = errno;
        if (is_last)
            limit(before.rlim_cur);
        printf("%d %d %016llx\n", fd, error, fd < 0 ? 0ULL : (unsigned long long)sum_of(fd));
        fflush(stdout);
        close(fd);
    }
    return 0;
}
