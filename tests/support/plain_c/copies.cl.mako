## Hopper's copy engine in plain OpenCL C: all work items copy; the kernel's barriers stand for the engine's.
<%
size = tiling.itemsize
number, rounded = ("uint", "cvt_tf32_f32(as_float({}))") if tiling.format.tf32 else ("ushort", "{}")
%>\
inline void put_swizzled(local uchar *memory, int width, uint to, int row, int c, ${number} v) {
  const int place = (row * width + c) * ${size};
  *(local ${number} *)(memory + to + (place ^ (place >> 7 & (width == ${128 // size} ? 7 : 3)) << 4)) = v;
}
<%def name="gather(name, box)">\
// What the copy engine does with a map: ${box.pixels} places of ${box.channels} channels from (w, h, d, n) on.
inline void ${name}(local uchar *memory, global const ${number} *tensor, uint to, int c, int w, int h, int d, int n, int ow, int oh, int od) {
<%
deep = len(box.places) > 2
cols, lines, frames = (*box.places, 1)[:3]
cs, ws, hs, ds, ns = (*box.sizes[:3], *(box.sizes[3:] if deep else (1, box.sizes[3])))
%>\
  for (int i = get_local_id(0); i < ${box.pixels * box.channels}; i += get_local_size(0)) {
    const int r = i / ${box.channels}, e = c + i % ${box.channels};
    const int place = (w - (${box.lower[0]})) / ${box.step[0]} + ((h - (${box.lower[1]})) / ${box.step[1]} + (${f"(d - ({box.lower[2]})) / {box.step[2]} + " if deep else ""}n * ${frames}) * ${lines}) * ${cols} + r;
    const int x = place % ${cols} * ${box.step[0]} + (${box.lower[0]}) + ow, y = place / ${cols} % ${lines} * ${box.step[1]} + (${box.lower[1]}) + oh, image = place / ${cols * lines * frames};
    const int z = ${f"place / {cols * lines} % {frames} * {box.step[2]} + ({box.lower[2]}) + od" if deep else "0"};
    const int real = x >= 0 & x < ${ws} & y >= 0 & y < ${hs} & z >= 0 & z < ${ds} & image < ${ns} & e < ${cs};
    const ${number} v = real ? tensor[((long)((image * ${ds} + z) * ${hs} + y) * ${ws} + x) * ${cs} + e] : 0;
    put_swizzled(memory, ${box.channels}, to, r, i % ${box.channels}, ${"v" if box.unrounded else rounded.format("v")});
  }
}
</%def>\
${gather("copy_im2col", tiling.gathered)}\
% if tiling.slices_behind:
${gather("copy_behind", tiling.behind)}\
#define COPY_BEHIND(map, to, c, w, h, n, ow, oh, bar) copy_behind(memory, (global const ${number} *)(map), to, c, w, h, 0, n, ow, oh, 0)
#define COPY_BEHIND3(map, to, c, w, h, d, n, ow, oh, od, bar) copy_behind(memory, (global const ${number} *)(map), to, c, w, h, d, n, ow, oh, od)
% endif
<% sizes, rows, wide = tiling.other.sizes, tiling.other.box[-1], tiling.other.box[0] %>\
inline void copy_box(local uchar *memory, global const ${number} *tensor, uint to, int c0, int c1, int c2) {
  for (int i = get_local_id(0); i < ${rows * wide}; i += get_local_size(0)) {
    const int e = c0 + i % ${wide}, r = c2 + i / ${wide};
    const int real = e < ${sizes[0]} & r < ${sizes[-1]};
    const ${number} v = real ? tensor[(long)r * ${sizes[0] * (sizes[1] if len(sizes) > 2 else 1)} + (long)c1 * ${sizes[0]} + e] : 0;
    put_swizzled(memory, ${wide}, to, i / ${wide}, i % ${wide}, ${rounded.format("v")});
  }
}
#define COPY_RUN(to, from, bytes, bar) \
  for (int run = get_local_id(0); run < (bytes) / 4; run += get_local_size(0)) ((local float *)(memory + (to)))[run] = (from)[run]
#define COPY_IM2COL(map, to, c, w, h, n, ow, oh, bar) copy_im2col(memory, (global const ${number} *)(map), to, c, w, h, 0, n, ow, oh, 0)
#define COPY_IM2COL3(map, to, c, w, h, d, n, ow, oh, od, bar) copy_im2col(memory, (global const ${number} *)(map), to, c, w, h, d, n, ow, oh, od)
#define COPY_BOX2(map, to, c0, c1, bar) copy_box(memory, (global const ${number} *)(map), to, c0, 0, c1)
#define COPY_BOX3(map, to, c0, c1, c2, bar) copy_box(memory, (global const ${number} *)(map), to, c0, c1, c2)
#define warp_meets() barrier(CLK_LOCAL_MEM_FENCE)
