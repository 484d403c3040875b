## Vectors, what writes them past the caches, and a square of them transposed in registers.
//
// LANES, V  elements of a vector, its type
#include <convdispatch/lanes.cl>
// Past the caches: a kernel's spectrum is larger than they are, and is read only when all of it is there.
#define STREAM(p, v) STOREW(p, v)
#ifdef __has_builtin
#if __has_builtin(__builtin_nontemporal_store)
#undef STREAM
#define STREAM(p, v) __builtin_nontemporal_store(v, (global vec *)(p))
#endif
#endif
// Asks for the line of memory at p, whatever lies there; ``write``: to write it.
#define PREFETCH(p, write) __builtin_prefetch((const void *)(size_t)(p), write)
<%
stages = lanes.bit_length() - 1
mid = lanes // 2
%>
// to[i][j] = from[j][i] + add[i]: even elements, then odd ones, ${stages} times. Not inlined: it compiles once.
__attribute__((noinline)) void transpose(const V *restrict from, V *restrict to, V add) {
% for i in range(lanes):
  const V r0_${i} = from[${i}] + add;
% endfor
% for t in range(1, stages + 1):
% for i in range(mid):
  const V r${t}_${i} = (V)(r${t - 1}_${2 * i}.even, r${t - 1}_${2 * i + 1}.even), r${t}_${i + mid} = (V)(r${t - 1}_${2 * i}.odd, r${t - 1}_${2 * i + 1}.odd);
% endfor
% endfor
% for i in range(lanes):
  to[${i}] = r${stages}_${i};
% endfor
}
