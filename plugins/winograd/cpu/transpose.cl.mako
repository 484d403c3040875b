## Vectors of channels in memory of any dtype, and a square of them transposed where that is ``wanted``.
##
## LANES, V   elements of a vector of sums, its type
#include <convdispatch/lanes.cl>
// Asks for the line of memory at p, whatever lies there; ``write``: to write it.
#define PREFETCH(p, write) __builtin_prefetch((const void *)(size_t)(p), write)
<%
stages = lanes.bit_length() - 1
half = lanes // 2
%>\
% if wanted:
// Transposes the square of LANES x LANES at p.
__attribute__((noinline))
void transpose(local ACC *p) {
% for k in range(lanes):
  const V t0_${k} = LOADL(p + ${k} * LANES);
% endfor
% for t in range(1, stages + 1):
% for i in range(half):
  const V t${t}_${i} = (V)(t${t - 1}_${2 * i}.even, t${t - 1}_${2 * i + 1}.even), t${t}_${i + half} = (V)(t${t - 1}_${2 * i}.odd, t${t - 1}_${2 * i + 1}.odd);
% endfor
% endfor
% for k in range(lanes):
  STOREL(p + ${k} * LANES, t${stages}_${k});
% endfor
}
% endif
