// y[i, j] = x[rows[i], j] * scale: pictures of bytes gathered into a batch of floats. One work item a value.
//
//   WIDTH   values of a row
//   ROWS    rows of x; an index outside gives NaN

kernel void take(global const uchar *x, global const int *rows, const long first, const float scale, global float *y) {
  const long j = get_global_id(0), i = get_global_id(1);
  const int row = rows[first + i];
  const float v = x[clamp(row, 0, ROWS - 1) * (long)WIDTH + j] * scale;
  y[i * WIDTH + j] = row >= 0 && row < ROWS ? v : NAN;
}

// y[i] = x[rows[i]], labels of a batch.
kernel void take_labels(global const int *x, global const int *rows, const long first, global int *y) {
  const long i = get_global_id(0);
  const int row = rows[first + i];
  const int label = x[clamp(row, 0, ROWS - 1)];
  y[i] = row >= 0 && row < ROWS ? label : -1;
}
