## target = epilogue(sum over blocks of (chain of fma over a block's products)), in tiles of vector registers.
//
// A work item copies the rows of the source that it needs into its slot, +0 around them, so that a product is an
// element of the slot at a literal offset times a vector of NVL target channels. A tile is PR x PC chains of NV vectors:
// places of the target (forward, data gradient), or channels and taps (weights' gradient). Its sum over one block is added
// to the block's that came before, which wait in the slot.
//
// LANES, V    elements of a vector of sums, its type; NVL = NV * LANES
// PR, PC      rows and columns of a tile; YHP, YWP: rows and columns of a band up to whole tiles
// R, IB       rows and images of a band; ROWS, WIDTH: rows and columns of the slot
// CX, RX, PX  elements of the slot from channel to channel, row to row, column to column; ZX: tap to tap along d
// CP          channels of the slot
// SLOT        elements of the workspace that a work item has: SLOT_IMAGE an image's source, then sums
// NB, NCB     blocks of NVL target channels, blocks of CB source channels
#include <convdispatch/output_lanes.cl>
#define PLANE ((long)ZD * ZH * ZW)
#define ABS_(a) ((a) < 0 ? -(a) : (a))
// The source's row and column at the slot's first row and column, and the slot's offset of tap 0.
#define FIRST_H (OH + (DH < 0 ? (TH - 1) * DH : 0))
#define FIRST_W (OW + (DW < 0 ? (TW - 1) * DW : 0))
// Whether an image of a weights' gradient is one block, whose sum is then added to the total itself.
#define ALONE (YD == 1 && YH <= CB)
#define TAP0 ((DH < 0 ? (1 - TH) * DH * RX : 0) + (DW < 0 ? (1 - TW) * DW * PX : 0))

inline void copy_run(global ACC *restrict to, global const ACC *restrict from, int size) {
  int i = 0;
  ONCE for (; i + LANES <= size; i += LANES) STOREW(to + i, LOADW(from + i));
  ONCE for (; i < size; ++i) to[i] = from[i];
}
inline void zero_run(global ACC *restrict to, int size) {
  int i = 0;
  ONCE for (; i + LANES <= size; i += LANES) STOREW(to + i, (V)(0));
  ONCE for (; i < size; ++i) to[i] = 0;
}

// slot[c, tap along d, row, column] = source[image, g, c0 + c, z * SD + OD + tap * DD, y + row, FIRST_W + column].
inline void stage(global ACC *restrict slot, global const ACC *restrict x, int image, int g, int c0, int z, int y) {
  const int begin = clamp(-FIRST_W, 0, WIDTH), end = clamp(XW - FIRST_W, begin, WIDTH), count = min(CP, C - c0);
% if nhwc:
  ONCE for (int tap = 0; tap < TD; ++tap)
    ONCE for (int row = 0; row < ROWS; ++row) {
      const int iz = z * SD + OD + tap * DD, iy = y + row;
      global ACC *to = slot + tap * ZX + row * RX;
      if ((uint)iz >= XD || (uint)iy >= XH) {
        zero_run(to, RX);
        continue;
      }
      global const ACC *from = x + (((long)image * XD + iz) * XH + iy) * XW * (C * G) + (FIRST_W + begin) * (C * G) + g * C + c0;
      zero_run(to, begin * CP);
      if (count == C * G && count == CP)
        copy_run(to + begin * CP, from, (end - begin) * CP);
      else
        ONCE for (int i = begin; i < end; ++i, from += C * G) {
          copy_run(to + i * CP, from, count);
          zero_run(to + i * CP + count, CP - count);
        }
      zero_run(to + end * CP, (WIDTH - end) * CP);
    }
% else:
  ONCE for (int c = 0; c < CP; ++c)
    ONCE for (int tap = 0; tap < TD; ++tap)
      ONCE for (int row = 0; row < ROWS; ++row) {
        const int iz = z * SD + OD + tap * DD, iy = y + row;
        global ACC *to = slot + c * CX + tap * ZX + row * RX;
        if (c >= count || (uint)iz >= XD || (uint)iy >= XH) {
          zero_run(to, WIDTH);
          continue;
        }
        global const ACC *from = x + ((((long)image * G + g) * C + c0 + c) * XD + iz) * ((long)XH * XW) + (long)iy * XW;
        zero_run(to, begin);
        copy_run(to + begin, from + FIRST_W + begin, end - begin);
        zero_run(to + end, WIDTH - end);
      }
% endif
}

