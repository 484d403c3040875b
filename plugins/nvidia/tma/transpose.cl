// Matrices whose rows become columns: to[o][i][c][r] = from[o][i][r][c].
//
// NUMBER is a type as large as an element, FOUR a vector of four. FROM_AT and TO_AT are elements before the first matrix,
// of ROWS rows and COLUMNS columns; INNER matrices follow each other in steps of FROM_INNER and TO_INNER elements, such
// groups in steps of FROM_OUTER and TO_OUTER. Rows of ``from`` are FROM_ROW elements apart, those of ``to`` TO_ROW. A work
// group transposes SIDE by SIDE elements, so that both sides are read and written in lines, by each item WIDE_FROM and
// WIDE_TO neighbours at once: four where all of that side's numbers are multiples of four.
#define SIDE 64
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void transpose(global const NUMBER *restrict from, global NUMBER *restrict to NUMBERS) {
  local NUMBER tile[SIDE][SIDE + 2];
  const int tid = get_local_id(0), across = (COLUMNS + SIDE - 1) / SIDE, down = (ROWS + SIDE - 1) / SIDE;
  const int square = get_group_id(0), matrix = square / (across * down), outer = matrix / INNER, inner = matrix - outer * INNER;
  const int c0 = square % across * SIDE, r0 = square / across % down * SIDE;
  from += FROM_AT + outer * FROM_OUTER + inner * FROM_INNER;
  to += TO_AT + outer * TO_OUTER + inner * TO_INNER;
#pragma unroll
  for (int step = 0; step < SIDE * SIDE / WIDE_FROM / 256; ++step) {
    const int item = tid + step * 256, r = item / (SIDE / WIDE_FROM), c = item % (SIDE / WIDE_FROM) * WIDE_FROM;
    if (r0 + r < ROWS & c0 + c < COLUMNS) {
      global const NUMBER *at = from + (r0 + r) * FROM_ROW + c0 + c;
#if WIDE_FROM == 4
      const FOUR v = *(global const FOUR *)at;
      tile[r][c] = v.s0, tile[r][c + 1] = v.s1, tile[r][c + 2] = v.s2, tile[r][c + 3] = v.s3;
#else
      tile[r][c] = *at;
#endif
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int step = 0; step < SIDE * SIDE / WIDE_TO / 256; ++step) {
    const int item = tid + step * 256, c = item / (SIDE / WIDE_TO), r = item % (SIDE / WIDE_TO) * WIDE_TO;
    if (r0 + r < ROWS & c0 + c < COLUMNS) {
      global NUMBER *at = to + (c0 + c) * TO_ROW + r0 + r;
#if WIDE_TO == 4
      *(global FOUR *)at = (FOUR)(tile[r][c], tile[r + 1][c], tile[r + 2][c], tile[r + 3][c]);
#else
      *at = tile[r][c];
#endif
    }
  }
}
