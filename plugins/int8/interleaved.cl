// y[o, c] = epilogue(sum over taps t of x[o S + t D - P, c] w[c, t]): depthwise, bytes of four lines of x in a word.
//
// the problem's letters; FLIP 0x80: bytes are signed
// LINES GROUPS  lines of x that TALL rows of y read, and fours of them; LINE_D LINE_H their depths and rows
// SIZE          channels of a job, SHARES such parts; PHASE columns of a line that are a multiple of SW apart
// BEGIN STOP    for each remainder of SW, which of these columns are within x
// ACROSS        columns that ``whole`` computes together; REST those left over, by ``rest``
// VECTORS       vectors of weights of sixteen channels, whose tap for each line is TAP, or -1; W_SUMS their bytes
// JOBS ITEMS    jobs, work items; SLOT bytes of an item's memory, and where its parts begin: ZEROS SPARE_AT SHIFTS_AT
// NUMBERS_AT
typedef uint16 __attribute__((aligned(4))) words;

inline void pad(global uchar *to, long size, uint word) {
  ONCE for (long i = 0; i < size; i += 64) *(global words *)(to + i) = (uint16)(word);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const uchar *restrict x, global const uchar *restrict w, long w_at, global OUT *restrict y, TABLE_PARAMS,
          global uchar *workspace) {
  const int item = get_global_id(0), zero = X_ZERO(table);
  global uchar *slot = workspace + item * SLOT, *zeros = slot + ZEROS;
  global int *numbers = (global int *)(slot + NUMBERS_AT), *shifts = (global int *)(slot + SHIFTS_AT);
  const uint word = (uint)((zero ^ FLIP) & 255) * 0x01010101u;
  const long last = (item + 1L) * JOBS / ITEMS;
  int there = -1;
  numbers_of(numbers, TABLE_ARGS);
  pad(zeros, IW * IC, (uint)(zero & 255) * 0x01010101u);
  w += w_at;
  ONCE for (long job = item * JOBS / ITEMS; job < last; ++job) {
    const int share = job / (JOBS / SHARES), part = job % (JOBS / SHARES), c0 = share * SIZE;
    const int oh = part % HIGH * TALL, od = part / HIGH % OD, image = part / (HIGH * OD);
    if (share != there)
      ONCE for (int c = 0; c < SIZE; ++c) {
        const int at = c / 16 * 32 + c % 16, n = c0 + c;
        const int sum = ((global const int *)(w + W_SUMS))[n];
        shifts[at] = (int)((uint)BIASES(table)[n] - (uint)(zero + (FLIP ? 128 : 0)) * (uint)sum);
        ((global float *)shifts)[at + 16] = MULTIPLIERS(table)[n];
      }
    there = share;
    ONCE for (int group = 0; group < GROUPS; ++group) {
      global const uchar *from[4];
      ONCE for (int i = 0; i < 4; ++i) {
        const int line = min(4 * group + i, LINES - 1);
        const int d = od * SD + LINE_D[line] - PD, h = oh * SH + LINE_H[line] - PH;
        const bool within = d >= 0 && d < ID && h >= 0 && h < IH;
        from[i] = (within ? x + (((long)image * ID + d) * IH + h) * (IW * IC) : (global const uchar *)zeros) + c0;
      }
      ONCE for (int phase = 0; phase < SW; ++phase) {
        global uchar *to = slot + (group * SW + phase) * (PHASE * SIZE * 4L);
        const int begin = BEGIN[phase], stop = STOP[phase];
        if (begin < stop) {
          const long first = (long)(begin * SW + phase - PW) * IC;
          interleave(from[0] + first, from[1] + first, from[2] + first, from[3] + first, to + begin * (SIZE * 4L),
                     ONE_RUN ? 1 : stop - begin);
        }
        pad(to, min(begin, PHASE) * (SIZE * 4L), word);
        pad(to + stop * (SIZE * 4L), (PHASE - stop) * (SIZE * 4L), word);
      }
    }
    global char *row = (global char *)y + ((((long)image * OD + od) * OH + oh) * OW) * OC + c0;
    global char *next = TALL > 1 && oh + 1 == OH ? (global char *)(slot + SPARE_AT) + c0 : row + (long)OW * OC;
    ONCE for (int b = 0; b < SIZE / 16; ++b) {
      global const uchar *v = slot + 64 * b, *weights = w + (long)(c0 / 16 + b) * (VECTORS * 64);
      global const int *mine = shifts + 32 * b;
#if OW >= ACROSS
      whole(v, weights, mine, numbers, row + 16 * b, next + 16 * b, OW / ACROSS);
#endif
#if REST
      const long done = OW / ACROSS * ACROSS;
      rest(v + done * (SIZE * 4), weights, mine, numbers, row + 16 * b + done * OC, next + 16 * b + done * OC, 1);
#endif
    }
  }
}

// packed[block][vector][16][4]: the weights of four lines; then sums of channels.
kernel void pack(global const char *restrict w, global char *restrict packed, long packed_at) {
  const int b = get_global_id(0), c = 16 * b + get_global_id(1);
  packed += packed_at;
  ONCE for (int i = 0; i < VECTORS * 4; ++i)
    packed[((long)b * VECTORS + i / 4) * 64 + 4 * (c % 16) + i % 4] = TAP[i] < 0 ? 0 : w[(long)c * (KD * KH * KW) + TAP[i]];
  int sum = 0;
  ONCE for (int t = 0; t < KD * KH * KW; ++t) sum += w[(long)c * (KD * KH * KW) + t];
  ((global int *)(packed + W_SUMS))[c] = sum;
}
