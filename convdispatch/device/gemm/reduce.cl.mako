## C[z, m, n] = epilogue(sum over s of partial[s, z, m, n]), the parts added in the order of s: deterministic.
//
// SPLIT   parts of the sum over k
// LANES   neighbouring columns of a work item
kernel void reduce(global const ACC *restrict partial, long partial_off, OUT_KERNEL_PARAMS) {
  const int n = get_global_id(0) * LANES, m = get_global_id(1), z = get_global_id(2);
  OUT_POINTERS(z, 0)
  partial += partial_off + ((long)z * M + m) * N + n;
  if (n + LANES <= N) {
    V v = LOADW(partial);
    for (int s = 1; s < SPLIT; ++s) v += LOADW(partial + s * ((long)BATCH * M * N));
    put_vector(OUT_ARGS, v, m, n, FLAGS | LAST);
  } else {
    for (int lane = 0; lane < N - n; ++lane) {
      ACC v = partial[lane];
      for (int s = 1; s < SPLIT; ++s) v += partial[s * ((long)BATCH * M * N) + lane];
      put_one(OUT_ARGS, v, m, n + lane, FLAGS | LAST);
    }
  }
}
