## All of this plugin's instructions that OpenCL C has no name for, one small function each. Tests have stand-ins
## in plain C for what kernels call of them (``tests/support/plain_c``).
##
## type     what is multiplied: f16, bf16 or tf32; e4m3 or e5m2; s8 or u8 with s8, whose sums are int32
## groups   which of copies, mma, bulk and parts; conversions of numbers are always there
## wgmma    shape and layouts of wgmma (instructions.Wgmma), or None
##
## Macros name what the kernel has: ``memory``, its array of local memory, and ``base``, the array's address; places there
## are byte offsets. ``WGMMA`` takes LBO and SBO of A, B_LBO and B_SBO of B (see ``descriptor``), which the kernel's text
## defines. The stand-ins of ``mma`` exchange through ``scratch``, which ``SCRATCH`` declares.
##
## Lines that begin with //@ are for sm_90a: OpenCL's compiler stops at sm_90 and takes them as comments; the host strips
## the mark from the compiled PTX (instructions.py).
##
## Source: NVIDIA, Parallel Thread Execution ISA, the sections of the instructions' names.
#define LOCAL_BASE(memory) ((uint)(ulong)(memory))
#define SCRATCH(items)

<% integers, float8 = type in ("s8", "u8"), type in ("e4m3", "e5m2") %>\
// --- conversions of numbers
% if integers or float8 or type == "f16":
inline float cvt_f32_f16(ushort h) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
  return v;
}
// Rounds to the nearest number, ties to even; beyond the range the result is infinity.
inline ushort cvt_f16_f32(float v) {
  ushort h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  return h;
}
% endif
% if integers or float8:
// 1 / v to the nearest number, of a normal v whose reciprocal is one: a step of Newton's. A division is a call of a
// function in programs that the driver's linker assembles, and wgmma of float8 then ran in turn.
inline float reciprocal(float v) {
  float r;
  asm("{\n.reg .f32 negative, error;\nneg.f32 negative, %1;\nrcp.approx.ftz.f32 %0, %1;\n"
      "fma.rn.f32 error, negative, %0, 0f3F800000;\nfma.rn.f32 %0, error, %0, %0;\n}" : "=&f"(r) : "f"(v));
  return r;
}
% endif
% if float8 or type == "bf16":
// The nearest bfloat16 numbers of v0 (lower half) and v1.
inline uint cvt_bf16x2_f32(float v0, float v1) {
  uint u;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(v1), "f"(v0));
  return u;
}
% endif
% if type == "tf32":
// The nearest TF32 number: 11 significant bits, as a float32 whose lower 13 bits are 0.
inline uint cvt_tf32_f32(float v) {
  uint u;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(v));
  return u;
}
% endif
% if float8:
// v within bounds; NaN stays NaN. (A conditional expression became two branches a number.)
inline float bounded(float v, float low, float high) {
  asm("max.NaN.f32 %0, %0, %1;\nmin.NaN.f32 %0, %0, %2;" : "+f"(v) : "f"(low), "f"(high));
  return v;
}
% for each in ("e4m3", "e5m2"):
// The nearest ${each} numbers, v0's in the lower byte; the largest beyond the range.
inline ushort cvt_${each}x2_f32(float v0, float v1) {
  ushort u;
  asm("cvt.rn.satfinite.${each}x2.f32 %0, %1, %2;" : "=h"(u) : "f"(v1), "f"(v0));
  return u;
}
inline uint cvt_f16x2_${each}x2(ushort pair) {
  uint u;
  asm("cvt.rn.f16x2.${each}x2 %0, %1;" : "=r"(u) : "h"(pair));
  return u;
}
% endfor
% endif
% if type in ("f16", "bf16"):
// The nearest numbers of v0 (lower half) and v1, or 0 where they are negative; NaN stays NaN.
inline uint cvt_relu_${type}x2_f32(float v0, float v1) {
  uint u;
  asm("cvt.rn.relu.${type}x2.f32 %0, %1, %2;" : "=r"(u) : "f"(v1), "f"(v0));
  return u;
}
% endif
% if integers:
// 2 ** 23 and one byte of a word, as a number.
inline float byte_over_2_23(uint word, int which) {
  uint v;
  asm("prmt.b32 %0, %1, 0x4b000000, %2;" : "=r"(v) : "r"(word), "r"(0x7540 + which));
  return as_float(v);
}
// round(v) + z, half to even, 0 where that is less; z is even. Of numbers that are multiples of the smallest one, 2 ** -149, the
// bits are an integer, and what rounds a sum to such a one rounds it to an integer.
inline int round_plus(float v, int z) {
  float count;
  asm("fma.rn.sat.f32 %0, %1, 0f00000001, %2;" : "=f"(count) : "f"(v), "f"(as_float(z)));
  return as_int(count);
}
// Packs four rounded numbers as bytes.
inline uint saturated_bytes(int a, int b, int c, int d) {
  uint v;
  asm("{\n.reg .b32 upper;\ncvt.pack.sat.u8.s32.b32 upper, %4, %3, 0;\ncvt.pack.sat.u8.s32.b32 %0, %2, %1, upper;\n}"
      : "=r"(v) : "r"(a), "r"(b), "r"(c), "r"(d));
  return v;
}
% endif
% if "copies" in groups or "bulk" in groups:

