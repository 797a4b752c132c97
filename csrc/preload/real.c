/* Finds the functions that ours stand in front of, as dlsym(RTLD_NEXT) would. dlsym itself is not
 * for us: it lies in libdl before glibc 2.34 (we link to libc alone), and it may allocate, which
 * re-enters our open() under a replaced malloc. */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#include "calls.h"

struct real_calls monarch_real;
int monarch_real_ready;

/* One after the other: an array of pointers would be relocated in every process. */
#define X(name, ret, args) #name "\0"
static const char names[] = MONARCH_CALLS(X) MONARCH_FOUND(X);
#undef X
#define CALLS (sizeof(struct real_calls) / sizeof(void *))

/* The dynamic symbol table of one loaded library. */
struct table {
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Half) * versions;
    const uint32_t *gnu_hash;
    ElfW(Addr) base;
};

struct search {
    void *found[CALLS];
    unsigned char hidden[CALLS];
    const char *name[CALLS];
    uint32_t hash[CALLS];
    int behind_us;
};

/* Moves *s behind the string. */
static uint32_t gnu_hash(const char **s) {
    uint32_t h = 5381;
    while (**s)
        h = h * 33 + (unsigned char)*(*s)++;
    ++*s;
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
        /* glibc relocates these in place; the kernel's vDSO has them still relative. */
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

/* A default version beats a hidden one (`__xstat` has only hidden ones since glibc 2.33). */
static void *lookup(const struct table *t, const char *name, uint32_t hash, unsigned char *hidden) {
    const uint32_t *h = t->gnu_hash, buckets = h[0], first = h[1], blooms = h[2];
    const ElfW(Addr) *bloom = (const void *)(h + 4);
    const uint32_t *bucket = h + 4 + blooms * (sizeof *bloom / 4), *chain = bucket + buckets;
    const unsigned bits = 8 * sizeof *bloom;
    void *found = NULL;
    if (!buckets || !blooms)
        return NULL;
    /* Most libraries have none of the names: two bits of a filter say so. Its size is a power of
     * two, or the dynamic linker would not have loaded the library. */
    ElfW(Addr) word = bloom[hash / bits & (blooms - 1)];
    if (!(word >> hash % bits & word >> (hash >> h[3]) % bits & 1))
        return NULL;
    for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
        const ElfW(Sym) *symbol = &t->symbols[i];
        if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            symbol->st_value && strcmp(t->strings + symbol->st_name, name) == 0) {
            unsigned char old = t->versions && (t->versions[i] & 0x8000);
            if (!found || !old) {
                found = address_of(t, symbol);
                *hidden = old;
            }
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

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *s = data;
    struct table t;
    (void)size;
    if (!s->behind_us) {
        s->behind_us = contains_us(info);
        return 0;
    }
    if (!read_table(&t, info))
        return 0;
    for (size_t i = 0; i < CALLS; i++)
        if (!s->found[i])
            s->found[i] = lookup(&t, s->name[i], s->hash[i], &s->hidden[i]);
    return 0;
}

/* Several threads may come here at once before the constructor: they store the same answers. */
void monarch_real_init(void) {
    struct search s;
    const char *name = names;
    memset(&s, 0, sizeof s);
    for (size_t i = 0; i < CALLS; i++) {
        s.name[i] = name;
        s.hash[i] = gnu_hash(&name);
    }
    dl_iterate_phdr(visit, &s);
    for (size_t i = 0; i < CALLS; i++)
        __atomic_store_n((void **)&monarch_real + i, s.found[i], __ATOMIC_RELAXED);
    __atomic_store_n(&monarch_real_ready, 1, __ATOMIC_RELEASE);
}
