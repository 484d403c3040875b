## The instructions that OpenCL C has no name for, one small function each, and their plain C stand-ins.
##
## EMULATE  1: plain OpenCL C with the same results, for devices without tensor cores (tests); one warp's lanes
##          exchange what they hold through a scratch area of local memory, and sums are rounded toward zero
## Local memory is named by byte offsets from the kernel's array.
##
## Lines that begin with //@ are for sm_90a: OpenCL's compiler stops at sm_90 and takes them as comments; the host
## strips the mark from the compiled PTX (hopper.py).
<%
t = job.tile
sums = t.frag_m * t.frag_n * 4
kind = job.format.type
wn = t.bn // t.wn
%>\
#ifndef EMULATE
#define LOCAL_BASE(memory) ((uint)(ulong)(memory))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

// 16 bytes from global to local memory, without registers and without waiting; zeros where !exists.
inline void copy16(local uchar *memory, uint base, uint to, global const ushort *from, int exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(base + to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define COPIES_WAIT(left) asm volatile("cp.async.wait_group " #left ";" ::: "memory")

// Four 8x8 matrices of 16-bit numbers, one a register; lane i gives the address of row i.
inline void ldmatrix(uint *r, local uchar *memory, uint base, uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(base + at) : "memory");
}
inline void ldmatrix_trans(uint *r, local uchar *memory, uint base, uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(base + at) : "memory");
}
// c (16x8, float32) += a (16x16) b (16x8).
inline void mma(float *c, const uint *a, const uint *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.${kind}.${kind}.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
% if t.engine == "wgmma":
// What ordinary and asynchronous copies wrote to local memory becomes visible to wgmma. (The fence of all memory
// waits for copies that are under way: without it products were 12 to 43 % faster.)
#define VISIBLE_TO_WGMMA() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define WGMMA_BEGIN() asm volatile("//@wgmma.fence.sync.aligned;\n" ::: "memory")
#define WGMMA_COMMIT() asm volatile("//@wgmma.commit_group.sync.aligned;\n" ::: "memory")
#define WGMMA_WAIT(left) asm volatile("//@wgmma.wait_group.sync.aligned " #left ";\n" ::: "memory")
<% regs = ", ".join(f"%{i}" for i in range(sums)); outs = ", ".join(f'"+f"(c[{i}])' for i in range(sums)) %>\
// c (64 x ${wn}, float32) = a (64x16) b (16 x ${wn}) [+ c]; a and b lie in local memory as their descriptors say.
inline void wgmma(float *c, ulong a, ulong b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %${sums + 2}, 0;\n"
               "//@wgmma.mma_async.sync.aligned.m64n${wn}k16.f32.${kind}.${kind} {${regs}}, %${sums}, %${sums + 1}, p, 1, 1, ${0 if job.data else 1}, ${0 if job.data and not job.turned_weights else 1};\n}\n"
               : ${outs} : "l"(a), "l"(b), "r"(add) : "memory");
}
// The sums are complete after this; naming them keeps their uses behind it.
inline void wgmma_finish(float *c) {
  asm volatile("//@wgmma.wait_group.sync.aligned 0;\n" : ${outs} :: "memory");
}
// Where a matrix lies: swizzled rows of ROW bytes; SBO from eight rows to the next, LBO between blocks of 64 columns.
inline ulong descriptor(uint base, uint at, uint lbo, uint sbo) {
  return ((ulong)${1 if job.row_bytes == 128 else 2} << 62) | ((ulong)(sbo >> 4) << 32) | ((ulong)(lbo >> 4) << 16) | (((base + at) & 0x3ffff) >> 4);
}
% endif
#else
#define LOCAL_BASE(memory) 0u
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define copies_commit()
#define COPIES_WAIT(left)
#define VISIBLE_TO_WGMMA()
#define WGMMA_BEGIN()
#define WGMMA_COMMIT()
#define WGMMA_WAIT(left)
inline void copy16(local uchar *memory, uint base, uint to, global const ushort *from, int exists) {
  for (int i = 0; i < 8; ++i) ((local ushort *)(memory + to))[i] = exists ? from[i] : 0;
}
% if t.engine == "wgmma":
inline float element(local const uchar *memory, uint at) {
  at ^= (at >> 7 & ${7 if job.row_bytes == 128 else 3}) << 4;  // the swizzle
  return widen(*(local const ushort *)(memory + at));
}
// A descriptor's matrix: element (row or column x, k), with k along rows or, turned, down them.
inline uint matrix_at(int turned, uint at, uint lbo, uint sbo, int x, int k) {
  return turned ? at + x / 64 * lbo + x % 64 * 2 + k % 8 * 128 + k / 8 * sbo : at + x / 8 * sbo + x % 8 * ${job.row_bytes} + k * 2;
}
inline void wgmma_emulated(float *c, local const uchar *memory, uint a, uint b, uint lbo, uint sbo, uint b_lbo, uint b_sbo, int add) {
  const int lane = get_local_id(0) % 32, warp = get_local_id(0) / 32 % 4;
  for (int i = 0; i < ${sums}; ++i) {
    const int row = warp * 16 + lane / 4 + (i & 2) * 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    WIDE sum = add ? c[i] : 0;
    for (int k = 0; k < 16; ++k)
      sum += (WIDE) element(memory, matrix_at(${0 if job.data else 1}, a, lbo, sbo, row, k)) * element(memory, matrix_at(${0 if job.data and not job.turned_weights else 1}, b, b_lbo, b_sbo, column, k));
    c[i] = TOWARD_ZERO(sum);
  }
}
#define wgmma_finish(c)
% else:
// Fragments from where ldmatrix's lanes point: here each lane gathers its own two numbers a register.
inline void gather(uint *r, local uchar *memory, local uint *scratch, uint at, int turned) {
  const int lane = get_local_id(0) % 32;
  local uint *rows = scratch + get_local_id(0) / 32 * 32;
  BARRIER();
  rows[lane] = at;
  BARRIER();
  for (int i = 0; i < 4; ++i) {
    const int r0 = lane / 4, c0 = lane % 4 * 2;
    const ushort low = turned ? ((local ushort *)(memory + rows[i * 8 + c0]))[r0] : ((local ushort *)(memory + rows[i * 8 + r0]))[c0];
    const ushort high = turned ? ((local ushort *)(memory + rows[i * 8 + c0 + 1]))[r0] : ((local ushort *)(memory + rows[i * 8 + r0]))[c0 + 1];
    r[i] = low | (uint)high << 16;
  }
}
inline void mma_emulated(float *c, local uint *scratch, const uint *a, const uint *b) {
  const int lane = get_local_id(0) % 32;
  local uint *mine = scratch + get_local_id(0) / 32 * 192;
  BARRIER();
  for (int i = 0; i < 4; ++i) mine[lane * 6 + i] = a[i];
  for (int i = 0; i < 2; ++i) mine[lane * 6 + 4 + i] = b[i];
  BARRIER();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i & 2) * 4, column = lane % 4 * 2 + i % 2;
    WIDE sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const uint va = mine[(row % 8 * 4 + k % 8 / 2) * 6 + row / 8 + k / 8 * 2];
      const uint vb = mine[(column * 4 + k % 8 / 2) * 6 + 4 + k / 8];
      sum += (WIDE)widen((ushort)(k % 2 ? va >> 16 : va)) * widen((ushort)(k % 2 ? vb >> 16 : vb));
    }
    c[i] = TOWARD_ZERO(sum);
  }
}
% endif
#endif
