## Loads and stores vectors of channels of any dtype; transposes a square of them if ``wanted``.
##
## LANES, V   elements of a vector of sums, its type
#include <convdispatch/lanes.cl>
// Prefetches the cache line at p, which need not be mapped; ``write``: in order to write it.
#define PREFETCH(p, write) __builtin_prefetch((const void *)(size_t)(p), write)
<% stages = lanes.bit_length() - 1 %>\
% if wanted:
// Transposes the square of LANES x LANES at p.
__attribute__((noinline))
void transpose(local ACC *p) {
% for k in range(lanes):
  const V t0_${k} = LOADL(p + ${k} * LANES);
% endfor
${transposed(lanes)}
% for k in range(lanes):
  STOREL(p + ${k} * LANES, t${stages}_${k});
% endfor
}
% endif
