## Vectors, a multiply-add of them, stores of them that bypass the caches, and the transposition of a square of them in registers.
//
// LANES, V  elements of a vector, its type
#include <convdispatch/lanes.cl>
// The compiler fuses both where the processor can; fma would be a slow function where it cannot.
#define MULTIPLY_ADD(factor, a, b) ((factor) * (a) + (b))
// These stores bypass the caches: a kernel's spectrum is larger than they are and is read only after all is written.
#define STREAM(p, v) STOREW(p, v)
#ifdef __has_builtin
#if __has_builtin(__builtin_nontemporal_store)
#undef STREAM
#define STREAM(p, v) __builtin_nontemporal_store(v, (global vec *)(p))
#endif
#endif
// Prefetches the cache line at p, which need not be mapped; ``write``: in order to write it.
#define PREFETCH(p, write) __builtin_prefetch((const void *)(size_t)(p), write)
<% stages = lanes.bit_length() - 1 %>\
// to[i][j] = from[j][i] + add[i]: even elements, then odd ones, ${stages} times. Not inlined: it compiles once.
__attribute__((noinline)) void transpose(const V *restrict from, V *restrict to, V add) {
% for i in range(lanes):
  const V t0_${i} = from[${i}] + add;
% endfor
${transposed(lanes)}
% for i in range(lanes):
  to[${i}] = t${stages}_${i};
% endfor
}
