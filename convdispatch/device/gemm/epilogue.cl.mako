## C = activation(sum + bias + residual [+ C]), for LANES neighbouring columns of one row, or for some of them.
//
// V, LANES     vector type of LANES sums (ACC); CREAL is C's element type: REAL, or ACC for partial sums
// aligned      C and residual are float32 or float64, and their vectors are aligned to their size
// C_ROW, C_COL element offset of a row or column of C, residual likewise
// ADD, LAST    flags of a call: add C's old values; this is the last part of the sum, so add bias and apply activation
#define ADD 1
#define LAST 2
#include <convdispatch/lanes.cl>
#include <convdispatch/epilogue.cl>
% if partial:
#define CREAL ACC
#define CLOAD(p, i) ((p)[i])
#define CSTORE(p, i, v) ((p)[i] = (v))
#define CLOADV LOADW
#define CSTOREV STOREW
% else:
#define CREAL REAL
#define CLOAD LOAD
#define CSTORE STORE
% if aligned:
typedef V __attribute__((aligned(LANES * sizeof(ACC)))) vec_c;
#define CLOADV(p) (*(global const vec_c *)(p))
#define CSTOREV(p, v) (*(global vec_c *)(p) = (v))
% else:
#define CLOADV LOADV
#define CSTOREV STOREV
% endif
% endif
<%
bias = None if partial else epilogue.bias
residual = epilogue.residual and not partial
unit = c_col.stride == 1
%>
#define OUT_PARAMS global CREAL *c${", global const REAL *bias" if bias else ""}${", global const REAL *residual" if residual else ""}
#define OUT_ARGS c${", bias" if bias else ""}${", residual" if residual else ""}
#define OUT_KERNEL_PARAMS global CREAL *c_, long c_off${", global const REAL *bias_, long bias_off" if bias else ""}${", global const REAL *residual_, long residual_off" if residual else ""}
// Pointers to one batch's C, bias and residual, from the kernel's own parameters.
#define OUT_POINTERS(z, part) \
% if partial:
  global CREAL *c = c_ + c_off + ((long)(part) * BATCH + (z)) * ((long)M * N); \
% else:
  global CREAL *c = c_ + c_off + C_BATCH(z); \
% endif
% if bias:
  global const REAL *bias = bias_ + bias_off + BIAS_BATCH(z); \
% endif
% if residual:
  global const REAL *residual = residual_ + residual_off + C_BATCH(z); \
% endif

inline void put_one(OUT_PARAMS, ACC v, int m, int n, int flags) {
  const long p = C_ROW(m) + C_COL(n);
  if (flags & ADD) v += CLOAD(c, p);
% if not partial:
  if (flags & LAST) EPILOGUE(ACC, v, LOAD(bias, ${bias}), LOAD(residual, p), )
% endif
  CSTORE(c, p, v);
}

// Writes lanes first to end - 1 of v, whose lanes are columns n to n + LANES - 1. On a CPU the function is not inlined,
// because a tile calls it dozens of times, and compilers take minutes over so many copies of its loop.
% if unroll:
inline
% else:
__attribute__((noinline))
% endif
void put_lanes(OUT_PARAMS, V v, int m, int n, int first, int end, int flags) {
% if unroll:
% for lane in range(lanes):
  if (first <= ${lane} && ${lane} < end) put_one(OUT_ARGS, v.s${"%x" % lane}, m, n + ${lane}, flags);
% endfor
% else:
  union { V v; ACC s[LANES]; } u;
  u.v = v;
  __attribute__((opencl_unroll_hint(1)))
  for (int lane = first; lane < end; ++lane) put_one(OUT_ARGS, u.s[lane], m, n + lane, flags);
% endif
}

// Writes all lanes of v; all their columns exist.
% if unroll or (unit and c_col.plain and dtype in ("float32", "float64")):
inline
% else:
__attribute__((noinline))
% endif
void put_vector(OUT_PARAMS, V v, int m, int n, int flags) {
% if not unit:
  put_lanes(OUT_ARGS, v, m, n, 0, LANES, flags);
% else:
% if not c_col.plain:
  if (n % ${c_col.inner} + LANES > ${c_col.inner}) {  // the columns are in two contiguous runs
    put_lanes(OUT_ARGS, v, m, n, 0, LANES, flags);
    return;
  }
% endif
  const long p = C_ROW(m) + C_COL(n);
  if (flags & ADD) v += CLOADV(c + p);
% if not partial:
  if (flags & LAST) EPILOGUE(V, v, ${"LOAD(bias, m)" if bias == "m" else "LOADV(bias + n)"}, CLOADV(residual + p), )
% endif
  CSTOREV(c + p, v);
% endif
}
% if tail:

// Writes lanes ${tail[0]} to ${tail[1] - 1} of v, the last columns of a row of C, by vectors of falling powers of two.
inline void put_tail(OUT_PARAMS, V v, int m, int n, int flags) {
  const long p = C_ROW(m) + C_COL(n);
% for at, width in pieces(*tail):
<% kind = acc + (str(width) if width > 1 else "") %>\
  {
    typedef ${kind} __attribute__((aligned(sizeof(ACC)))) some;
    ${kind} part = v.s${"".join("%x" % (at + i) for i in range(width))};
    if (flags & ADD) part += *(global const some *)(c + p + ${at});
% if not partial:
    if (flags & LAST) EPILOGUE(${kind}, part, ${"LOAD(bias, m)" if bias == "m" else f"*(global const some *)(bias + n + {at})"}, *(global const some *)(residual + p + ${at}), )
% endif
    *(global some *)(c + p + ${at}) = part;
  }
% endfor
}
% endif
