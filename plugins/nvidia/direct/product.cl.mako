## C[m, n] = sum over k of A[m, k] B[k, n] on tensor cores, from float32 tensors where they lie: nothing is packed.
##
## What m, n and k are of a convolution with a 1x1 kernel: ``tiling.py``. Tiles of A and B are copied to local memory
## as they lie in memory, [row][k] or [k][row], BK long along k, STAGES of them; copies of STAGES - 1 are in flight. Values
## become TF32 in registers: one number, or two whose sum is the float32 value (or two bfloat16 ones), and then
##
##     a b = a_low b_high + a_high b_low + a_high b_high  (+ a_low b_low, left out)
##
## Lane 4 g + t of a warp holds of A's fragment (16x8) rows g and g + 8 in columns t and t + 4, of B's (8x8) column g in
## rows t and t + 4, of the sums (16x8) rows g and g + 8 in columns 2 t and 2 t + 1. Lines of a tile are so long that these
## 32 numbers lie in 32 banks: 4 mod 32 floats where k runs along them, 8 mod 32 where rows do.
##
## In bfloat16 a register holds two k's, and sums run over 16: any order of k will do that A and B agree on, so lanes read
## the same places, k's 4 apart sharing a register.
##
## bm, bn, bk  tile of a work group, and the depth of a slice
## wm, wn      warps along m and n
## split       parts of the sum over k, which end in the workspace
## flush_every     split values: slices after which sums move to float32 registers; 0: after every product of tensor cores
## compensated       split values: what an addition to those registers rounds away begins the next sums
## fixup       parts of the sum are added by work groups of this launch, 16 rows of every warp at a time; see parts.cl.mako
## PARTIAL     1: sums go to the workspace as they are
<%
t, a, b = tiling.tile, *tiling.operands
exact, apart = t.products == 3, t.flush_every > 0
sums, distance = t.frag_m * t.frag_n * 4, t.stages - 1
stage_bytes, unroll = tiling.stage * 4, "" if emulate else "#pragma unroll"
width, pitch_out = tiling.out_width, t.bn + 8
p = tiling.problem

