/* In this unit, the tests determine which libraries seem to be loaded, and in which order. */
#include <link.h>

static int iterate(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data);
#define dl_iterate_phdr(visit, data) iterate(visit, data)
#include "preload/process/real.c"
#undef dl_iterate_phdr

#include "made.h"

static struct dl_phdr_info library[100];
/* libraries: number of loaded libraries; -1: the libraries that are really loaded are searched.
 * looks: number of searches through the libraries. */
static int libraries = -1, looks;
static int iterate(int (*visit_one)(struct dl_phdr_info *, size_t, void *), void *data) {
    looks++;
    if (libraries < 0)
        return dl_iterate_phdr(visit_one, data);
    int r = 0;
    for (int i = 0; i < libraries && !r; i++)
        r = visit_one(&library[i], sizeof library[i], data);
    return r;
}

static struct real_calls kept;
static struct table kept_table[TABLES];
static uint32_t kept_tables;
static const char *kept_library;
/* From now on, no library seems to be loaded, and no symbol table is stored. real_end restores the
 * real state. */
EXPORT void real_begin(void) {
    kept = monarch_real;
    kept_tables = tables;
    kept_library = monarch_library;
    memcpy(kept_table, table, sizeof table);
    libraries = looks = 0;
    tables = 0;
}
EXPORT void real_end(void) {
    libraries = -1;
    monarch_real = kept;
    tables = kept_tables;
    monarch_library = kept_library;
    memcpy(table, kept_table, sizeof table);
}
/* Loads one more library. name, headers: addresses of the library's name and of its `n` program
 * headers. */
EXPORT void real_load(uint64_t base, uint64_t name, uint64_t headers, uint64_t n) {
    library[libraries++] = (struct dl_phdr_info){.dlpi_addr = base,
                                                 .dlpi_name = (const char *)name,
                                                 .dlpi_phdr = (const void *)headers,
                                                 .dlpi_phnum = (ElfW(Half))n};
}
/* Returns the address of a variable of Monarch's library. The library that contains this address is
 * taken for Monarch's. */
EXPORT uint64_t real_us(void) { return (uintptr_t)&monarch_real; }
EXPORT uint64_t real_find(void **at, const char *name) {
    return (uintptr_t)monarch_real_find(at, name);
}
EXPORT void real_init(void) { monarch_real_init(); }
EXPORT uint64_t real_found_at_load(void) { return (uintptr_t)monarch_real.pthread_create; }
EXPORT const char *real_library(void) { return monarch_library; }
EXPORT int real_looks(void) { return looks; }
EXPORT uint32_t real_hash(const char *name) { return gnu_hash(name); }

static int chosen(void) { return 1; }
/* Stands for the resolver of an IFUNC symbol, the function at the symbol's address. The resolver
 * returns the address of the function to call. */
static void *choose(void) { return (void *)chosen; }
EXPORT uint64_t real_chooser(void) { return (uintptr_t)choose; }
EXPORT uint64_t real_chosen(void) { return (uintptr_t)chosen; }
