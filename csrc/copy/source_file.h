/* Opens and reads an order's file at the source. Checks that the file is still the version that the
 * catalog describes, and obeys the rate limits for sources. If a program has handed over a
 * descriptor of the file, uses this descriptor, and then closes it. */
#pragma once

#include "copy/filling.h"

/* Waits until the rate limits allow one more operation and `n` more bytes at the sources. */
void monarch_acquire_rate(struct monarch_engine *e, uint64_t n);
/* Opens the order's file at the source. On failure, returns -1 and stores the reason in *status and
 * the error in errno. errno is 0 if the open file differs from the catalog's description. Several
 * threads may call this for the same order. */
int monarch_open_source(struct monarch_engine *e, const struct job *job, int *status);
/* Records that a source has answered an open or a read just now. */
void monarch_note_source(struct monarch_engine *e);
/* Returns the inode number of a regular file, and stores its device in *dev. Returns 0 if `fd` is
 * no regular file. Reads only attributes that the kernel has cached. */
uint64_t monarch_inode_of(int fd, uint64_t *dev);
/* Returns 0 if the file is still the version that the catalog describes. Then all bytes that were
 * read before this call belong to this version. Otherwise, sets the job's result and returns -1.
 * Asks the source's server, because cached attributes may be older than the bytes. */
int monarch_source_is_unchanged(struct job *job, int fd);
/* Reads `n` bytes at offset `at`, or fewer at the end of the file. Returns the number of bytes, or
 * -errno. */
ssize_t monarch_read_fully(int fd, char *buf, size_t n, off_t at);
/* Like monarch_read_fully, but for a source's file. If the kernel and the file system support this,
 * the pages that this read loads do not stay in the page cache. */
ssize_t monarch_read_source(struct monarch_engine *e, const struct job *job, int fd, char *buf,
                            size_t n, off_t at);
int monarch_drops_behind(const struct monarch_engine *e, const struct job *job);
int monarch_can_drop_behind(void); /* whether the kernel can safely drop pages after a read */
/* Notes how long the open and the read of a one-unit file took at its source [ns]. A source is
 * marked as fast if more than half of its recent files took less than FAST_NS (source_file.c). */
void monarch_note_speed(struct monarch_engine *e, unsigned source, uint64_t ns);
/* Notes whether the kernel had already dropped pages of a file that a program had just read and
 * handed over. If this happened to more than half of a source's recent files, the source is marked
 * as pageless. Programs then hand over only one in 128 of its files. These few show whether the
 * kernel keeps pages again. */
void monarch_note_pages(struct monarch_engine *e, unsigned source, int are_gone);

/* --- the descriptor of a fill ----------------------------------------------------------------- */

/* Returns whether the order has a descriptor that a reader has handed over. */
int monarch_is_handed(const struct job *job);
/* Closes a descriptor of the order's file. If a reader has handed over this descriptor, also ends
 * the reader's claim (shared/claims.h). */
void monarch_close_source(struct monarch_engine *e, struct job *job, int fd);
/* Closes the descriptor that a reader has handed over to the order, if there is one. */
void monarch_close_handed(struct monarch_engine *e, struct job *job);
/* Returns a descriptor of the order's file: the handed-over one if it can be used, otherwise a new
 * one. On failure, returns -1 and sets *status and errno as monarch_open_source does. */
int monarch_take_source(struct monarch_engine *e, struct job *job, int *status);
/* Returns the fill's descriptor of its file at the source. The first call opens the file. On
 * failure, returns -1 and sets *status and errno as monarch_open_source does. */
int monarch_source_of(struct monarch_engine *e, struct fill *f, int *status);
/* Call this during a fill, before each read from its descriptor `from`. If `from` was handed over
 * and must be closed now (monarch_is_recalled), opens the file anew. The new descriptor then has
 * the old number `from`. Returns 0, or -1 if the open failed, with the reason in *status and
 * errno. */
int monarch_give_back_recalled(struct monarch_engine *e, struct fill *f, int from, int *status);
/* Reads `n` bytes at the offset `at` through the fill's descriptor `from`. The bytes count as read
 * from the source, unless they came from a handed-over descriptor without a wait. Returns the
 * number of bytes, or -errno. */
ssize_t monarch_read_part(struct monarch_engine *e, struct fill *f, int from, char *buffer,
                          uint64_t n, uint64_t at);
