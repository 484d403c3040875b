// Ceilings of a device. flops: s = s * x + y in CHAINS independent chains a work item, nothing but multiply-adds.
// copy: out[i] = in[i], ITEM vectors a work item, next to each other on a CPU and a launch apart on a GPU.
//
// V      the vector type of one operation
// ACC    its element
// STEPS  multiply-adds of one chain
// ITEM   vectors that one work item copies
// APART  1: neighbouring items copy neighbouring vectors (GPU); 0: each item copies a block (CPU)

kernel void flops(global V *out, ACC x, ACC y) {
% for i in range(chains):
  V s${i} = (V)(${i}) + (ACC)get_global_id(0);
% endfor
  for (int i = 0; i < STEPS; ++i) {
% for i in range(chains):
    s${i} = s${i} * x + y;
% endfor
  }
  out[get_global_id(0)] = ${" + ".join(f"s{i}" for i in range(chains))};
}

kernel void copy(global V *restrict out, global const V *restrict in) {
  size_t me = get_global_id(0), all = get_global_size(0);
#if APART
  for (int i = 0; i < ITEM; ++i) out[me + i * all] = in[me + i * all];
#else
  for (int i = 0; i < ITEM; ++i) out[me * ITEM + i] = in[me * ITEM + i];
#endif
}
