// The product's other functions, for vendors whose OpenCL C can express them: conversions, copies to local memory, and
// loads of a lane's runs from there. ``memory`` is the kernel's array of local memory; positions in it are byte offsets.
#ifdef cl_khr_fp16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
#define LOCAL_BASE(memory) 0u
// Rounds to nearest even, and to infinity beyond the range.
#ifdef cl_khr_fp16
inline float cvt_f32_f16(ushort h) { return as_half(h); }
inline ushort cvt_f16_f32(float v) { return as_ushort((half)v); }
#else
inline float cvt_f32_f16(ushort h) { return vload_half(0, (const half *)&h); }
inline ushort cvt_f16_f32(float v) {
  ushort h;
  vstore_half_rte(v, 0, (half *)&h);
  return h;
}
#endif
// Copies 16 bytes, or zeros if !exists. The copy is complete on return, so nothing is in flight at a barrier.
inline void copy16(local uchar *memory, uint base, uint to, global const void *from, int exists) {
  *(local uint4 *)(memory + to) = exists ? *(global const uint4 *)from : (uint4)(0);
}
#define copies_commit()
#define COPIES_WAIT(left)
// Loads a lane's run of neighbours along k.
#define LOAD_RUN1(to, at) *(to) = *(local const ushort *)(memory + (at))
#define LOAD_RUN2(to, at) *(ushort2 *)(to) = *(local const ushort2 *)(memory + (at))
#define LOAD_RUN4(to, at) *(ushort4 *)(to) = *(local const ushort4 *)(memory + (at))
#define LOAD_RUN8(to, at) *(ushort8 *)(to) = *(local const ushort8 *)(memory + (at))
