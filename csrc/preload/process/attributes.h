/* What is said of functions, variables and arguments beyond their types. */
#ifndef MONARCH_ATTRIBUTES_H
#define MONARCH_ATTRIBUTES_H

/* -fvisibility=hidden is of definitions: without the attribute these would be reached by a pointer
 * to them, in every call. */
#define HIDDEN __attribute__((visibility("hidden")))

/* Of large tables that are seldom used: they lie behind all small variables, which then share a
 * page. Every page that is written to costs each process that a job starts. */
#define SELDOM __attribute__((section(".bss.seldom")))

/* The headers declare pointers that cannot be null, and the compiler would drop our checks. */
#define MAYBE_NULL(pointer) __asm__("" : "+r"(pointer))

#define PUBLIC __attribute__((visibility("default")))

#endif
