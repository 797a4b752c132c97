/* Finds the originals of the functions that the library interposes, as dlsym(RTLD_NEXT) would.
 *
 * Each function is looked up when it is first called, because most processes of a job are
 * short-lived, and call few of the functions. This file stores where the libraries' symbol tables
 * are, and searches the tables itself. dlsym is not used, for three reasons. Before glibc 2.34,
 * dlsym is in libdl, but the library links only to libc. dlsym takes a lock, which is not allowed
 * in a signal handler or in a child of vfork. dlsym may also allocate memory. If the program has
 * its own malloc, this malloc may call the library's open() during the look-up of the original
 * open(). */
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#include "preload/process/calls.h"

struct real_calls monarch_real;
const char *monarch_library;

/* Maximum number of stored symbol tables, one for each library. libc is always among them. If
 * there are too many libraries, those that come last before libc in the search order are not
 * searched. */
#define TABLES 64
/* The value of a member of struct real_calls if no library defines the function. */
#define ABSENT ((void *)1)

/* The dynamic symbol table of one loaded library. */
struct table {
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Half) * versions;
    const uint32_t *gnu_hash;
    ElfW(Addr) base;
};

/* The symbol tables of the libraries that come after this library in the dynamic linker's search
 * order, up to and including libc. These libraries were loaded at the program's start, and are
 * never unloaded. Libraries that dlopen loads come after libc. They are not searched, because libc
 * already defines nearly all of the functions. */
static struct table table[TABLES] SELDOM;
static uint32_t tables; /* atomic: number of tables; 0 until they are found */

struct search {
    struct real_calls found; /* only the members for the functions of MONARCH_FOUND are set */
    uint32_t n;
    int behind_us, behind_libc;
};

static uint32_t gnu_hash(const char *s) {
    uint32_t h = 5381;
    while (*s)
        h = h * 33 + (unsigned char)*s++;
    return h;
}

static int read_table(struct table *t, const struct dl_phdr_info *info) {
    const ElfW(Dyn) *dyn = NULL;
    memset(t, 0, sizeof *t);
    t->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dyn = (const ElfW(Dyn) *)(t->base + info->dlpi_phdr[i].p_vaddr);
    if (!dyn)
        return 0;
    for (; dyn->d_tag != DT_NULL; dyn++) {
        /* glibc has already added the library's base to each of these addresses, except in the
         * kernel's vDSO. */
        ElfW(Addr) at = dyn->d_un.d_ptr < t->base ? dyn->d_un.d_ptr + t->base : dyn->d_un.d_ptr;
        if (dyn->d_tag == DT_SYMTAB)
            t->symbols = (const void *)at;
        else if (dyn->d_tag == DT_STRTAB)
            t->strings = (const void *)at;
        else if (dyn->d_tag == DT_VERSYM)
            t->versions = (const void *)at;
        else if (dyn->d_tag == DT_GNU_HASH)
            t->gnu_hash = (const void *)at;
    }
    return t->symbols && t->strings && t->gnu_hash;
}

static void *address_of(const struct table *t, const ElfW(Sym) * symbol) {
    void *at = (void *)(t->base + symbol->st_value);
    if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC)
        return ((void *(*)(void))at)();
    return at;
}

/* Returns the address of the symbol `name`, or NULL if the library does not define it. If the
 * symbol has several versions, prefers the default version. If it has only hidden versions,
 * returns one of these. (Since glibc 2.33, this is the case for `__xstat`, for example.) */
static void *lookup(const struct table *t, const char *name, uint32_t hash) {
    const uint32_t *h = t->gnu_hash, buckets = h[0], first = h[1], blooms = h[2];
    const ElfW(Addr) *bloom = (const void *)(h + 4);
    const uint32_t *bucket = h + 4 + blooms * (sizeof *bloom / 4), *chain = bucket + buckets;
    const unsigned bits = 8 * sizeof *bloom;
    void *found = NULL;
    if (!buckets || !blooms)
        return NULL;
    /* Most libraries do not define the name. Usually, two bits of the library's Bloom filter show
     * that. The filter's size is always a power of two: the dynamic linker loads no library whose
     * filter has another size. */
    ElfW(Addr) word = bloom[hash / bits & (blooms - 1)];
    if (!(word >> hash % bits & word >> (hash >> h[3]) % bits & 1))
        return NULL;
    for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
        const ElfW(Sym) *symbol = &t->symbols[i];
        if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            symbol->st_value && strcmp(t->strings + symbol->st_name, name) == 0) {
            if (!found || !t->versions || !(t->versions[i] & 0x8000))
                found = address_of(t, symbol);
        }
        if (chain[i - first] & 1)
            break;
    }
    return found;
}

static int contains_us(const struct dl_phdr_info *info) {
    ElfW(Addr) us = (uintptr_t)&monarch_real;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && us - (info->dlpi_addr + p->p_vaddr) < p->p_memsz)
            return 1;
    }
    return 0;
}

static int is_libc(const struct table *t) {
    static const char name[] = "gnu_get_libc_version";
    return lookup(t, name, gnu_hash(name)) != NULL;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *s = data;
    struct table t;
    (void)size;
    if (contains_us(info)) {
        s->behind_us = 1;
        __atomic_store_n(&monarch_library, info->dlpi_name, __ATOMIC_RELAXED);
        return 0;
    }
    if (!s->behind_us || !read_table(&t, info))
        return 0;
#define F(name, ret, args) \
    if (!s->found.name)    \
        s->found.name = lookup(&t, #name, gnu_hash(#name));
    MONARCH_FOUND(F)
#undef F
    if (s->behind_libc)
        return 0;
    s->behind_libc = is_libc(&t);
    if (s->n < TABLES - 1 || (s->n < TABLES && s->behind_libc))
        table[s->n++] = t;
    return 0;
}

/* Before the constructor has run, several threads may call this function at the same time. They
 * search one after the other, because dl_iterate_phdr takes a lock. All threads store the same
 * results. */
void monarch_real_init(void) {
    struct search s;
    memset(&s, 0, sizeof s);
    dl_iterate_phdr(visit, &s);
    /* Normally, libc comes after this library in the search order. But libc comes first if this
     * library was loaded by dlopen, or as a dependency of another library. All other libraries are
     * then searched, because each of them may define the functions. */
    if (!s.behind_libc) {
        memset(&s, 0, sizeof s);
        s.behind_us = 1;
        dl_iterate_phdr(visit, &s);
    }
#define F(name, ret, args) __atomic_store_n(&monarch_real.name, s.found.name, __ATOMIC_RELAXED);
    MONARCH_FOUND(F)
#undef F
    __atomic_store_n(&tables, s.n, __ATOMIC_RELEASE);
}

void *monarch_real_find(void **at, const char *name) {
    uint32_t hash = gnu_hash(name);
    void *found = NULL;
    if (__atomic_load_n(at, __ATOMIC_RELAXED) == ABSENT)
        return NULL;
    if (!__atomic_load_n(&tables, __ATOMIC_ACQUIRE))
        monarch_real_init();
    for (uint32_t i = 0, n = __atomic_load_n(&tables, __ATOMIC_ACQUIRE); i < n && !found; i++)
        found = lookup(&table[i], name, hash);
    __atomic_store_n(at, found ? found : ABSENT, __ATOMIC_RELAXED);
    return found;
}