// PR x PC x NV chains over one block: two literal loops, then n2 and n3 steps; a step reads the next NVL of ws.
inline void tile(global const ACC *restrict xs, global const ACC *restrict ws, global ACC *restrict sums, int n2, int n3,
                 int first) {
% for p in range(pr * pc):
  V ${", ".join(f"a{p}_{v} = 0" for v in range(nv))};
% endfor
  ONCE for (int i0 = 0; i0 < N0; ++i0)
    ONCE for (int i1 = 0; i1 < N1; ++i1)
      ONCE for (int i2 = 0; i2 < n2; ++i2) {
        global const ACC *x = xs + i0 * L0 + i1 * L1 + i2 * L2;
        ONCE for (int i = 0; i < n3; ++i, x += L3, ws += NVL) {
% for v in range(nv):
          const V w${v} = LOADW(ws + ${v * lanes});
% endfor
% for p in range(pr * pc):
          const V b${p} = x[${p // pc} * PI + ${p % pc} * PJ];
% for v in range(nv):
          a${p}_${v} = fma(b${p}, w${v}, a${p}_${v});
% endfor
% endfor
        }
      }
  if (first) {
% for p, v in pairs(range(pr * pc), range(nv)):
    STOREW(sums + ${p // pc} * SI + ${p % pc} * NVL + ${v * lanes}, a${p}_${v});
% endfor
  } else {
% for p, v in pairs(range(pr * pc), range(nv)):
    STOREW(sums + ${p // pc} * SI + ${p % pc} * NVL + ${v * lanes}, LOADW(sums + ${p // pc} * SI + ${p % pc} * NVL + ${v * lanes}) + a${p}_${v});
% endfor
  }
}
% if weights:

// packed[g][block][image][place][NVL] = dy[image, n, place], zeros beyond the last channel.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const ACC *restrict y, global ACC *restrict packed, long packed_off) {
  const int image = get_global_id(0), g = get_global_id(1) / NB, n0 = get_global_id(1) % NB * NVL;
  const int count = min(NVL, N - n0);
  global ACC *to = packed + packed_off + ((long)get_global_id(1) * IMAGES + image) * PLANE_Y * NVL;
% if nhwc:
  global const ACC *from = y + (long)image * PLANE_Y * (N * G) + g * N + n0;
  ONCE for (int p = 0; p < PLANE_Y; ++p, to += NVL, from += N * G) {
    copy_run(to, from, count);
    zero_run(to + count, NVL - count);
  }
% else:
  global const ACC *from = y + (((long)image * G + g) * N + n0) * PLANE_Y;
  int p = 0;
  ONCE for (; p + LANES <= PLANE_Y; p += LANES)
    ONCE for (int n = 0; n < NVL; n += LANES) {
% for i in range(lanes):
      const V t0_${i} = n + ${i} < count ? LOADW(from + (long)(n + ${i}) * PLANE_Y + p) : (V)(0);
% endfor
${transposed(lanes)}
% for i in range(lanes):
      STOREW(to + (long)(p + ${i}) * NVL + n, t${stages}_${i});
% endfor
    }
  ONCE for (; p < PLANE_Y; ++p)
    ONCE for (int n = 0; n < NVL; ++n) to[(long)p * NVL + n] = n < count ? from[(long)n * PLANE_Y + p] : (ACC)0;
% endif
}

// A job is CP channels of a group, BLOCKS blocks of target channels and one of NT shares of the kernel's rows; the sums of an image's blocks of CB rows are
// added in order, then the images' sums.
inline void job(global const ACC *restrict x, global const ACC *restrict packed, global ACC *slot, OUT_PARAMS, int number) {
  const int block0 = number % PARTS * BLOCKS, block1 = min(block0 + BLOCKS, NB);
  const int c0 = number / PARTS % NC * CP, share = number / PARTS / NC % NT, g = number / PARTS / NC / NT;
  const int tap0 = share * (TD * TH) / NT, tap1 = (share + 1) * (TD * TH) / NT, channels = min(CP, C - c0);
  global ACC *own = slot + SLOT_IMAGE, *total = own + BLOCKS * SUMS;
  ONCE for (int image = 0; image < IMAGES; ++image) {
    // The sum of the first image, and that of an image's only block, wait nowhere else.
    global ACC *sums = image == 0 ? total : own;
    ONCE for (int z = 0; z < YD; ++z)
      ONCE for (int y0 = 0; y0 < YH; y0 += CB) {
        stage(slot, x, image, g, c0, z, y0 * SH + FIRST_H);
        ONCE for (int block = block0; block < block1; ++block) {
          global const ACC *ws = packed + ((((long)(g * NB + block) * IMAGES + image) * YD + z) * YH + y0) * YW * NVL;
          ONCE for (int c = 0; c < CP; c += PR)
            ONCE for (int tap = tap0; tap < tap1; ++tap)
              ONCE for (int tx = 0; tx < YWP; tx += PC)
                tile(slot + c * CX + tap / TH * ZX + tap % TH * DH * RX + tx * DW * PX, ws,
                     (ALONE ? total : sums) + (block - block0) * SUMS + ((c * TD * TH + tap) * YWP + tx) * NVL,
                     min(CB, YH - y0), YW, ALONE ? image == 0 : z == 0 && y0 == 0);
        }
      }
    if (image && !ALONE)
      ONCE for (int i = 0; i < (block1 - block0) * SUMS; i += LANES) STOREW(total + i, LOADW(total + i) + LOADW(own + i));
  }
  ONCE for (int block = block0; block < block1; ++block)
    ONCE for (int n = 0; n < min(NVL, N - block * NVL); ++n)
      ONCE for (int c = 0; c < channels; ++c)
        ONCE for (int tap = tap0; tap < tap1; ++tap)
          ONCE for (int tx = 0; tx < TW; ++tx) {
            const ACC v = total[(block - block0) * SUMS + ((c * TD * TH + tap) * YWP + tx) * NVL + n];
            put_one(OUT_ARGS, g * W_GROUP + (long)(block * NVL + n) * WN + (long)(c0 + c) * WC + (tap * TW + tx) * WT, v, 0);
          }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const ACC *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace,
          OUT_PARAMS) {
  const int item = get_global_id(0), last = (int)((long)(item + 1) * JOBS / ITEMS);
  ONCE for (int number = (int)((long)item * JOBS / ITEMS); number < last; ++number)
    job(x, packed + packed_off, workspace + (long)item * SLOT, OUT_ARGS, number);
}
% else:

// packed[g][block][block of channels][tap][c][NVL] = w[n, c, tap], zeros beyond the last channel.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const ACC *restrict w, global ACC *restrict packed, long packed_off) {
  const int g = get_global_id(0) / NB, n0 = get_global_id(0) % NB * NVL, cb = get_global_id(1) * CB;
  const int count = min(NVL, N - n0), channels = min(CB, C - cb);
  global ACC *to = packed + packed_off + ((long)get_global_id(0) * C + cb) * (TD * TH * TW) * NVL;
  w += g * W_GROUP + (long)n0 * WN + (long)cb * WC;
  ONCE for (int tz = 0; tz < TD; ++tz)
    ONCE for (int ty = 0; ty < TH; ++ty)
      ONCE for (int tx = 0; tx < TW; ++tx)
        ONCE for (int c = 0; c < channels; ++c, to += NVL) {
          global const ACC *from = w + (long)c * WC + (((AD + tz * BD) * KH + AH + ty * BH) * KW + AW + tx * BW) * WT;
          ONCE for (int n = 0; n < NVL; ++n) to[n] = n < count ? from[(long)n * WN] : (ACC)0;
        }
}

// target[image, g, n0 .., rows from y0 on] from sums[row][column][NVL].
inline void finish(OUT_PARAMS, global const ACC *sums, int image, int g, int n0, int z, int y0, int rows) {
  const int count = min(NVL, N - n0);
% if nhwc:
  ONCE for (int row = 0; row < rows; ++row)
    ONCE for (int column = 0; column < YW; ++column) {
      const long p = (((long)image * ZD + z * UD + FD) * ZH + (y0 + row) * UH + FH) * ZW + column * UW + FW;
      global const ACC *s = sums + (row * YWP + column) * NVL;
      int n = 0;
      ONCE for (; n + LANES <= count; n += LANES)
        put_vector(OUT_ARGS, p * (N * G) + g * N + n0 + n, LOADW(s + n), ${"LOADW(bias + g * N + n0 + n)" if bias else "0"});
      ONCE for (; n < count; ++n) put_one(OUT_ARGS, p * (N * G) + g * N + n0 + n, s[n], ${"bias[g * N + n0 + n]" if bias else "0"});
    }
% else:
  // Rows that follow one another in the target, and in the sums, are one run.
  const int whole = UW == 1 && YW == ZW && YWP == YW && UH == 1, runs = whole ? 1 : rows, size = whole ? rows * YW : YW;
  ONCE for (int run = 0; run < runs; ++run) {
    global const ACC *s = sums + run * YWP * NVL;
    const long p = (((long)image * G + g) * N + n0) * PLANE + ((long)(z * UD + FD) * ZH + (y0 + run) * UH + FH) * ZW + FW;
    int q = 0;
    if (UW == 1)
      ONCE for (; q + LANES <= size; q += LANES)
        ONCE for (int n = 0; n < count; n += LANES) {
% for i in range(lanes):
          const V t0_${i} = LOADW(s + (q + ${i}) * NVL + n);
% endfor
${transposed(lanes)}
% for i in range(lanes):
          if (n + ${i} < count)
            put_vector(OUT_ARGS, p + (n + ${i}) * PLANE + q, t${stages}_${i}, ${f"bias[g * N + n0 + n + {i}]" if bias else "0"});
% endfor
        }
    ONCE for (int n = 0; n < count; ++n)
      ONCE for (int i = q; i < size; ++i)
        put_one(OUT_ARGS, p + n * PLANE + i * UW, s[i * NVL + n], ${"bias[g * N + n0 + n]" if bias else "0"});
  }
% endif
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const ACC *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace,
          OUT_PARAMS) {
  const int item = get_global_id(0), part = get_global_id(1), bands = NI * G * YD * BANDS;
  const int block0 = part * NB / PARTS, block1 = (part + 1) * NB / PARTS;
  global ACC *slot = workspace + ((long)item * PARTS + part) * SLOT, *sums = slot + (long)IB * SLOT_IMAGE;
  packed += packed_off;
  const int last = (int)((long)(item + 1) * bands / ITEMS);
  ONCE for (int band = (int)((long)item * bands / ITEMS); band < last; ++band) {
    const int y0 = band % BANDS * R, z = band / BANDS % YD, g = band / (BANDS * YD) % G, n = band / (BANDS * YD * G) * IB;
    const int rows = min(R, YH - y0), images = min(IB, IMAGES - n);
    ONCE for (int i = 0; i < images; ++i)
      stage(slot + i * SLOT_IMAGE, x, n + i, g, 0, z, y0 * SH + FIRST_H);
    ONCE for (int block = block0; block < block1; ++block) {
      global const ACC *ws = packed + (long)(g * NB + block) * C * (TD * TH * TW) * NVL;
      ONCE for (int cb = 0; cb < C; cb += CB) {
        const int count = EMPTY ? 0 : min(CB, C - cb);
        ONCE for (int i = 0; i < images; ++i)
          ONCE for (int row = 0; row < rows; row += PR)
            ONCE for (int column = 0; column < YWP; column += PC)
              tile(slot + i * SLOT_IMAGE + cb * CX + TAP0 + row * SH * RX + column * SW * PX, ws,
                   sums + ((i * YHP + row) * YWP + column) * NVL, TW, count, cb == 0);
        ws += (long)count * (TD * TH * TW) * NVL;
      }
      ONCE for (int i = 0; i < images; ++i)
        finish(OUT_ARGS, sums + i * YHP * YWP * NVL, n + i, g, block * NVL, z, y0, rows);
    }
  }
}
% endif
<%! from itertools import product as pairs %>
