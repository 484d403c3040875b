// The same by the rule: the nearest pixel is read, and its product taken out.
kernel void depthwise(global const half *x, global const half *w, global half *y) {
  const int column = get_global_id(0), row = get_global_id(1), c = get_global_id(2) % C, image = get_global_id(2) / C;
  float sum = 0;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      const int from = row + i - 1, at = column + j - 1;
      const int within = from >= 0 && from < H && at >= 0 && at < W;
      const long pixel = ((long)image * H + clamp(from, 0, H - 1)) * W + clamp(at, 0, W - 1);
      const float product = vload_half(pixel * C + c, x) * vload_half((c * 3 + i) * 3 + j, w);
      sum += within ? product : 0.0f;
    }
  vstore_half_rte(sum, (((long)image * H + row) * W + column) * C + c, y);
}
