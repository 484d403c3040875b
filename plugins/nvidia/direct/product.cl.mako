## C[m, n] = sum over k of A[m, k] B[k, n] on tensor cores, from float32 tensors in place: nothing is packed.
##
## What m, n and k are of a convolution with a 1x1 kernel: ``tiling.py``. Tiles of A and B are copied to local memory
## as they are in memory, [row][k] or [k][row], BK long along k, STAGES of them; copies of STAGES - 1 are in flight. Values
## become TF32 in registers: one number, or two whose sum is the float32 value (or two bfloat16 ones), and then
##
##     a b = a_low b_high + a_high b_low + a_high b_high  (+ a_low b_low, omitted)
##
## Lane 4 g + t of a warp holds of A's fragment (16x8) rows g and g + 8 in columns t and t + 4, of B's (8x8) column g in
## rows t and t + 4, of the sums (16x8) rows g and g + 8 in columns 2 t and 2 t + 1. Lines of a tile are so long that these
## 32 numbers are in 32 banks: 4 mod 32 floats where k runs along them, 8 mod 32 where rows do.
##
## In bfloat16 a register holds two k's, and sums run over 16: any order of k will do that A and B agree on, so lanes read
## the same places, k's 4 apart sharing a register.
##
## bm, bn, bk  tile of a work group, and the depth of a slice
## wm, wn      warps along m and n
## split       parts of the sum over k, which end in the workspace
## flush_every     split values: slices after which sums move to float32 registers; 0: after every product of tensor cores
## compensated       split values: what an addition to those registers rounds away begins the next sums
## PARTIAL     1: sums go to the workspace as they are
##
## Parts: ``iterator`` (places of copies), ``pipeline`` (a slice's copies), ``mainloop`` (a slice's products),
## ``accumulation`` (their sums), ``epilogue`` (the sums' way out). The template sees a
## ``DirectForm`` (``solver.py``); a name in capitals is a number of the geometry.
<%namespace name="iterator" file="iterator.cl.mako"/>\
<%namespace name="pipeline" file="pipeline.cl.mako"/>\
<%namespace name="mainloop" file="mainloop.cl.mako"/>\
<%namespace name="accumulation" file="accumulation.cl.mako"/>\
<%namespace name="epilogue" file="epilogue.cl.mako"/>\



// Element (row, k) of a tile in local memory.
% for number in (0, 1):
#define ${"AB"[number]}_TILE(row, k) ${f"(row) * {f.pitch[number]} + (k)" if f.operands[number].along_k else f"(k) * {f.pitch[number]} + (row)"}
% endfor
${epilogue.functions()}\
#define INDEX ${f.index}
kernel __attribute__((reqd_work_group_size(${t.items}, 1, 1)))
void direct(global const float *restrict a, global const float *restrict b, OUT_PARAMS NUMBERS) {
  local float4 area[${-(-f.local_bytes // 16)}] __attribute__((aligned(128)));
  SCRATCH(${t.items});
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  // Tiles of NCHW: their work groups share pixels.
  int rest = get_group_id(0), next = DIVIDED(rest, ${order[0].upper()}S);
  const int ${order[0]} = rest - next * ${order[0].upper()}S;
  rest = next, next = DIVIDED(rest, ${order[1].upper()}S);
  const int ${order[1]} = rest - next * ${order[1].upper()}S;
% if t.split > 1:
  rest = next, next = DIVIDED(rest, SPLIT);
  const int part = rest - next * SPLIT, group = next;
  // The parts share the slices; the first of them have one more where they do not share evenly.
  const int slices = SLICES, share = DIVIDED(slices, SPLIT), more = slices - share * SPLIT;
  const int begin = part * share + min(part, more), end = begin + share + (part < more);
% else:
  const int group = next, begin = 0, end = SLICES;
% endif
  const int m0 = m_tile * ${t.bm}, n0 = n_tile * ${t.bn};
${iterator.places(both[0])}\
${iterator.places(both[1])}\
  const int row0 = warp % ${t.wm} * ${t.bm // t.wm} + lane / 4, column0 = warp / ${t.wm} * ${t.bn // t.wn};
${accumulation.declare()}\
  for (int i = 0; i < ${distance}; ++i) {
    if (begin + i < end) {
${pipeline.fetch("(begin + i)", f"i * {stage_bytes}")}\
    }
    copies_commit();
  }
  uint stage_at = 0, next_at = ${distance * stage_bytes};
  for (int slice = begin; slice < end; ++slice) {
    COPIES_WAIT(${distance - 1});
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice + ${distance} < end) {
${pipeline.fetch(f"(slice + {distance})", "next_at")}\
    }
    copies_commit();
    next_at = next_at == ${(t.stages - 1) * stage_bytes} ? 0 : next_at + ${stage_bytes};
    local const float *a_tile = (local const float *)(memory + stage_at), *b_tile = a_tile + ${f.floats[0]};
${mainloop.multiply()}\
${accumulation.flush()}\
    stage_at = stage_at == ${(t.stages - 1) * stage_bytes} ? 0 : stage_at + ${stage_bytes};
  }
${accumulation.finish()}\
  // Through local memory: then neighbours write neighbours.
  local float *staging = (local float *)area;
${epilogue.write()}\
}
