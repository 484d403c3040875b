## The copy engine of ``nvidia.int8`` in plain OpenCL C: all work items copy; the kernel's barriers stand for the engine's.
<% t = tiling.tile %>\
// What the copy engine does with the maps, in plain C: all work items copy.
inline void put_swizzled(local uchar *memory, uint to, int row, int c, uchar v) {
  const int place = row * ${t.bk} + c;
  memory[to + (place ^ (place >> 7 & ${7 if t.bk == 128 else 3}) << 4)] = v;
}
inline void copy_box2(local uchar *memory, global const uchar *w, uint to, int c0, int c1) {
  for (int i = get_local_id(0); i < ${t.bn * t.bk}; i += get_local_size(0))
    put_swizzled(memory, to, i / ${t.bk}, i % ${t.bk}, w[(long)(c1 + i / ${t.bk}) * ${tiling.row_bytes} + c0 + i % ${t.bk}]);
}
#define COPY_BOX2(map, to, c0, c1, bar) copy_box2(memory, map, to, 2 * (c0), c1)
#define prefetch_line(at)
% if tiling.by_rows:
inline void copy_box4(local uchar *memory, global const uchar *x, uint to, int c, int w, int h, int n) {
  for (int i = get_local_id(0); i < ${tiling.box_bytes}; i += get_local_size(0)) {
    const int r = i / ${t.bk}, e = c + i % ${t.bk}, column = w + r % ${tiling.pitch}, row = h + r / ${tiling.pitch};
    const int real = column >= 0 & column < IW & row >= 0 & row < IH & e < IC;
    put_swizzled(memory, to, r, i % ${t.bk}, real ? x[((long)(n * IH + row) * IW + column) * IC + e] : 0);
  }
}
#define COPY_BOX4(map, to, c, w, h, n, bar) copy_box4(memory, map, to, 2 * (c), w, h, n)
% else:
<% box = tiling.source %>\
inline void copy_im2col(local uchar *memory, global const uchar *x, uint to, int c, int w, int h, int n, int ow, int oh) {
  for (int i = get_local_id(0); i < ${t.bm * t.bk}; i += get_local_size(0)) {
    const int r = i / ${t.bk}, e = c + i % ${t.bk};
    const int place = (w + PW) / SW + ((h + PH) / SH + n * ${box.places[1]}) * ${box.places[0]} + r;
    const int column = place % ${box.places[0]} * SW - PW + ow, row = place / ${box.places[0]} % ${box.places[1]} * SH - PH + oh, image = place / ${box.places[0] * box.places[1]};
    const int real = column >= 0 & column < IW & row >= 0 & row < IH & image < MB & e < IC;
    put_swizzled(memory, to, r, i % ${t.bk}, real ? x[((long)(image * IH + row) * IW + column) * IC + e] : 0);
  }
}
#define COPY_IM2COL(map, to, c, w, h, n, ow, oh, bar) copy_im2col(memory, map, to, 2 * (c), w, h, n, ow, oh)
% endif
