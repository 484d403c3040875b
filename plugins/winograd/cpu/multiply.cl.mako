## C[row, n] = sum over k of A[row, k] B[k, n] [+ C[row, n]]: MR rows by NV vectors in registers, an A broadcast.
##
## MR, NV      rows and vectors of a register tile; NVL = NV * LANES
## a_row, a_k  elements of A from row to row and from k to k; B's rows follow one another
## adds        whether to add to what C holds
## ahead       whether C is not cached: its lines are prefetched before the sums are complete
## fetched     lines, each of ``line`` elements, from ``next`` on that each k prefetches from memory
inline void multiply(global const ACC *restrict a, global const ACC *restrict b, global ACC *restrict c, int c_row, int count${", int first" if adds else ""}${", global const ACC *restrict next" if fetched else ""}) {
% for i in range(mr):
  V ${", ".join(f"s{i}_{v} = 0" for v in range(nv))};
% endfor
% if ahead:
% for i, v in pairs(range(mr), range(nv)):
  __builtin_prefetch((const void *)(size_t)(c + ${i} * c_row + ${v * lanes}), 1);
% endfor
% endif
  ONCE for (int k = 0; k < count; ++k, a += ${a_k}, b += ${nv * lanes}${f", next += {fetched * line}" if fetched else ""}) {
% for i in range(fetched):
    __builtin_prefetch((const void *)(size_t)(next + ${i * line}), 0, 2);
% endfor
% for v in range(nv):
    const V b${v} = LOADW(b + ${v * lanes});
% endfor
% for i in range(mr):
    const ACC a${i} = a[${i * a_row}];
% for v in range(nv):
    s${i}_${v} = a${i} * b${v} + s${i}_${v};
% endfor
% endfor
  }
% if adds:
  if (!first) {  // previous sums are added at the end, so that running sums stay short and their error small
% for i, v in pairs(range(mr), range(nv)):
    s${i}_${v} += LOADW(c + ${i} * c_row + ${v * lanes});
% endfor
  }
% endif
% for i, v in pairs(range(mr), range(nv)):
  STOREW(c + ${i} * c_row + ${v * lanes}, s${i}_${v});
% endfor
}
<%! from itertools import product as pairs %>
