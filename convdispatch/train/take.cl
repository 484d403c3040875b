// y[i, j] = x[rows[i], j] * scale: pictures of bytes gathered into a batch of floats. One work item a value.
//
//   WIDTH   values of a row
//   ROWS    rows of x; an index outside gives NaN

kernel void take(global const uchar *x, global const int *rows, const long first, const float scale, global float *y) {
  const long j = get_global_id(0), i = get_global_id(1);
  const int row = rows[first + i];
  y[i * WIDTH + j] = row >= 0 && row < ROWS ? x[row * (long)WIDTH + j] * scale : NAN;
}

// y[i] = x[rows[i]], labels of a batch.
kernel void take_labels(global const int *x, global const int *rows, const long first, global int *y) {
  const long i = get_global_id(0);
  const int row = rows[first + i];
  y[i] = row >= 0 && row < ROWS ? x[row] : -1;
}
