/* Attributes of functions, variables and arguments. */
#pragma once

/* Marks declarations of names that are defined in another file. -fvisibility=hidden affects only
 * definitions. Without this attribute, every access to such a name would go through the global
 * offset table. */
#define HIDDEN __attribute__((visibility("hidden")))

/* Marks large tables that are seldom used. The linker puts these tables after all small variables,
 * so that the small variables are together on few pages. That saves memory in every process of a
 * job: a page takes up memory once the process writes to it. */
#define SELDOM __attribute__((section(".bss.seldom")))

/* Makes the compiler keep all later checks whether `pointer` is NULL. libc's headers may declare
 * that this pointer is never NULL. Without this macro, the compiler would then remove the
 * checks. */
#define MAYBE_NULL(pointer) __asm__("" : "+r"(pointer))

#define PUBLIC __attribute__((visibility("default")))