// Prefetches the cache line at an address without waiting.
inline void prefetch_line(global const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
% endif
% if "copies" in groups:

// --- copies from global to local memory, without registers and without waiting
% for size in (4, 8, 16):
// ${size} bytes; zeros where !exists.
inline void copy${size}(local uchar *memory, uint base, uint to, global const void *from, int exists) {
  asm volatile("cp.async.${"cg" if size == 16 else "ca"}.shared.global [%0], [%1], ${size}, %2;" ::"r"(base + to), "l"(from), "r"(exists ? ${size} : 0) : "memory");
}
% endfor
inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define COPIES_WAIT(left) asm volatile("cp.async.wait_group " #left ";" ::: "memory")
% endif
% if "mma" in groups or "rows" in groups:

// --- a warp's matrices, spread over its lanes' registers
// Four 8x8 matrices of 16-bit numbers, one a register; lane i gives the address of row i.
inline void ldmatrix(uint *r, uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
inline void ldmatrix_trans(uint *r, uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
#define LDMATRIX(r, at) ldmatrix(r, base + (at))
#define LDMATRIX_TRANS(r, at) ldmatrix_trans(r, base + (at))
% endif
% if "mma" in groups:

// --- tensor cores of Ampere
<%
depth = {"tf32": 8, "f16": 16, "bf16": 16}.get(type, 32)
shape, c_type, c = f"m16n8k{depth}", "int" if integers else "float", "r" if integers else "f"
types = f"s32.{type}.s8.s32" if integers else f"f32.{type}.{type}.f32"
%>\
% if float8:
// c (16x8, float32) += a (16x32) b (32x8), four numbers a register.
% elif integers:
// c (16x8, int32) += a (16x32) b (32x8), four numbers a register; sums wrap.
% elif type == "tf32":
// c (16x8, float32) += a (16x8) b (8x8): the lower 13 bits of a register count for nothing.
% else:
// c (16x8, float32) += a (16x16) b (16x8), two numbers a register.
% endif
inline void mma(${c_type} *c, const uint *a, const uint *b) {
  asm volatile("mma.sync.aligned.${shape}.row.col.${types} {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+${c}"(c[0]), "+${c}"(c[1]), "+${c}"(c[2]), "+${c}"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#define MMA(c, a, b) mma(c, a, b)
% endif
% if wgmma:
<%
sums = wgmma.sums
registers = ", ".join(f"%{i}" for i in range(sums))
c_type, c = ("int", "r") if integers else ("float", "f")
outs = ", ".join(f'"+{c}"(c[{i}])' for i in range(sums))
%>
// --- tensor cores of Hopper: four warps' sums, of matrices in local memory
// What ordinary and asynchronous copies wrote to local memory becomes visible to wgmma. (The fence of all memory
// waits for copies that are in flight: without it products were 12 to 43 % faster.)
#define VISIBLE_TO_WGMMA() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define WGMMA_BEGIN() asm volatile("//@wgmma.fence.sync.aligned;\n" ::: "memory")
#define WGMMA_COMMIT() asm volatile("//@wgmma.commit_group.sync.aligned;\n" ::: "memory")
#define WGMMA_WAIT(left) asm volatile("//@wgmma.wait_group.sync.aligned " #left ";\n" ::: "memory")
<%
depth = {"tf32": 8, "f16": 16, "bf16": 16}.get(type, 32)
types = f"s32.{type}.s8" if integers else f"f32.{type}.{type}"
how = "" if integers else ", 1, 1" if float8 or type == "tf32" else f", 1, 1, {int(wgmma.a_transposed)}, {int(wgmma.b_transposed)}"
%>\
// c (64 x ${wgmma.columns}, ${c_type}) = a (64 x ${depth}) b (${depth} x ${wgmma.columns}) [+ c]; a and b are in local memory as their descriptors say.
inline void wgmma(${c_type} *c, ulong a, ulong b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %${sums + 2}, 0;\n"
               "//@wgmma.mma_async.sync.aligned.m64n${wgmma.columns}k${depth}.${types} {${registers}}, %${sums}, %${sums + 1}, p${how};\n}\n"
               : ${outs} : "l"(a), "l"(b), "r"(add) : "memory");
}
% if "rows" in groups:
// The same of rows of A that each warp has in registers, as ``mma`` takes them; they stay as they are until its group is waited for.
inline void wgmma_rows(${c_type} *c, const uint *a, ulong b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %${sums + 5}, 0;\n"
               "//@wgmma.mma_async.sync.aligned.m64n${wgmma.columns}k${depth}.${types} {${registers}}, {%${sums}, %${sums + 1}, %${sums + 2}, %${sums + 3}}, %${sums + 4}, p, 1, 1${"" if type == "tf32" else f", {int(wgmma.b_transposed)}"};\n}\n"
               : ${outs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add) : "memory");
}
#define WGMMA_ROWS(c, a, b, add) wgmma_rows(c, a, descriptor(base + (b), ${1 if wgmma.rows[1] == 128 else 2}, B_LBO, B_SBO), add)
% endif
// The sums are complete after this; naming them keeps their uses behind it.
inline void wgmma_finish(${c_type} *c) {
  asm volatile("//@wgmma.wait_group.sync.aligned 0;\n" : ${outs} :: "memory");
}
<% swizzle_a, swizzle_b = (1 if row == 128 else 2 for row in wgmma.rows) %>\
// The address and layout of a matrix: swizzled rows (1: of 128 bytes, 2: of 64); SBO from eight rows to the next, LBO between blocks of 64 columns.
inline ulong descriptor(uint at, uint swizzle, uint lbo, uint sbo) {
  return ((ulong)swizzle << 62) | ((ulong)(sbo >> 4) << 32) | ((ulong)(lbo >> 4) << 16) | ((at & 0x3ffff) >> 4);
}
#define WGMMA(c, a, b, add) wgmma(c, descriptor(base + (a), ${swizzle_a}, LBO, SBO), descriptor(base + (b), ${swizzle_b}, B_LBO, B_SBO), add)
% endif
% if "bulk" in groups:

// --- barriers that count bytes and warps, named by their addresses
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

// --- registers of a work item of this group of four warps from here on: a launch gives all the same number, and
// warps that copy leave theirs to warps that multiply. All four warps come here.
#define REGISTERS_SHRINK(count) asm volatile("//@setmaxnreg.dec.sync.aligned.u32 " #count ";\n")
#define REGISTERS_GROW(count) asm volatile("//@setmaxnreg.inc.sync.aligned.u32 " #count ";\n")

// --- Hopper's copy engine, told by tensor maps in global memory
inline void map_address(global ulong *map, global const void *tensor) {
  asm volatile("//@tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;\n" ::"l"(map), "l"(tensor) : "memory");
}
inline void map_visible(global ulong *map) {
  asm volatile("//@fence.proxy.tensormap::generic.release.gpu;\n"
               "//@fence.proxy.tensormap::generic.acquire.gpu [%0], 128;\n" ::"l"(map) : "memory");
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
</%def>\
${copier("copy_im2col", "im2col", 4, 2)}\
${copier("copy_im2col3", "im2col", 5, 3)}\
${copier("copy_box2", "tile", 2, 0)}\
${copier("copy_box3", "tile", 3, 0)}\
${copier("copy_box4", "tile", 4, 0)}\
// ``bytes`` neighbouring ones, a multiple of 16.
inline void copy_run(uint to, global const void *from, int bytes, uint bar) {
  asm volatile("//@cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
               ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
#define COPY_RUN(to, from, bytes, bar) copy_run(base + (to), from, bytes, bar)
#define COPY_IM2COL(map, to, c, w, h, n, ow, oh, bar) copy_im2col(map, base + (to), c, w, h, n, ow, oh, bar)
#define COPY_IM2COL3(map, to, c, w, h, d, n, ow, oh, od, bar) copy_im2col3(map, base + (to), c, w, h, d, n, ow, oh, od, bar)
#define COPY_BOX2(map, to, c0, c1, bar) copy_box2(map, base + (to), c0, c1, bar)
#define COPY_BOX4(map, to, c0, c1, c2, c3, bar) copy_box4(map, base + (to), c0, c1, c2, c3, bar)
#define COPY_BOX3(map, to, c0, c1, c2, bar) copy_box3(map, base + (to), c0, c1, c2, bar)

// Of two groups of four warps that take turns: the group waits for its turn; it lets the other one begin.
inline void turn_begins(int group) { asm volatile("bar.sync %0, 256;" ::"r"(group + 2) : "memory"); }
inline void turn_ends(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(3 - group) : "memory"); }

// Waits for the lanes of a warp.
inline void warp_meets() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
% endif
% if "parts" in groups:

// --- between warps of a work group, all ``items`` of them; and between work groups
inline void warps_meet(int items) { asm volatile("bar.sync 1, %0;" ::"r"(items) : "memory"); }
// What other work items of the group wrote before they met goes before; what others released is seen after.
inline ulong word_exchange(global ulong *word, ulong expected, ulong next) {
  ulong old;
  asm volatile("fence.acq_rel.gpu;\natom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;\nfence.acq_rel.gpu;"
               : "=l"(old) : "l"(word), "l"(expected), "l"(next) : "memory");
  return old;
}
inline ulong word_load(global ulong *word) {
  ulong now;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(now) : "l"(word) : "memory");
  return now;
}
// What another multiprocessor wrote in this launch.
inline float4 load_written(global const float4 *from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
  return v;
}
% endif
