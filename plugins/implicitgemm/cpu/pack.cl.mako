// packed[g][block][order of the tile's loops][NVL] = w[n, c, tap], zeros beyond the last channel.
//
// INTER   0: order (c, tap); 1: (block of CB c's, tap, c of the block)
// WN WC WT  elements of w from n to n, c to c, tap to tap; F? kernel position of tap 0 (arguments), K? its step
// EMPTY   1: all weights are 0
// FOLD    n counts (j, channel): FOLD neighbouring pixels of a row as channels, whose taps are shifted by j
// PACK_C  source channels of a work item
//
// NONFINITE  elements before the flags: one for each work item, 1 where its weights hold an infinity or NaN; 0: none
//
// turned  w[n] is in the order of the tile's loops: squares of LANES channels by LANES elements are transposed in registers
#include <convdispatch/lanes.cl>
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global ACC *restrict packed, long packed_off, int fd, int fh, int fw) {
  const int block = get_global_id(1) % NB, g = get_global_id(1) / NB;
  const int n0 = block * NVL, count = min(NVL, N - n0);
  const int c0 = get_global_id(0) * PACK_C, c1 = min(c0 + PACK_C, C);
  w += (long)g * W_GROUP;
#if FOLD == 1
  w += (long)n0 * WN;
#endif
  packed += packed_off;
#if NONFINITE
  global ACC *flag = packed + NONFINITE + (long)get_global_id(0) * (NB * G) + get_global_id(1);
  V odd = 0;
#define SEEN(v) odd += (v) * 0
#else
#define SEEN(v)
#endif
  packed += (long)get_global_id(1) * WBLOCK;
% if turned:
  const int k0 = c0 * (TD * TH * TW), k1 = c1 * (TD * TH * TW);
  ONCE for (int n = 0; n < NVL; n += LANES) {
    const int whole = n + LANES <= count && k1 - k0 >= LANES ? k1 : k0;  // the last block ends there
    ONCE for (int next = k0; next < whole; next += LANES) {
      const int k = min(next, k1 - LANES);
      global const REAL *from = w + (long)n * WN + k;
      global ACC *to = packed + (long)k * NVL + n;
% for i in range(lanes):
      const V t0_${i} = LOADV(from + ${i}L * WN);
% endfor
<% stages = lanes.bit_length() - 1 %>\
${transposed(lanes)}
% for i in range(lanes):
      STOREW(to + ${i} * NVL, t${stages}_${i});
      SEEN(t${stages}_${i});
% endfor
    }
    ONCE for (int k = whole; k < k1; ++k) {
      ONCE for (int j = n; j < n + LANES; ++j) packed[(long)k * NVL + j] = j < count ? LOAD(w, (long)j * WN + k) : (ACC)0;
      SEEN(LOADW(packed + (long)k * NVL + n));
    }
  }
% else:
  ONCE for (int c = c0; c < c1; ++c) {
#if INTER
    const int cb = c / CB, cn = min(CB, C - cb * CB);
#endif
    const int real = EMPTY ? 0 : count;
    int tap = 0;
    ONCE for (int tz = 0; tz < TD; ++tz)
      ONCE for (int ty = 0; ty < TH; ++ty)
        ONCE for (int tx = 0; tx < TW; ++tx, ++tap) {
#if INTER
          global ACC *to = packed + ((long)cb * CB * (TD * TH * TW) + (long)tap * cn + (c - cb * CB)) * NVL;
#else
          global ACC *to = packed + ((long)c * (TD * TH * TW) + tap) * NVL;
#endif
#if FOLD > 1
          ONCE for (int n = 0; n < NVL; ++n) {
            const int shifted = tx - (n0 + n) / (N / FOLD);
            const int at = ((fd + tz * KSD) * KH_ + fh + ty * KSH) * KW_ + fw + shifted * KSW;
            ACC v = 0;
            if (n < real && shifted >= 0 && shifted <= TW - FOLD)
              v = LOAD(w, (long)((n0 + n) % (N / FOLD)) * WN + (long)c * WC + (long)at * WT);
            to[n] = v;
          }
#else
          const int at = ((fd + tz * KSD) * KH_ + fh + ty * KSH) * KW_ + fw + tx * KSW;
          global const REAL *from = w + (long)c * WC + (long)at * WT;
          // One loop: Intel's compiler loses an element between two loops that share their counter.
          ONCE for (int n = 0; n < NVL; ++n) to[n] = n < real ? LOAD(from, (long)n * WN) : (ACC)0;
#endif
          ONCE for (int n = 0; n < NVL; n += LANES) SEEN(LOADW(to + n));
        }
  }
% endif
#if NONFINITE
  *flag = any(odd != 0);
#endif
}
