// Loads and stores one, two or four neighbouring elements, in the type of sums, at a multiple of as many elements.
//
// ACC1, ACC2, ACC4  vectors of ACC; LOADn(p) reads a vector, STOREn(p, v) rounds and writes it
#ifndef ACC1
#define ACC_OF_(T, n) T##n
#define ACC_OF(T, n) ACC_OF_(T, n)
#define ACC1 ACC
#define ACC2 ACC_OF(ACC, 2)
#define ACC4 ACC_OF(ACC, 4)
#define LOAD1(p) LOAD(p, 0)
#define STORE1(p, v) STORE(p, 0, v)
#if FLOAT16
#define LOAD2(p) vload_half2(0, p)
#define LOAD4(p) vload_half4(0, p)
#define STORE2(p, v) vstore_half2_rte(v, 0, p)
#define STORE4(p, v) vstore_half4_rte(v, 0, p)
#elif BFLOAT16
#define LOAD2(p) convert_as_bfloat16_float2(*(global const ushort2 *)(p))
#define LOAD4(p) convert_as_bfloat16_float4(*(global const ushort4 *)(p))
#define STORE2(p, v) (*(global ushort2 *)(p) = convert_bfloat16_as_ushort2(v))
#define STORE4(p, v) (*(global ushort4 *)(p) = convert_bfloat16_as_ushort4(v))
#elif FLOAT32 || FLOAT64
#define LOAD2(p) (*(global const ACC2 *)(p))
#define LOAD4(p) (*(global const ACC4 *)(p))
#define STORE2(p, v) (*(global ACC2 *)(p) = (v))
#define STORE4(p, v) (*(global ACC4 *)(p) = (v))
#else
#error "vectors.cl has no vectors of this dtype"
#endif
#endif
