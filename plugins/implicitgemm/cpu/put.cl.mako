## y[p] = activation(v + bias + residual[p] [+ y[p]]): an element, or a vector of LANES neighbours.
//
// LANES, V  elements of a vector of sums, its type
% if dtype in ("float32", "float64"):
typedef V __attribute__((aligned(${accsize}))) vec_out;
#define LOADV(p) (*(global const vec_out *)(p))
#define STOREV(p, v) (*(global vec_out *)(p) = (v))
% elif dtype == "float16":
#define LOADV(p) vload_half${lanes}(0, p)
#define STOREV(p, v) vstore_half${lanes}_rte(v, 0, p)
% else:
typedef ushort${lanes} __attribute__((aligned(2))) vec_out;
#define LOADV(p) as_float${lanes}(convert_uint${lanes}(*(global const vec_out *)(p)) << 16)
inline void store_bfloat16s(global ushort *p, V v) {
  const uint${lanes} u = as_uint${lanes}(v);
  const uint${lanes} rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 64u;
  *(global vec_out *)p = convert_ushort${lanes}(select(rounded, quiet, isnan(v)));
}
#define STOREV(p, v) store_bfloat16s(p, v)
% endif
<%
extra = (", global const REAL *bias" if bias else "") + (", global const REAL *residual" if residual else "")
%>
#define OUT_KERNEL_PARAMS global REAL *y${extra}
#define OUT_PARAMS_ global REAL *y${extra}
#define OUT_ARGS y${", bias" if bias else ""}${", residual" if residual else ""}

// b is the bias of the element's channel, or of the vector's.
inline void put_one(global REAL *y${extra}, long p, ACC v, ACC b) {
% if bias:
  v += b;
% endif
% if residual:
  v += LOAD(residual, p);
% endif
% if accumulate:
  v += LOAD(y, p);
% endif
  v = ACTIVATION(ACC, v);
  STORE(y, p, v);
}

inline void put_vector(global REAL *y${extra}, long p, V v, V b) {
% if bias:
  v += b;
% endif
% if residual:
  v += LOADV(residual + p);
% endif
% if accumulate:
  v += LOADV(y + p);
% endif
  v = ACTIVATION(V, v);
  STOREV(y + p, v);
}
