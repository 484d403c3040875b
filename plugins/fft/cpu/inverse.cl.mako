## target[tile] = epilogue(inverse transform of spectrum[f][group][block][row]), LANES channels at a time.
//
// The columns go from the spectrum to the slot, then line by line to the target, whose borders crop the last tiles.
//
// Y0 Y1 Y2  the target's size along the axes in the order of their transforms; A? elements between neighbours
// S? step of a tile: elements of it that are written
// C, G      channels per group, groups; PLANE elements of a channel; CHANNEL elements between channels
// BLOCKS, ROWS, STRIDE, SLOT_, LINES  as in the forward transforms
${macros}
#include <convdispatch/output_lanes.cl>
// Prefetches the cache lines that put_line writes after the transform.
inline void ask_line(OUT_PARAMS, long at, int channels, int count) {
% if inter:
  ONCE for (int j = 0; j < count; ++j) PREFETCH(out + at + (long)j * A0, 1);
% elif unit:
  ONCE for (int p = 0; p < count; p += 64 / (int)sizeof(REAL))
    ONCE for (int l = 0; l < channels; ++l) PREFETCH(out + at + l * (long)CHANNEL + p, 1);
% endif
}

// Writes count elements of the line; of LANES channels only the first ``channels`` exist.
__attribute__((noinline)) void put_line(OUT_PARAMS, const V *restrict line, V bias, long at, int channels, int count) {
% if unit:
  ONCE for (int from = 0; from < count; from += LANES) {
% if again:
    const int p = count < LANES ? from : min(from, count - LANES);  // the last vector may write what the one before wrote
% else:
    const int p = from;
% endif
    V square[LANES];
    transpose(line + p, square, bias);
    ONCE for (int l = 0; l < channels; ++l) {
      const long to = at + l * (long)CHANNEL + p;
      if (count - p >= LANES) put_vector(OUT_ARGS, to, square[l], 0);
      else
        ONCE for (int j = 0; j < count - p; ++j) put_one(OUT_ARGS, to + j, ((const float *)(square + l))[j], 0);
    }
  }
% elif inter:
  ONCE for (int j = 0; j < count; ++j) {
    const V v = line[j] + bias;
    if (channels == LANES) put_vector(OUT_ARGS, at + (long)j * A0, v, 0);
    else
      ONCE for (int l = 0; l < channels; ++l) put_one(OUT_ARGS, at + (long)j * A0 + l, ((const float *)&v)[l], 0);
  }
% else:
  ONCE for (int j = 0; j < count; ++j) {
    const V v = line[j] + bias;
    ONCE for (int l = 0; l < channels; ++l)
      put_one(OUT_ARGS, at + l * (long)CHANNEL + (long)j * A0, ((const float *)&v)[l], 0);
  }
% endif
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void inverse(OUT_PARAMS, global const float *restrict panels${", global const REAL *restrict biases" if bias else ""},
             long off, int items, int g0, int groups, int b0, int blocks, int r0, int rows) {
  local float slot[SLOT_];
  V line[LINE];
  const int jobs = groups * blocks * rows, item = get_global_id(0), last = (int)((item + 1L) * jobs / items);
  ONCE for (int job = (int)((long)item * jobs / items); job < last; ++job) {
    const int row = job % rows, block = job / rows % blocks, group = job / (rows * blocks);
    const int image = (r0 + row) / TILES, tile = (r0 + row) % TILES;
    const int s0 = TILE0(tile) * S0, s1 = TILE1(tile) * S1, s2 = TILE2(tile) * S2;
    const int first = (b0 + block) * LANES, channels = min(LANES, C - first);
    const long base = ${"(long)image * PLANE * (C * G) + (g0 + group) * C + first" if inter else "((long)(image * G + g0 + group) * C + first) * PLANE"};
    const int count0 = min(S0, Y0 - s0), count1 = min(S1, Y1 - s1), count2 = min(S2, Y2 - s2);
    global const float *s = panels + off + ((long)(group * BLOCKS + block) * ROWS + row) * (2 * LANES);
    V b = (V)(0.0f);
% if bias:
    ONCE for (int l = 0; l < channels; ++l) ((float *)&b)[l] = LOAD(biases, (g0 + group) * C + first + l);
% endif
${passes}
    ONCE for (int j2 = 0; j2 < count2; ++j2)
      ONCE for (int j1 = 0; j1 < count1; ++j1) {
        const long at = base + (long)s0 * A0 + (long)(s1 + j1) * A1 + (long)(s2 + j2) * A2;
        ask_line(OUT_ARGS, at, channels, count0);
        inverse_line(${"s" if depth == 1 else "slot + (j2 * N1 + j1) * (2 * LANES)" if depth == 3 else "slot + j1 * (2 * LANES)"}, line);
        put_line(OUT_ARGS, line, b, at, channels, count0);
      }
  }
}
