/* Attributes of functions, variables and arguments. */
#pragma once

/* For declarations. -fvisibility=hidden affects only definitions; without this attribute, every
 * access to a name that is only declared would go through the global offset table. */
#define HIDDEN __attribute__((visibility("hidden")))

/* For large tables that are seldom used. Their section comes after all small variables, so that the
 * small variables share a page. Each page that is written to costs memory in every process of a
 * job. */
#define SELDOM __attribute__((section(".bss.seldom")))

/* Makes the compiler keep checks of this pointer for NULL. The compiler would remove them if libc's
 * headers declare the pointer as never null. */
#define MAYBE_NULL(pointer) __asm__("" : "+r"(pointer))

#define PUBLIC __attribute__((visibility("default")))
