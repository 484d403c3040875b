## Positions of a warp's (or a group of warps') fragments in the slices in local memory and in the tile of sums. A part
## of ``product.cl.mako``.
% if wgmma:
  const int wg = warp / 4, wg_m = wg % ${t.wm}, wg_n = wg / ${t.wm};
  const int row0 = wg_m * 64 + ${core.row}, column0 = wg_n * ${t.bn // t.wn} + ${core.column};
% if form.data:
  const uint a_from = wg_m * ${64 * rowb}, b_from = ${b_const} + wg_n * ${t.bn // t.wn * (t.bk * 2 if form.weights == "transposed" else rowb)};
% else:
  const uint a_from = wg_m * ${t.bk * 128}, b_from = ${planes * a_bytes} + wg_n * ${t.bn // t.wn // 64 * t.bk * 128};
% endif
% else:
  const int w_m = warp % ${t.wm}, w_n = warp / ${t.wm};
  const int row0 = w_m * ${t.bm // t.wm} + ${core.row}, column0 = w_n * ${t.bn // t.wn} + ${core.column};
% if core.a:
  // The line and the k at which this lane's numbers of A and B begin.
  const int a_line = w_m * ${t.bm // t.wm} + ${core.a.line}, a_k = ${core.a.k};
  const int b_line = w_n * ${t.bn // t.wn} + ${core.b.line}, b_k = ${core.b.k};
% elif form.data:
  const uint a_row = (w_m * ${t.bm // t.wm} + lane % 16) * ${rowb}, b_row = (w_n * ${t.bn // t.wn} + lane / 16 * 8 + lane % 8) * ${rowb};
% else:
  const uint a_row = (lane / 16 * 8 + lane % 8) * 128, a_chunk = w_m * ${t.bm // t.wm // 8} + lane / 8 % 2;
  const uint b_row = (lane / 8 % 2 * 8 + lane % 8) * 128, b_chunk = w_n * ${t.bn // t.wn // 8} + lane / 16;
% endif
% endif
