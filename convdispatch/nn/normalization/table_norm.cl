// y[c] = results[m[c]][x[c]],  m[c] = rint(sum over the SIZE channels from c - BEFORE on of values[x[j]] / SIZE) + ZERO.
// All are bytes and tables of them; channels outside of x add nothing. SIZE is odd, so that no mean lies halfway.
//
// Values the host defines:
//   CHANNELS      c
//   INNER         elements between two channels
//   SIZE BEFORE ZERO
//   BLOCK         pixels that are taken at once: 1 with channels last
//   EACH BLOCKS   blocks of a work item; blocks of an image (channels first) or of all images (channels last)

// A run of bytes in one piece, RUNS of them; a step to the next channel is STEP bytes.
#if INNER == 1
#define RUNS 1
#define RUN CHANNELS
#define STEP 1
#else
#define RUNS CHANNELS
#define RUN BLOCK
#define STEP BLOCK
#endif

// Bytes of a run are taken sixteen at a time; the last begin early enough to end with it. Vectors are spelled out: a
// compiler that finds them by itself takes twice as long.
#if RUN >= 16
#define LANES 16
#define BYTES uchar16
#define SHORTS short16
#define INTS int16
#define WORDS uint16
#define FLOATS float16
#define AS(name) CAT(name, 16)
#define LOAD(p) vload16(0, p)
#define STORE(v, p) vstore16(v, 0, p)
#define EACH_LANE(p, n) (p[n.s0], p[n.s1], p[n.s2], p[n.s3], p[n.s4], p[n.s5], p[n.s6], p[n.s7], \
                         p[n.s8], p[n.s9], p[n.sa], p[n.sb], p[n.sc], p[n.sd], p[n.se], p[n.sf])
#else
#define LANES 1
#define BYTES uchar
#define SHORTS short
#define INTS int
#define WORDS uint
#define FLOATS float
#define AS(name) name
#define LOAD(p) *(p)
#define STORE(v, p) *(p) = (v)
#define EACH_LANE(p, n) p[n]
#endif
#define CAT(a, b) CAT_(a, b)
#define CAT_(a, b) a##b
#define FOR_ALL(r, i)           \
  for (int r = 0; r < RUNS; ++r) \
    for (int k = 0, i = 0; k < RUN; k += LANES, i = min(k, RUN - LANES))

kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void table_norm(global const uchar *restrict x, const long offset, global const int *restrict values,
                global const uint *restrict results, global uchar *restrict y) {
  const int first = get_global_id(0) * EACH, end = min(first + EACH, BLOCKS);
  x += offset + get_global_id(1) * (long)CHANNELS * INNER;
  y += get_global_id(1) * (long)CHANNELS * INNER;
  short of[(CHANNELS + SIZE - 1) * STEP];
  for (int i = 0; i < BEFORE * STEP; ++i) of[i] = 0;
  for (int i = (BEFORE + CHANNELS) * STEP; i < (CHANNELS + SIZE - 1) * STEP; ++i) of[i] = 0;
  for (int block = first; block < end; ++block) {
#if INNER == 1
    const long start = block * (long)CHANNELS;
#else
    const long start = min(block * BLOCK, INNER - BLOCK);  // what two blocks write is the same
#endif
    for (int r = 0; r < RUNS; ++r)
      for (int i = 0; i < RUN; ++i) of[BEFORE * STEP + r * RUN + i] = values[x[start + (long)r * INNER + i]];
    FOR_ALL(r, i) {
      const long here = start + (long)r * INNER + i;
      SHORTS sum = 0;
      _Pragma("unroll") for (int j = 0; j < SIZE; ++j) sum += LOAD(of + r * RUN + i + j * STEP);
      const INTS mean = AS(convert_int)(rint(AS(convert_float)(sum) * (1.0f / SIZE))) + ZERO;
      const INTS at = (mean & 255) << 8 | AS(convert_int)(LOAD(x + here)), word = at >> 2;
      const WORDS found = (WORDS)EACH_LANE(results, word);  // of four bytes, as vectors gather them
      STORE(AS(convert_uchar)(found >> AS(convert_uint)(8 * (at & 3)) & 255), y + here);
    }
  }
}
