## Vectors of channels in memory of any dtype, turned where the layout asks, and what follows a sum.
##
## y[p] = activation(v + bias + residual[p] [+ y[p]]): an element, or a vector of LANES neighbours
##
## LANES, V   elements of a vector of sums, its type
typedef V __attribute__((aligned(${accsize}))) vec;
#define LOADW(p) (*(global const vec *)(p))
#define STOREW(p, v) (*(global vec *)(p) = (v))
#define LOADL(p) (*(local const vec *)(p))
#define STOREL(p, v) (*(local vec *)(p) = (v))
// Compilers unroll what they can count and spill what they unrolled.
#define ONCE __attribute__((opencl_unroll_hint(1)))
% if dtype in ("float32", "float64"):
#define LOADV(p) (*(global const vec *)(p))
#define STOREV(p, v) (*(global vec *)(p) = (v))
% elif dtype == "float16":
#define LOADV(p) vload_half${lanes}(0, p)
#define STOREV(p, v) vstore_half${lanes}_rte(v, 0, p)
% else:
typedef ushort${lanes} __attribute__((aligned(2))) vec_real;
#define LOADV(p) as_float${lanes}(convert_uint${lanes}(*(global const vec_real *)(p)) << 16)
inline void store_bfloat16s(global ushort *p, V v) {
  const uint${lanes} u = as_uint${lanes}(v);
  const uint${lanes} rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 64u;
  *(global vec_real *)p = convert_ushort${lanes}(select(rounded, quiet, isnan(v)));
}
#define STOREV(p, v) store_bfloat16s(p, v)
% endif
<%
extra = (", global const REAL *bias" if bias else "") + (", global const REAL *residual" if residual else "")
stages = lanes.bit_length() - 1
half = lanes // 2
%>\
#define OUT_PARAMS global REAL *y${extra}
#define OUT_ARGS y${", bias" if bias else ""}${", residual" if residual else ""}
% if not nhwc:
// Turns the square of LANES x LANES at p about its diagonal.
__attribute__((noinline))
void turn(local ACC *p) {
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

// b is the bias of the element's channel, or of the vector's.
inline void put_one(OUT_PARAMS, long p, ACC v, ACC b) {
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

inline void put_vector(OUT_PARAMS, long p, V v, V b) {
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
