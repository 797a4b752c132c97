/* Attributes of functions, variables and arguments. */
#pragma once

/* For the declaration of a name that another file defines. Without this attribute, every access to
 * the name would go through the global offset table, because -fvisibility=hidden affects only
 * definitions. */
#define HIDDEN __attribute__((visibility("hidden")))

/* For a large table that is seldom used. The linker puts such tables after all small variables, so
 * that the small variables share few pages. This saves memory in every process of a job, because a
 * page takes up memory once the process writes to it. */
#define SELDOM __attribute__((section(".bss.seldom")))

/* Makes the compiler keep the code below that compares `pointer` with NULL. If libc's headers
 * declare that the pointer is never NULL, the compiler would otherwise remove this code. */
#define MAYBE_NULL(pointer) __asm__("" : "+r"(pointer))

#define PUBLIC __attribute__((visibility("default")))
