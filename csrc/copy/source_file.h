/* Opens and reads the file of an order at the source, checks whether it is still the file that the
 * catalog describes, and keeps the sources' rate limits. */
#pragma once

#include "copy/filling.h"

/* Waits until the rate limits allow one more operation and `n` more bytes at the sources. */
void monarch_acquire_rate(struct monarch_engine *e, uint64_t n);
/* Opens the order's file at the source. Returns -1 on failure, with the reason in *status and the
 * error in errno. errno is 0 if the opened file is not the one that the catalog describes. Several
 * threads may open the file for one order. */
int monarch_open_source(struct monarch_engine *e, const struct job *job, int *status);
/* Returns a descriptor of the file of a fill, which is opened at the first call. On failure,
 * returns -1 and sets *status and errno as monarch_open_source does. */
int monarch_source_of(struct monarch_engine *e, struct fill *f, int *status);
/* Notes that a source has just answered an open or a read. */
void monarch_note_source(struct monarch_engine *e);
/* Returns the inode number of a regular file and stores its device in *dev, both from cached
 * attributes. Returns 0 if `fd` is no regular file. */
uint64_t monarch_inode_of(int fd, uint64_t *dev);
/* Returns whether the order's file can be read through a descriptor that a program has opened. */
int monarch_is_usable(const struct monarch_engine *e, const struct job *job, int fd);
/* Checks that the file is still the one that the catalog describes. If it is, all bytes that were
 * read before this call are of the same version of the file. Returns 0, or -1 if the file has
 * changed. Asks the source's server, because the kernel's cached attributes may be older than the
 * bytes. */
int monarch_source_is_unchanged(struct job *job, int fd);
/* Reads `n` bytes at offset `at`, or fewer at the end of the file. Returns the number of bytes, or
 * -errno. */
ssize_t monarch_read_fully(int fd, char *buf, size_t n, off_t at);
/* Like monarch_read_fully, for a source's file. If the kernel supports it, the pages read do not
 * stay in the page cache. */
ssize_t monarch_read_source(struct monarch_engine *e, const struct job *job, int fd, char *buf,
                            size_t n, off_t at);
int monarch_drops_behind(const struct monarch_engine *e, const struct job *job);
int monarch_can_drop_behind(void); /* whether the kernel can drop pages after a read, and safely */
