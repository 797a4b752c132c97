/* Attributes of functions, variables and arguments. */
#pragma once

/* Marks declarations of names that are defined in another file. -fvisibility=hidden affects only
 * definitions. Without this attribute, every access to such a name would go through the global
 * offset table. */
#define HIDDEN __attribute__((visibility("hidden")))

/* Marks large tables that are seldom used. The linker puts their section after all small variables,
 * so that the small variables share a page. That saves memory in every process of a job, because
 * each page that is written to costs memory. */
#define SELDOM __attribute__((section(".bss.seldom")))

/* Makes the compiler keep checks of this pointer for NULL. The compiler would remove them if libc's
 * headers declare the pointer as never null. */
#define MAYBE_NULL(pointer) __asm__("" : "+r"(pointer))

#define PUBLIC __attribute__((visibility("default")))