class Copies:
    """Who copies what of an operand's tile: the work item's first number, its step, and how many."""

    def __init__(self, number):
        self.operand, self.letter = tiling.operands[number], "ab"[number]
        o, extent = self.operand, tiling.extent(number)
        self.width, self.pitch, self.extent = o.width, tiling.pitch(number), extent
        # Rows beyond the last are zeros: a copy of it in their place, by all work groups, waits for one line of the cache.
        self.ragged = o.row.size % extent > 0
        self.origin, self.at = ("m0", "n0")[number], 0 if number == 0 else tiling.floats(0) * 4
        if o.along_k:
            self.across = t.bk // o.width
            self.rows, self.k_steps = -(-extent * self.across // t.items), 1
            self.row_step, self.k_step = t.items // self.across, 0
        else:
            self.across = min(extent // o.width, t.items)
            self.rows = extent // o.width // self.across
            self.row_step, self.k_step = self.across * o.width, t.items // self.across
            self.k_steps = -(-t.bk // self.k_step)

    def guard(self, i, j):
        """Text before the copy of row step i and k step j, where some work items have none."""
        if self.operand.along_k and (i + 1) * self.row_step > self.extent:
            return f"if ({self.letter}_row + {i * self.row_step} < {self.extent}) "
        if not self.operand.along_k and (j + 1) * self.k_step > t.bk:
            return f"if ({self.letter}_k + {j * self.k_step} < {t.bk}) "
        return ""

    def to(self, i, j):
        """Bytes from the work item's first number to that of row step i and k step j."""
        row, k = (self.pitch, 1) if self.operand.along_k else (1, self.pitch)
        return 4 * (i * self.row_step * row + j * self.k_step * k) + self.at

both = [Copies(0), Copies(1)]
%>\
<%def name="places(c)">\
<% o, l = c.operand, c.letter %>\
% if o.along_k:
  const int ${l}_k = tid % ${c.across} * ${c.width}, ${l}_row = tid / ${c.across};
  const uint ${l}_to = (${l}_row * ${c.pitch} + ${l}_k) * 4;
% else:
  const int ${l}_row = tid % ${c.across} * ${c.width}, ${l}_k = tid / ${c.across};
  const uint ${l}_to = (${l}_k * ${c.pitch} + ${l}_row) * 4;
% endif
  ${l} += (INDEX)group * ${o.group};
% for i in range(c.rows):
  const int ${l}_place${i} = min(${c.origin} + ${l}_row + ${i * c.row_step}, ${o.row.size - (1 if o.along_k else c.width)});
  const INDEX ${l}_at${i} = ${o.row.at(f"{l}_place{i}")};
% if c.ragged:
  const int ${l}_in${i} = ${c.origin} + ${l}_row + ${i * c.row_step} < ${o.row.size};
% endif
% endfor
</%def>
<%def name="fetch(slice, stage)">\
% for c in both:
<% o, l = c.operand, c.letter %>\
% for j in range(c.k_steps):
      {
        const int k = ${slice} * ${t.bk} + ${l}_k + ${j * c.k_step}, real = ${f"k < {tiling.k}" if tiling.k % t.bk else "1"};
        const INDEX at = ${o.k.at("k")};
% for i in range(c.rows):
        ${c.guard(i, j)}copy${4 * c.width}(memory, base, ${stage} + ${l}_to + ${c.to(i, j)}, ${l} + (${l}_at${i} + at), real${f" && {l}_in{i}" if c.ragged else ""});
% endfor
      }
% endfor
% endfor
</%def>
<%def name="put_pixels()">\
% if tiling.gaps:
      {
        // The pixel that an output reads, and those up to the next one, which none reads.
        const int pixel = (${"m" if tiling.nhwc else "n"}) % ${p.od * p.oh * p.ow};
        const int z = pixel / ${p.oh * p.ow} * ${p.sd}, y = pixel / ${p.ow} % ${p.oh} * ${p.sh}, x = pixel % ${p.ow} * ${p.sw};
        const int dz = min(${p.sd}, ${p.id} - z), dy = min(${p.sh}, ${p.ih} - y), dx = min(${p.sw}, ${p.iw} - x);
        for (int i = 0; i < dz; ++i)
          for (int j = 0; j < dy; ++j)
            for (int l = 0; l < dx; ++l) {
              const OUT_INDEX to = at + ((OUT_INDEX)(i * ${p.ih} + j) * ${p.iw} + l) * ${p.ic if tiling.nhwc else 1};
              put_run(OUT_ARGS, from, (i | j | l) == 0, BESIDE(to), to, channel);
            }
      }
% else:
      put_run(OUT_ARGS, from, 1, BESIDE(at), at, channel);
% endif
</%def>
// Element (row, k) of a tile in local memory.
% for number in (0, 1):
#define ${"AB"[number]}_TILE(row, k) ${f"(row) * {tiling.pitch(number)} + (k)" if tiling.operands[number].along_k else f"(k) * {tiling.pitch(number)} + (row)"}
% endfor
<% run = "float" if width == 1 else f"float{width}" %>\
// ${width} neighbouring results, or zeros unless kept. ``beside`` is what the residual holds there.
inline void put_run(OUT_PARAMS, local const float *from, int kept, ${run} beside, OUT_INDEX at, int channel) {
  ${run} v = kept ? (${run})(${", ".join(f"from[{i}]" for i in range(width))}) : (${run})(0);
#if PARTIAL
  out += PARTIAL_AT;
#else
  EPILOGUE(${run}, v, ${f"*(global const {run} *)(bias + channel)" if tiling.nhwc else "bias[channel]"}, beside, *(global const ${run} *)(out + at))
#endif
  *(global ${run} *)(out + at) = v;
}
#if RESIDUAL && !PARTIAL
#define BESIDE(at) (*(global const ${run} *)(residual + (at)))
#else
#define BESIDE(at) ((${run})(0))
#endif
#define INDEX ${tiling.index}
kernel __attribute__((reqd_work_group_size(${t.items}, 1, 1)))
void direct(global const float *restrict a, global const float *restrict b, ${"global uchar *workspace, " if t.fixup else ""}OUT_PARAMS) {
  local float4 area[${-(-tiling.local_bytes // 16)}] __attribute__((aligned(128)));
  SCRATCH(${t.items});
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  // Tiles of channels first: their work groups share pixels.
<% order = ["m_tile", "n_tile"] if tiling.data and not tiling.nhwc else ["n_tile", "m_tile"]; tiles = {"m_tile": tiling.m_tiles, "n_tile": tiling.n_tiles} %>\
  int rest = get_group_id(0);
  const int ${order[0]} = rest % ${tiles[order[0]]};
  rest /= ${tiles[order[0]]};
  const int ${order[1]} = rest % ${tiles[order[1]]};
  rest /= ${tiles[order[1]]};
  const int part = rest % ${t.split}, group = rest / ${t.split};
  const int m0 = m_tile * ${t.bm}, n0 = n_tile * ${t.bn};
  const int begin = ${f"(int)((long){tiling.slices} * part / {t.split})" if t.split > 1 else 0}, end = ${f"(int)((long){tiling.slices} * (part + 1) / {t.split})" if t.split > 1 else tiling.slices};
${places(both[0])}\
${places(both[1])}\
  const int row0 = warp % ${t.wm} * ${t.bm // t.wm} + lane / 4, column0 = warp / ${t.wm} * ${t.bn // t.wn};
  float sum[${sums}]${f", fresh[{sums}]" if apart else f", carried[{sums}]" if t.compensated else ""};
${unroll}
  for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
% if apart:
${unroll}
  for (int i = 0; i < ${sums}; ++i) fresh[i] = 0;
  int left = ${t.flush_every};
% elif t.compensated:
${unroll}
  for (int i = 0; i < ${sums}; ++i) carried[i] = 0;
% endif
  for (int i = 0; i < ${distance}; ++i) {
    if (begin + i < end) {
${fetch("(begin + i)", f"i * {stage_bytes}")}\
    }
    copies_commit();
  }
  uint stage_at = 0, next_at = ${distance * stage_bytes};
  for (int slice = begin; slice < end; ++slice) {
    COPIES_WAIT(${distance - 1});
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice + ${distance} < end) {
${fetch(f"(slice + {distance})", "next_at")}\
    }
    copies_commit();
    next_at = next_at == ${(t.stages - 1) * stage_bytes} ? 0 : next_at + ${stage_bytes};
    local const float *a_tile = (local const float *)(memory + stage_at), *b_tile = a_tile + ${tiling.floats(0)};
${unroll}
    for (int k = 0; k < ${t.bk}; k += ${t.depth}) {
      uint b_high[${t.frag_n}][2]${f", b_low[{t.frag_n}][2]" if exact else ""};
${unroll}
      for (int j = 0; j < ${t.frag_n}; ++j)
${unroll}
        for (int e = 0; e < 2; ++e) {
% if t.depth == 16:
          const int r = column0 + j * 8 + lane / 4, at = k + lane % 4 + e * 8;
          split2(b_tile[B_TILE(r, at)], b_tile[B_TILE(r, at + 4)], &b_high[j][e], &b_low[j][e]);
% else:
          const float v = b_tile[B_TILE(column0 + j * 8 + lane / 4, k + lane % 4 + e * 4)];
% if exact:
          split(v, &b_high[j][e], &b_low[j][e]);
% else:
          b_high[j][e] = cvt_tf32_f32(v);
% endif
% endif
        }
${unroll}
      for (int i = 0; i < ${t.frag_m}; ++i) {
        uint a_high[4]${", a_low[4]" if exact else ""};
${unroll}
        for (int e = 0; e < 4; ++e) {
% if t.depth == 16:
          const int r = row0 + i * 16 + e % 2 * 8, at = k + lane % 4 + e / 2 * 8;
          split2(a_tile[A_TILE(r, at)], a_tile[A_TILE(r, at + 4)], &a_high[e], &a_low[e]);
% else:
          const float v = a_tile[A_TILE(row0 + i * 16 + e % 2 * 8, k + lane % 4 + e / 2 * 4)];
% if exact:
          split(v, &a_high[e], &a_low[e]);
% else:
          a_high[e] = cvt_tf32_f32(v);
% endif
% endif
        }
% if exact:
        // Neighbouring products do not wait for each other.
% if not apart:
        float step[${t.frag_n * 4}];
${unroll}
        for (int j = 0; j < ${t.frag_n * 4}; ++j) step[j] = ${f"carried[i * {t.frag_n * 4} + j]" if t.compensated else 0};
% endif
<% into = f"fresh + i * {t.frag_n * 4}" if apart else "step" %>\
% for left, right in (("a_low", "b_high"), ("a_high", "b_low"), ("a_high", "b_high")):
${unroll}
        for (int j = 0; j < ${t.frag_n}; ++j) MMA(${into} + j * 4, ${left}, ${right}[j]);
% endfor
% if not apart:
${unroll}
% if t.compensated:
        for (int j = 0; j < ${t.frag_n * 4}; ++j) carried[i * ${t.frag_n * 4} + j] = add_part(sum + i * ${t.frag_n * 4} + j, step[j]);
% else:
        for (int j = 0; j < ${t.frag_n * 4}; ++j) sum[i * ${t.frag_n * 4} + j] += step[j];
% endif
% endif
% else:
${unroll}
        for (int j = 0; j < ${t.frag_n}; ++j) MMA(sum + (i * ${t.frag_n} + j) * 4, a_high, b_high[j]);
% endif
      }
    }
% if apart:
    if (--left == 0) {
      left = ${t.flush_every};
${unroll}
      for (int i = 0; i < ${sums}; ++i) {
% if t.compensated:
        fresh[i] = add_part(sum + i, fresh[i]);
% else:
        sum[i] += fresh[i];
        fresh[i] = 0;
% endif
      }
    }
% endif
    stage_at = stage_at == ${(t.stages - 1) * stage_bytes} ? 0 : stage_at + ${stage_bytes};
  }
% if apart:
${unroll}
  for (int i = 0; i < ${sums}; ++i) sum[i] += fresh[i];
% endif
  // Through local memory: then neighbours write neighbours.
  local float *staging = (local float *)area;
<% across = min(t.bn // width, t.items); row, column = tiling.target.row, tiling.target.k %>\
<%def name="stage(name, first, row)">\
      local float *to = staging + (${row}) * ${pitch_out} + column0 + j * 8 + lane % 4 * 2;
      const int at = (${first} + j) * 4;
      *(local float2 *)to = (float2)(${name}[at], ${name}[at + 1]);
      *(local float2 *)(to + ${8 * pitch_out}) = (float2)(${name}[at + 2], ${name}[at + 3]);
</%def>\
<% at_once, down = (4 if p.residual and not tiling.gaps else 1), t.items // across %>\
<%def name="place_of(m)">\
      const int m = ${m}, channel = group * ${(p.channels_out if tiling.data else p.oc) // p.g} + ${"n" if tiling.nhwc else "m"};
      const OUT_INDEX at = at_n + ${row.at("m").replace("INDEX", "OUT_INDEX")};
</%def>\
<%def name="leave(rows, m)">\
  for (int c = tid % ${across} * ${width}; c < ${t.bn} && n0 + c < ${tiling.n}; c += ${across * width}) {
    const int n = n0 + c;
    const OUT_INDEX at_n = ${f"(OUT_INDEX)part * {tiling.partial_elements} + " if t.split > 1 and not t.fixup else ""}(OUT_INDEX)group * ${tiling.target.group} + ${column.at("n").replace("INDEX", "OUT_INDEX")};
% if at_once > 1:
    // Residuals of ${at_once} rows are read before one of them is written: else each would wait for the one before.
    for (int first = tid / ${across}; first < ${rows}; first += ${at_once * down}) {
      ${run} beside[${at_once}];
${unroll}
      for (int u = 0; u < ${at_once}; ++u) {
        const int r = min(first + u * ${down}, ${rows} - 1);
${place_of(m)}\
        beside[u] = BESIDE(m < ${tiling.m} ? at : 0);
      }
${unroll}
      for (int u = 0; u < ${at_once}; ++u) {
        const int r = first + u * ${down};
        if (r >= ${rows}) continue;
${place_of(m)}\
        if (m < ${tiling.m}) put_run(OUT_ARGS, staging + r * ${pitch_out} + c, 1, beside[u], at, channel);
      }
    }
% else:
    for (int r = tid / ${across}; r < ${rows} && ${m} < ${tiling.m}; r += ${down}) {
${place_of(m)}\
      local const float *from = staging + r * ${pitch_out} + c;
${put_pixels()}\
    }
% endif
  }
</%def>\
% if t.fixup:
<% tile_sums = t.bm * t.bn // 4 %>\
  const int whole = (group * ${tiling.m_tiles} + m_tile) * ${tiling.n_tiles} + n_tile;
  global float4 *parts = (global float4 *)workspace + (long)whole * ${t.split * tile_sums} + tid;
  global ulong *state = (global ulong *)(workspace + ${tiling.states_at}L) + whole;
  local int *shared = (local int *)(memory + ${-(-tiling.local_bytes // 16) * 16 - 16});
${unroll}
  for (int i = 0; i < ${t.frag_m * t.frag_n}; ++i)
    parts[part * ${tile_sums} + i * ${t.items}] = (float4)(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]);
  warps_meet(${t.items});
  if (tid == 0) arrive(state);
  for (;;) {
<% waits = tiling.work_groups <= at_once %>\
    if (tid == 0) *shared = take(state, ${"POLLS" if waits else 0});
    warps_meet(${t.items});
    const int first = *shared;
    if (first < 0) break;
    for (int block = first; block < ${"first + 1" if waits else t.frag_m}; ++block) {
    float whole_sum[${t.frag_n * 4}];
${unroll}
    for (int j = 0; j < ${t.frag_n * 4}; ++j) whole_sum[j] = 0;
    for (int i = 0; i < ${t.split}; ++i) {
${unroll}
      for (int j = 0; j < ${t.frag_n}; ++j) {
        const float4 v = load_written(parts + i * ${tile_sums} + (block * ${t.frag_n} + j) * ${t.items});
        whole_sum[j * 4] += v.x, whole_sum[j * 4 + 1] += v.y, whole_sum[j * 4 + 2] += v.z, whole_sum[j * 4 + 3] += v.w;
      }
    }
${unroll}
    for (int j = 0; j < ${t.frag_n}; ++j) {
${stage("whole_sum", 0, f"warp % {t.wm} * 16 + lane / 4")}\
    }
    barrier(CLK_LOCAL_MEM_FENCE);
${leave(t.wm * 16, f"m0 + r / 16 * {t.bm // t.wm} + block * 16 + r % 16")}\
    barrier(CLK_LOCAL_MEM_FENCE);
    }
% if not waits:
    break;
% endif
  }
% else:
  barrier(CLK_LOCAL_MEM_FENCE);
${unroll}
  for (int i = 0; i < ${t.frag_m}; ++i)
${unroll}
    for (int j = 0; j < ${t.frag_n}; ++j) {
${stage("sum", f"i * {t.frag_n}", "row0 + i * 16")}\
    }
  barrier(CLK_LOCAL_MEM_FENCE);
${leave(t.bm, "m0 + r")}\
% endif
}
