// Matrices whose rows become columns: to[o][i][c][r] = from[o][i][r][c].
//
// NUMBER is a type as large as an element. FROM_AT and TO_AT are elements before the first matrix, of ROWS rows and COLUMNS
// columns; INNER matrices follow each other in steps of FROM_INNER and TO_INNER elements, such groups in steps of FROM_OUTER
// and TO_OUTER. Rows of ``from`` are FROM_ROW elements apart, those of ``to`` TO_ROW. A work group transposes SIDE by SIDE
// elements, so that both sides are read and written in lines.
#define SIDE 64
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void transpose(global const NUMBER *restrict from, global NUMBER *restrict to NUMBERS) {
  local NUMBER tile[SIDE][SIDE + 1];
  const int tid = get_local_id(0), across = (COLUMNS + SIDE - 1) / SIDE, down = (ROWS + SIDE - 1) / SIDE;
  const int square = get_group_id(0), matrix = square / (across * down), outer = matrix / INNER, inner = matrix - outer * INNER;
  const int c0 = square % across * SIDE, r0 = square / across % down * SIDE;
  from += FROM_AT + outer * FROM_OUTER + inner * FROM_INNER;
  to += TO_AT + outer * TO_OUTER + inner * TO_INNER;
  for (int r = tid / SIDE; r < SIDE; r += 256 / SIDE) {
    const int c = c0 + tid % SIDE;
    if (r0 + r < ROWS & c < COLUMNS) tile[r][tid % SIDE] = from[(r0 + r) * FROM_ROW + c];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int c = tid / SIDE; c < SIDE; c += 256 / SIDE) {
    const int r = r0 + tid % SIDE;
    if (r < ROWS & c0 + c < COLUMNS) to[(c0 + c) * TO_ROW + r] = tile[tid % SIDE][c];
  }
}
