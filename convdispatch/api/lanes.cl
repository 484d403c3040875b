// Loads and stores vectors V of LANES neighbouring elements, in the type of sums, at the address of any element.
//
// LANES      4, 8 or 16; V  type of as many ACC
//
// LOADV(p) reads REALs, STOREV(p, v) rounds to REALs and writes; LOADW and STOREW read and write ACCs, LOADL and STOREL
// ACCs in local memory. STREAMW writes ACCs past the caches, to an address that is a multiple of a vector's size: for
// outputs larger than caches, which otherwise read each line before it is written.
#ifndef LOADV
typedef V __attribute__((aligned(sizeof(ACC)))) vec;
#define LOADW(p) (*(global const vec *)(p))
#define STOREW(p, v) (*(global vec *)(p) = (v))
#define LOADL(p) (*(local const vec *)(p))
#define STOREL(p, v) (*(local vec *)(p) = (v))
#define WITH_LANES_(before, n, after) before##n##after
#define WITH_LANES(before, n, after) WITH_LANES_(before, n, after)
#if FLOAT16
#define LOADV(p) WITH_LANES(vload_half, LANES, )(0, p)
#define STOREV(p, v) WITH_LANES(vstore_half, LANES, _rte)(v, 0, p)
#elif BFLOAT16
typedef WITH_LANES(ushort, LANES, ) __attribute__((aligned(2))) vec_real;
#define LOADV(p) WITH_LANES(convert_as_bfloat16_float, LANES, )(*(global const vec_real *)(p))
#define STOREV(p, v) (*(global vec_real *)(p) = WITH_LANES(convert_bfloat16_as_ushort, LANES, )(v))
#elif FLOAT32 || FLOAT64
#define LOADV LOADW
#define STOREV STOREW
#else
#error "lanes.cl has no vectors of this dtype"
#endif
#define STREAMW STOREW
#ifdef __has_builtin
#if __has_builtin(__builtin_nontemporal_store)
#undef STREAMW
#define STREAMW(p, v) __builtin_nontemporal_store(v, (global V *)(p))
#endif
#endif
// To be placed before a loop that must not be unrolled, because the unrolled loop would spill registers.
#define ONCE __attribute__((opencl_unroll_hint(1)))
#endif
