/* Attributes of functions, variables and arguments. */
#pragma once

/* For declarations. -fvisibility=hidden affects definitions only: without this attribute every
 * access would go through a pointer. */
#define HIDDEN __attribute__((visibility("hidden")))

/* For large tables that are seldom used. Their section lies behind all small variables, so that the
 * small variables share one page. Each page that is written to is a cost for every process that a
 * job starts. */
#define SELDOM __attribute__((section(".bss.seldom")))

/* Makes the compiler keep our checks for NULL, although libc's headers declare the pointer as never
 * null. */
#define MAYBE_NULL(pointer) __asm__("" : "+r"(pointer))

#define PUBLIC __attribute__((visibility("default")))
