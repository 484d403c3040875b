// y[o] = the largest of x over the window of o, of which NaN is the largest and -infinity what lies outside.
//
// Elements are compared as the integers that they are in memory. A work item has FEW neighbours of y: channels where they
// are last, else windows of a row. Where a place of a window lies outside, the nearest inside is read instead, so that
// no read waits for a test. Without dilation that one is of the window too, and changes no largest; else it is taken out.
//
// Values the host defines:
//   IH IW OH OW KH KW SH SW PH PW DH DW   sizes of x and y, the window, its step, the padding, the dilation
//   NHWC      1 if channels are last, CHANNELS of them
//   BITS      of an element: 16 or 32
//   INF       the bits of infinity
//   FEW       1, 2, 4 or 8; at most 16 bytes, and without NHWC at most 4
//   INSIDE    1 if no window reaches beyond the input
//   INSTRUCTION   PTX's for the larger of two words, NaN if one holds it: on NVIDIA's devices, where it compares two
//             elements of 16 bits at once

#if BITS == 16
#define Element ushort
#else
#define Element uint
#endif
#define BYTES (FEW * BITS / 8)
#if BYTES == 16
#define Raw uint4
#elif BYTES == 8
#define Raw uint2
#elif BYTES == 4
#define Raw uint
#else
#define Raw ushort
#endif

#ifdef INSTRUCTION
// --- words as they are
#if BYTES == 2
#define Largest uint
#else
#define Largest Raw
#endif
#if BITS == 16
#define LEAST ((Largest)((INF | 0x8000u) * 0x10001u))
#else
#define LEAST ((Largest)(INF | 0x80000000u))
#endif
#define OF(raw) (raw)
#define RESULT(best) ((Raw)(best))
inline uint larger1(uint a, uint b) {
  uint larger;
  asm(INSTRUCTION " %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
#if BYTES == 16
#define LARGER(a, b) ((uint4)(larger1(a.x, b.x), larger1(a.y, b.y), larger1(a.z, b.z), larger1(a.w, b.w)))
#elif BYTES == 8
#define LARGER(a, b) ((uint2)(larger1(a.x, b.x), larger1(a.y, b.y)))
#else
#define LARGER(a, b) larger1(a, b)
#endif
#else
// --- integers in the elements' order, from 0 for -infinity on; NaN of either sign is above infinity
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if FEW == 1
#define LANES(type) type
#else
#define LANES(type) JOIN(type, FEW)
#endif
#define Largest LANES(uint)
#define LEAST ((Largest)(0))
#define MAGNITUDE ((LANES(int))(BITS == 16 ? 0x7fff : 0x7fffffff))
#define ORDERED(bits) ((bits) ^ ((bits) >> (LANES(int))(31) & MAGNITUDE))
#define FIRST ((LANES(int))(BITS == 16 ? -0x8000 + (0x7fff - INF) : (int)(0x80000000u + (0x7fffffffu - INF))))
#if BITS == 16
inline Largest OF(Raw raw) {
  const LANES(int) bits = LANES(convert_int)(LANES(as_short)(raw));
  return LANES(as_uint)(ORDERED(bits)) - LANES(as_uint)(FIRST);
}
#define BITS_OF(u) LANES(as_int)((u) + LANES(as_uint)(FIRST))
inline Raw RESULT(Largest best) {
  const LANES(int) bits = BITS_OF(best), back = ORDERED(bits);
#if FEW == 1
  return (ushort)back;
#elif FEW == 2
  return as_uint(convert_ushort2(back));
#elif FEW == 4
  return as_uint2(convert_ushort4(back));
#else
  return as_uint4(convert_ushort8(back));
#endif
}
#else
inline Largest OF(Raw raw) {
  const LANES(int) bits = LANES(as_int)(raw);
  return LANES(as_uint)(ORDERED(bits)) - LANES(as_uint)(FIRST);
}
inline Raw RESULT(Largest best) {
  const LANES(int) bits = LANES(as_int)(best + LANES(as_uint)(FIRST));
  return LANES(as_uint)(ORDERED(bits));
}
#endif
#define LARGER(a, b) max(a, b)
#endif

#if INSIDE
#define NEAREST(at, size) (at)
#else
#define NEAREST(at, size) clamp(at, 0, (size) - 1)
#endif
#if NHWC
#define READ(iy, ix) (*(global const Raw *)(x + ((iy) * IW + NEAREST(ix, IW)) * CHANNELS))
#elif BITS == 16 && FEW == 2
#define READ(iy, ix) (x[(iy) * IW + NEAREST(ix, IW)] | (uint)x[(iy) * IW + NEAREST((ix) + SW, IW)] << 16)
#else
#define READ(iy, ix) x[(iy) * IW + NEAREST(ix, IW)]
#endif
#if KH * KW <= 49
#define EACH _Pragma("unroll") for
#else
#define EACH for
#endif

kernel void max_pool(global const Element *restrict x, global Element *restrict y, const uint items) {
  const uint item = get_global_id(0);
  if (item >= items) return;
#if NHWC
  const uint part = item % (CHANNELS / FEW), spot = item / (CHANNELS / FEW);
  const int ox = spot % OW, oy = spot / OW % OH;
  x += (ulong)(spot / (OW * OH)) * (IH * IW * CHANNELS) + part * FEW;
#else
  const int ox = item % (OW / FEW) * FEW, oy = item / (OW / FEW) % OH;
  x += (ulong)(item / (OW / FEW * OH)) * (IH * IW);
#endif
  Largest best = LEAST;
  EACH(int ky = 0; ky < KH; ++ky) {
    const int iy = oy * SH - PH + ky * DH, row = NEAREST(iy, IH);
    EACH(int kx = 0; kx < KW; ++kx) {
      const int ix = ox * SW - PW + kx * DW;
      const Largest v = OF(READ(row, ix));
#if INSIDE || DH * DW == 1
      best = LARGER(best, v);
#else
      const Largest larger = LARGER(best, v);
      best = iy == row && ix >= 0 && ix < IW ? larger : best;
#endif
    }
  }
  *(global Raw *)(y + (ulong)item * FEW) = RESULT(best);
}
