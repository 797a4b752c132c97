/* Arguments: FILE LIBRARY [UID]. If UID is given, makes it the effective user ID. Then loads
 * LIBRARY with dlopen, unless the program was linked with the library (USE_LINKED). Opens FILE
 * through the library. Prints AT_SECURE, whether the library is mapped, and the number of bytes
 * read from FILE. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static int has_library(void) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "libmonarch.so") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

int main(int n, char **words) {
    int (*opened)(const char *, int, ...) = open;
    char bytes[8192];
    if (n < 3 || (n > 3 && seteuid((uid_t)atoi(words[3])) != 0))
        return 3;
#ifndef USE_LINKED
    void *library = dlopen(words[2], RTLD_NOW);
    if (!library || !(opened = (int (*)(const char *, int, ...))dlsym(library, "open")))
        return 4;
#endif
    int fd = opened(words[1], O_RDONLY);
    printf("%lu %d %zd\n", getauxval(AT_SECURE), has_library(), read(fd, bytes, sizeof bytes));
    return 0;
}
