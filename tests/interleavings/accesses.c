/* Replacements for functions of ThreadSanitizer's runtime. At each memory access of the code under
 * test, the compiler has inserted a call of such a function. Each atomic access is a step for the
 * scheduler. */
#include <stddef.h>
#include <stdint.h>

#include "scheduler.h"

#define ACCESSED(what) step_at(what, __builtin_return_address(0))

#define FETCH(T, bits, name)                                               \
    T __tsan_atomic##bits##_fetch_##name(volatile T *at, T v, int order);  \
    T __tsan_atomic##bits##_fetch_##name(volatile T *at, T v, int order) { \
        (void)order;                                                       \
        T old = __atomic_fetch_##name(at, v, __ATOMIC_SEQ_CST);            \
        ACCESSED(at);                                                      \
        return old;                                                        \
    }
#define ATOMICS(T, bits)                                                                       \
    T __tsan_atomic##bits##_load(const volatile T *at, int order);                             \
    T __tsan_atomic##bits##_load(const volatile T *at, int order) {                            \
        (void)order;                                                                           \
        T v = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                           \
        ACCESSED(at);                                                                          \
        return v;                                                                              \
    }                                                                                          \
    void __tsan_atomic##bits##_store(volatile T *at, T v, int order);                          \
    void __tsan_atomic##bits##_store(volatile T *at, T v, int order) {                         \
        (void)order;                                                                           \
        __atomic_store_n(at, v, __ATOMIC_SEQ_CST);                                             \
        ACCESSED(at);                                                                          \
    }                                                                                          \
    T __tsan_atomic##bits##_exchange(volatile T *at, T v, int order);                          \
    T __tsan_atomic##bits##_exchange(volatile T *at, T v, int order) {                         \
        (void)order;                                                                           \
        T old = __atomic_exchange_n(at, v, __ATOMIC_SEQ_CST);                                  \
        ACCESSED(at);                                                                          \
        return old;                                                                            \
    }                                                                                          \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *at, T *seen, T v, int order, \
                                                      int other);                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *at, T *seen, T v, int order, \
                                                      int other) {                             \
        (void)order, (void)other;                                                              \
        int is_done =                                                                          \
            __atomic_compare_exchange_n(at, seen, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
        ACCESSED(at);                                                                          \
        return is_done;                                                                        \
    }                                                                                          \
    FETCH(T, bits, add)                                                                        \
    FETCH(T, bits, sub)                                                                        \
    FETCH(T, bits, and)                                                                        \
    FETCH(T, bits, or)                                                                         \
    FETCH(T, bits, xor)

ATOMICS(uint8_t, 8)
ATOMICS(uint16_t, 16)
ATOMICS(uint32_t, 32)
ATOMICS(uint64_t, 64)

/* A plain access is no step, because two threads never make conflicting plain accesses at the same
 * time. Other tests check this rule with the real ThreadSanitizer. */
#define PLAIN(name)               \
    void __tsan_##name(void *at); \
    void __tsan_##name(void *at) { (void)at; }
#define PLAIN_OF(bytes) \
    PLAIN(read##bytes)  \
    PLAIN(write##bytes) PLAIN(unaligned_read##bytes) PLAIN(unaligned_write##bytes)
PLAIN_OF(1)
PLAIN_OF(2)
PLAIN_OF(4)
PLAIN_OF(8)
PLAIN_OF(16)
PLAIN(func_entry)

void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
void __tsan_read_range(void *at, size_t n);
void __tsan_read_range(void *at, size_t n) { (void)at, (void)n; }
void __tsan_write_range(void *at, size_t n);
void __tsan_write_range(void *at, size_t n) { (void)at, (void)n; }
void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order) { (void)order; }
