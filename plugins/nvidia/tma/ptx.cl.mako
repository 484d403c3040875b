## The instructions of ``product.cl.mako`` that OpenCL C has no name for, and their plain C stand-ins (EMULATE).
##
## Lines that begin with //@ are for sm_90a, see ``hopper.py``. Barriers and local memory are named by their addresses in
## the shared window, copies' targets by offsets in the kernel's array.
<%
box = job.gathered
%>\
#ifndef EMULATE
inline void barrier_init(uint bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
inline void barriers_visible() {
  asm volatile("//@fence.mbarrier_init.release.cluster;\n//@fence.proxy.async;\n" ::: "memory");
}
inline void barrier_expect(uint bar, int bytes) {
  asm volatile("//@mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes) : "memory");
}
// Waits for the end of the phase of this parity.
inline void barrier_wait(uint bar, uint parity) {
  asm volatile("{\n//@.reg .pred p;\n//@again:\n//@mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n//@@!p bra again;\n}\n"
               ::"r"(bar), "r"(parity) : "memory");
}
// Tells that this warp has read a slice.
inline void barrier_release(uint bar) {
  asm volatile("//@mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
#define RELEASE(bar) if (lane == 0) barrier_release(bar)
inline void map_address(global ulong *map, global const ushort *tensor) {
  asm volatile("//@tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;\n" ::"l"(map), "l"(tensor) : "memory");
}
inline void maps_visible(global ulong *maps) {
  asm volatile("//@fence.proxy.tensormap::generic.release.gpu;\n"
               "//@fence.proxy.tensormap::generic.acquire.gpu [%0], 128;\n"
               "//@fence.proxy.tensormap::generic.acquire.gpu [%1], 128;\n" ::"l"(maps), "l"(maps + 16) : "memory");
}
<%def name="copier(name, kind, coordinates, offsets)">\
<%
args = ["ulong map", "uint to"] + [f"int c{i}" for i in range(coordinates)] + [f"int o{i}" for i in range(offsets)] + ["uint bar"]
c = ", ".join(f"%{3 + i}" for i in range(coordinates))
o = ", {" + ", ".join(f"%{3 + coordinates + i}" for i in range(offsets)) + "}" if offsets else ""
given = ", ".join([f'"r"(c{i})' for i in range(coordinates)] + [f'"h"((ushort)o{i})' for i in range(offsets)])
%>\
inline void ${name}(${", ".join(args)}) {
  asm volatile("//@cp.async.bulk.tensor.${coordinates}d.shared::cluster.global.${kind}.mbarrier::complete_tx::bytes [%0], [%1, {${c}}], [%2]${o};\n"
               ::"r"(to), "l"(map), "r"(bar), ${given} : "memory");
}
</%def>
${copier("copy_im2col", "im2col", 4, 2)}\
${copier("copy_box2", "tile", 2, 0)}\
${copier("copy_box3", "tile", 3, 0)}\
#define COPY_IM2COL(map, to, c, w, h, n, ow, oh, bar) copy_im2col(map, base + (to), c, w, h, n, ow, oh, bar)
#define COPY_BOX2(map, to, c0, c1, bar) copy_box2(map, base + (to), c0, c1, bar)
#define COPY_BOX3(map, to, c0, c1, c2, bar) copy_box3(map, base + (to), c0, c1, c2, bar)
#define WGMMA(c, a, b, add) wgmma(c, descriptor(base, a, LBO, SBO), descriptor(base, b, LBO, SBO), add)
inline float swapped(float v, int with) {
  float other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(v), "r"(with));
  return other;
}
// From two columns of each of four groups to the eight columns of group ``lane % 4``.
inline void eight(float *v, int lane, float a0, float a1, float b0, float b1, float c0, float c1, float d0, float d1) {
  const int odd = lane & 1, high = lane & 2;
  // Neighbours exchange: even lanes keep groups 0 and 2, odd ones 1 and 3.
  const float s0 = swapped(odd ? a0 : b0, 1), s1 = swapped(odd ? a1 : b1, 1);
  const float s2 = swapped(odd ? c0 : d0, 1), s3 = swapped(odd ? c1 : d1, 1);
  const float k0 = odd ? b0 : a0, k1 = odd ? b1 : a1, k2 = odd ? d0 : c0, k3 = odd ? d1 : c1;
  const float near0 = odd ? s0 : k0, near1 = odd ? s1 : k1, near2 = odd ? k0 : s0, near3 = odd ? k1 : s1;
  const float far0 = odd ? s2 : k2, far1 = odd ? s3 : k3, far2 = odd ? k2 : s2, far3 = odd ? k3 : s3;
  // Then pairs of lanes: the lower keep groups 0 and 1, the upper 2 and 3.
  const float r0 = swapped(high ? near0 : far0, 2), r1 = swapped(high ? near1 : far1, 2);
  const float r2 = swapped(high ? near2 : far2, 2), r3 = swapped(high ? near3 : far3, 2);
  v[0] = high ? r0 : near0, v[1] = high ? r1 : near1, v[2] = high ? r2 : near2, v[3] = high ? r3 : near3;
  v[4] = high ? far0 : r0, v[5] = high ? far1 : r1, v[6] = high ? far2 : r2, v[7] = high ? far3 : r3;
}
#define EIGHT(v, ...) eight(v, lane, __VA_ARGS__)
#else
inline void put_swizzled(local uchar *memory, uint to, int row, int c, ushort v) {
  *(local ushort *)(memory + to + row * 128 + ((c / 8 ^ row % 8) << 4) + c % 8 * 2) = v;
}
// What the copy engine does with a map: ${box.pixels} places of 64 channels from (w, h, n) on.
inline void im2col_emulated(local uchar *memory, global const ushort *tensor, uint to, int c, int w, int h, int n, int ow, int oh) {
<% (cols, lines), (cs, ws, hs, ns) = box.places, box.sizes %>\
  for (int i = get_local_id(0); i < ${box.pixels * 64}; i += get_local_size(0)) {
    const int r = i / 64, e = c + i % 64;
    const int place = (w - (${box.lower[0]})) / ${box.step[0]} + ((h - (${box.lower[1]})) / ${box.step[1]} + n * ${lines}) * ${cols} + r;
    const int x = place % ${cols} * ${box.step[0]} + (${box.lower[0]}) + ow, y = place / ${cols} % ${lines} * ${box.step[1]} + (${box.lower[1]}) + oh, image = place / ${cols * lines};
    const int real = x >= 0 & x < ${ws} & y >= 0 & y < ${hs} & image < ${ns} & e < ${cs};
    put_swizzled(memory, to, r, i % 64, real ? tensor[((long)(image * ${hs} + y) * ${ws} + x) * ${cs} + e] : 0);
  }
}
<% sizes, rows = job.other.sizes, job.other.box[-1] %>\
inline void box_emulated(local uchar *memory, global const ushort *tensor, uint to, int c0, int c1, int c2) {
  for (int i = get_local_id(0); i < ${rows * 64}; i += get_local_size(0)) {
    const int e = c0 + i % 64, r = c2 + i / 64;
    const int real = e < ${sizes[0]} & r < ${sizes[-1]};
    put_swizzled(memory, to, i / 64, i % 64, real ? tensor[(long)r * ${sizes[0] * (sizes[1] if len(sizes) > 2 else 1)} + (long)c1 * ${sizes[0]} + e] : 0);
  }
}
#define COPY_IM2COL(map, to, c, w, h, n, ow, oh, bar) im2col_emulated(memory, map, to, c, w, h, n, ow, oh)
#define COPY_BOX2(map, to, c0, c1, bar) box_emulated(memory, map, to, c0, 0, c1)
#define COPY_BOX3(map, to, c0, c1, c2, bar) box_emulated(memory, map, to, c0, c1, c2)
#define WGMMA(c, a, b, add) wgmma_emulated(c, memory, a, b, LBO, SBO, LBO, SBO, add)
inline void eight_emulated(float *v, local float *quads, float a0, float a1, float b0, float b1, float c0, float c1, float d0, float d1) {
  const int tid = get_local_id(0), lane = tid % 4;
  local float *mine = quads + tid * 8;
  BARRIER();
  mine[0] = a0, mine[1] = a1, mine[2] = b0, mine[3] = b1, mine[4] = c0, mine[5] = c1, mine[6] = d0, mine[7] = d1;
  BARRIER();
  for (int e = 0; e < 8; ++e) v[e] = quads[(tid - lane + e / 2) * 8 + lane * 2 + e % 2];
}
#define EIGHT(v, ...) eight_emulated(v, quads, __VA_ARGS__)
#endif
