// Pooling for GPUs with channels first and float32 (windows and macros: pool_windows.cl): a work item is RUN neighbours
// in a row of y, going back the blocks of dx below them, so that finding its place costs a RUN-th, and what it loads and
// stores are vectors. Each element is computed as pool.cl does, in the same order.
//
// Values the host defines besides:
//   RUN           2 or 4; divides OW
//   VECTORS       1 if four neighbours of x lie at a multiple of 16 bytes where an item begins, and PW is 0;
//                 backward, if RUN neighbours of dy lie at a multiple of RUN elements
//   BLOCKS        1 to compile the gradient: no value lies in two windows, none in the padding, and IW is OW * SW

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define FEW(type) JOIN(type, RUN)
#if RUN == 4
#define GATHER(a) (a)[0], (a)[1], (a)[2], (a)[3]
#define SPREAD(a, v) (a)[0] = (v).s0, (a)[1] = (v).s1, (a)[2] = (v).s2, (a)[3] = (v).s3
#else
#define GATHER(a) (a)[0], (a)[1]
#define SPREAD(a, v) (a)[0] = (v).s0, (a)[1] = (v).s1
#endif
#define EACH _Pragma("unroll") for (int r = 0; r < RUN; ++r)
#define ROW (OW / RUN)

#if !BLOCKS

// Values of x between a run's first and last.
#define SPAN ((RUN - 1) * SW + (KW - 1) * DW + 1)
#define FOURS (VECTORS ? SPAN / 4 * 4 : 0)

kernel void pool(global const float *restrict x, const long offset, global float *restrict y
#if NOTE
                 , global NOTED *restrict places
#endif
) {
  PLACE(OH * ROW)
  const int oy = pixel / ROW, ox = pixel % ROW * RUN, left = ox * SW - PW;
  x += offset + START(IH * IW);
  y += START(OH * OW) + oy * OW + ox;
  float best[RUN];
  int place[RUN];
  EACH best[r] = AVERAGE ? 0 : -INFINITY, place[r] = -1;
  _Pragma("unroll") for (int ky = 0; ky < KH; ++ky) {
    const int iy = oy * SH - PH + ky * DH;
    const int within = INSIDE || (iy >= 0 && iy < IH);
    global const float *from = x + iy * IW + left;
    float row[SPAN];
#define WITHIN(j) (INSIDE || (within && left + (j) >= 0 && left + (j) < IW))
#if VECTORS
    _Pragma("unroll") for (int j = 0; j < FOURS; j += 4) {
      const float4 four = WITHIN(j) ? *(global const float4 *)(from + j) : (float4)0;
      row[j] = four.s0, row[j + 1] = four.s1, row[j + 2] = four.s2, row[j + 3] = four.s3;
    }
#endif
    _Pragma("unroll") for (int j = FOURS; j < SPAN; ++j) row[j] = WITHIN(j) ? from[j] : 0;
    EACH _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {
      const float v = row[r * SW + kx * DW];
      const int number = BYTES ? ky * KW + kx : iy * IW + left + r * SW + kx * DW;
      if (WITHIN(r * SW + kx * DW)) {
#if AVERAGE
        best[r] += v;
#else
        const int better = place[r] < 0 || v > best[r] || v != v;
        best[r] = better ? v : best[r];
        place[r] = better ? number : place[r];
#endif
      }
    }
  }
#if AVERAGE
  EACH best[r] /= count_of(oy, ox + r);
#endif
  *(global FEW(float) *)y = (FEW(float))(GATHER(best));
#if NOTE
  NOTED noted[RUN];
  EACH noted[r] = (NOTED)(place[r] + (best[r] > 0 ? 0 : CUT));
  *(global FEW(NOTED) *)(places + START(OH * OW) + oy * OW + ox) = (FEW(NOTED))(GATHER(noted));
#endif
}

#else

#define BLOCKS_H ((IH + SH - 1) / SH)
#if RUN * SW % 4 == 0
#define STEP 4
#else
#define STEP 2
#endif

kernel void pool_backward(global const float *restrict dy, const long offset, global const NOTED *restrict places,
                          global float *restrict dx) {
  PLACE(BLOCKS_H * ROW)
  const int oy = pixel / ROW, ox = pixel % ROW * RUN;
  dx += START(IH * IW) + ox * SW;
  float slope[RUN];
  int place[RUN];
  EACH slope[r] = 0, place[r] = CUT;
  if (oy < OH) {  // below the last windows there may be a gap
    const long from = START(OH * OW) + oy * OW + ox;
    dy += offset + from;
#if VECTORS
    const FEW(float) given = *(global const FEW(float) *)dy;
#else
    const FEW(float) given = JOIN(vload, RUN)(0, dy);
#endif
    SPREAD(slope, given);
#if AVERAGE
    EACH slope[r] /= count_of(oy, ox + r);
#else
    const FEW(NOTED) notes = *(global const FEW(NOTED) *)(places + from);
    SPREAD(place, notes);
    EACH place[r] = WHERE(place[r]);
#endif
  }
  _Pragma("unroll") for (int y = 0; y < SH; ++y) {
    const int iy = oy * SH + y;
    float row[RUN * SW];
    EACH _Pragma("unroll") for (int x = 0; x < SW; ++x) {
      const int mine = BYTES ? y / DH * KW + x / DW : iy * IW + (ox + r) * SW + x;
      const int held = y % DH == 0 && y / DH < KH && x % DW == 0 && x / DW < KW;
      row[r * SW + x] = held && (AVERAGE || place[r] == mine) ? slope[r] : 0;
    }
    if (iy < IH)
      _Pragma("unroll") for (int j = 0; j < RUN * SW; j += STEP)
#if STEP == 4
        *(global float4 *)(dx + iy * IW + j) = (float4)(row[j], row[j + 1], row[j + 2], row[j + 3]);
#else
        *(global float2 *)(dx + iy * IW + j) = (float2)(row[j], row[j + 1]);
#endif
  }
}

#endif
