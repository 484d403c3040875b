## What follows the sums of a tile: parts of ``product.cl.mako`` and ``stream.cl.mako``, whose kernels have m0, n0, group, tid, lane,
## m_warp, n_warp and sum; offsets and multipliers; and of ``halo.cl.mako``, which has image and top for m0.
##
## Rows of packed weights stand in an order (``pack.cl``) by which a work item's sums of a place are those of ``run``
## neighbouring channels, and four lanes' are side by side: they are finished in registers and leave for y from there.
<%!
VECTOR = {16: "uint4", 8: "uint2", 4: "uint", 2: "ushort", 1: "uchar"}

def numbers_of(tiling):
    size, run = tiling.problem.out_itemsize, tiling.run
    return tiling.tile, size, run, run * size
%>\
<%def name="macros()">\
<% t, size, run, nbytes = numbers_of(tiling) %>\
#include <convdispatch/quantized.cl>
// A work item's neighbouring elements, and what their channels need.
typedef union { uint words[${nbytes // 4}]; ${VECTOR[tiling.out_unit]} pieces[${nbytes // tiling.out_unit}]; } RUN;
typedef union { uint4 fours[${run // 4}]; uint each[${run}]; } OFFSETS;
typedef union { float4 fours[${run // 4}]; float each[${run}]; } FACTORS;
// ``left`` bytes of them are in y.
inline RUN load_run(global const uchar *from, int left) {
  RUN run;
#pragma unroll
  for (int i = 0; i < ${nbytes // tiling.out_unit}; ++i)
    if (i * ${tiling.out_unit} < left) run.pieces[i] = *(global const ${VECTOR[tiling.out_unit]} *)(from + i * ${tiling.out_unit});
  return run;
}
inline void store_run(global uchar *to, int left, RUN run) {
#pragma unroll
  for (int i = 0; i < ${nbytes // tiling.out_unit}; ++i)
    if (i * ${tiling.out_unit} < left) *(global ${VECTOR[tiling.out_unit]} *)(to + i * ${tiling.out_unit}) = run.pieces[i];
}
// A residual's element less its zero point, a number. Bytes stand on 2 ** 23.
#if OUT_INT8
#define ELEMENT(run, i) (byte_over_2_23((run).words[(i) / 4] ^ 0x80808080u, (i) % 4) - (8388736.0f + (float)table[2]))
#elif OUT_UINT8
#define ELEMENT(run, i) (byte_over_2_23((run).words[(i) / 4], (i) % 4) - (8388608.0f + (float)table[2]))
#elif OUT_FLOAT8
#define ELEMENT(run, i) cvt_f32_f16((ushort)(cvt_f16x2_${tiling.problem.out_dtype[7:]}x2((ushort)((run).words[(i) / 4] >> (i) % 4 / 2 * 16)) >> (i) % 2 * 16))
#elif OUT_BFLOAT16
#define ELEMENT(run, i) as_float((run).words[(i) / 2] >> (i) % 2 * 16 << 16)
#elif OUT_FLOAT16
#define ELEMENT(run, i) cvt_f32_f16((ushort)((run).words[(i) / 2] >> (i) % 2 * 16))
#else
#define ELEMENT(run, i) as_float((run).words[i])
#endif
#define EACH for (int i = 0; i < ${run}; ++i)
#define NUMBER(i) as_float(table[i])
#define SHIFT 12582912.0f  // 1.5 * 2 ** 23: a sum with it is rounded to an integer, half to even
// What finish_sum of quantized.cl does with one sum, for neighbours, in few instructions.
inline RUN finish_run(const int *table, const ACC *sums, const OFFSETS *offset, const FACTORS *multiplier, const RUN *added) {
  RUN run;
#if OUT_INT32
#pragma unroll
  EACH run.words[i] = clamp((int)((uint)sums[i] + offset->each[i] + (RESIDUAL ? added->words[i] : 0)), table[10], table[11]);
#else
  float v[${run}];
#if FLOAT8  // a NaN stays one
#pragma unroll
  EACH v[i] = add_rn(mul_rn(sums[i], multiplier->each[i]), as_float(offset->each[i]));
#if RESIDUAL
#pragma unroll
  EACH v[i] = add_rn(v[i], mul_rn(ELEMENT(*added, i), NUMBER(4)));
#endif
#pragma unroll
  EACH v[i] = bounded(v[i], NUMBER(6), NUMBER(7));
#else
#pragma unroll
  EACH v[i] = mul_rn((float)(int)((uint)sums[i] + offset->each[i]), multiplier->each[i]);
#if RESIDUAL && OUT_BYTES
  if (table[3]) {
#pragma unroll
    EACH v[i] = mul_rn(add_rn(add_rn(clamp(v[i], NUMBER(8), NUMBER(9)), SHIFT), -SHIFT), NUMBER(5));
  }
#pragma unroll
  EACH v[i] = add_rn(v[i], mul_rn(ELEMENT(*added, i), NUMBER(4)));
  if (!table[13]) {
#pragma unroll
    EACH v[i] = clamp(mul_rn(v[i], NUMBER(14)), -4096.0f * NUMBER(12), 4096.0f * NUMBER(12));
  }
#pragma unroll  // Markstein's step: a product with the reciprocal becomes the quotient
  EACH v[i] = fma(fma(-mul_rn(v[i], NUMBER(15)), NUMBER(12), v[i]), NUMBER(15), mul_rn(v[i], NUMBER(15)));
#elif RESIDUAL
#pragma unroll
  EACH v[i] = add_rn(v[i], mul_rn(ELEMENT(*added, i), NUMBER(4)));
#endif
#endif
#if OUT_FLOAT8
#pragma unroll
  EACH v[i] = mul_rn(mul_rn(v[i], NUMBER(14)), NUMBER(15));
#pragma unroll
  for (int i = 0; i < ${run}; i += 4) run.words[i / 4] = cvt_${tiling.problem.out_dtype[7:]}x2_f32(v[i], v[i + 1]) | (uint)cvt_${tiling.problem.out_dtype[7:]}x2_f32(v[i + 2], v[i + 3]) << 16;
#elif OUT_BYTES
  if (table[10]) {
#pragma unroll
    EACH v[i] = clamp(v[i], NUMBER(6), NUMBER(7));
  }
  int n[${run}];
#pragma unroll
  EACH n[i] = round_plus(v[i], table[11]);
  if (table[1] & 1) {
#pragma unroll
    EACH --n[i];
  }
#pragma unroll
  for (int i = 0; i < ${run}; i += 4) run.words[i / 4] = saturated_bytes(n[i], n[i + 1], n[i + 2], n[i + 3])${" ^ 0x80808080u" if tiling.problem.out_dtype == "int8" else ""};
#else
#if !FLOAT8
#pragma unroll
  EACH v[i] = clamp(v[i], NUMBER(6), NUMBER(7));
#endif
#if OUT_BFLOAT16
#pragma unroll
  for (int i = 0; i < ${run}; i += 2) run.words[i / 2] = cvt_bf16x2_f32(v[i], v[i + 1]);
#elif OUT_FLOAT16
#pragma unroll
  for (int i = 0; i < ${run}; i += 2) run.words[i / 2] = cvt_f16_f32(v[i]) | (uint)cvt_f16_f32(v[i + 1]) << 16;
#else
#pragma unroll
  EACH run.words[i] = as_uint(v[i]);
#endif
#endif
#endif
  return run;
}
</%def>\
## The table's words, in registers, y's scale with its reciprocal. A scale that is very large or small, and with it what is
## divided, is multiplied by a power of two, so that no step of a quotient that counts leaves the numbers.
<%def name="words()">\
    int words[16];
#pragma unroll
    for (int i = 0; i < 14; ++i) words[i] = table[i];
    words[14] = words[13] ? as_int(1.0f) : clamp(254 - (words[12] >> 23), 1, 254) << 23;
    words[12] = as_int(mul_rn(as_float(words[12]), as_float(words[14])));
    words[15] = as_int(reciprocal(as_float(words[12])));
#if OUT_BYTES && !FLOAT8  // whether y has other bounds than its type; its zero point as of unsigned bytes, one more where that is odd
    const int lowest = ${-128 if tiling.problem.out_dtype == "int8" else 0} - words[1];
    words[10] = as_float(words[6]) != (float)lowest | as_float(words[7]) != (float)(lowest + 255);
    words[11] = (words[1] & 1) - lowest;
#endif
</%def>\
## Of float8: the sums over all slices, before the first one; and what becomes of a slice's, of a group of columns.
<%def name="zeroed()">\
% if tiling.promotes:
#pragma unroll
  for (int i = 0; i < ${tiling.tile.frag_m * tiling.tile.frag_n * 4}; ++i) total[i] = 0;
% endif
</%def>\
<%def name="promoted(group)">\
<% sums = tiling.tile.frag_m * tiling.tile.frag_n * 4 // tiling.column_groups %>\
% if tiling.promotes:
#pragma unroll
  for (int i = 0; i < ${sums}; ++i) total[i + ${group * sums}] += sum[i];
% endif
</%def>\
## What each channel needs after its sums.
<%def name="numbers()">\
<% t = tiling.tile %>\
    for (int i = tid; i < ${t.bn}; i += ${t.items}) {
      const int channel = group * ${tiling.n} + min(n0 + i, ${tiling.n - 1});
      const uint bias = BIASES(table)[channel];
      multipliers[i] = MULTIPLIERS(table)[channel];
% for number in range(tiling.sets):
      offsets[i + ${number * t.bn}] = bias - (uint)X_ZERO(table) * (uint)sums_of_w[group * ${tiling.rows} + n0 + i + ${number * tiling.packed_rows}];
% endfor
    }
</%def>\
## The residual's lines come into the cache while slices are multiplied.
<%def name="prefetch()">\
<% t, size, run, nbytes = numbers_of(tiling); lines = -(-t.bn * size // 128) %>\
% if tiling.problem.residual:
    for (int i = tid; i < ${t.bm * lines}; i += ${t.items}) {
      const int r = i / ${lines}, b = i % ${lines} * 128;
${place_of("r", "")}\
      if (there && n0 * ${size} + b < ${tiling.n * size})
        prefetch_line((global const uchar *)residual + ((long)m * OC + group * ${tiling.n} + n0) * ${size} + b);
    }
% endif
</%def>\
## Place m of y of a tile's row r, and whether there is one.
<%def name="place_of(r, name)">\
% if tiling.by_rows:
      const int row${name} = (${r}) / ${tiling.pitch}, column${name} = (${r}) % ${tiling.pitch}, m${name} = (image * OH + top + row${name}) * OW + column${name};
      const int there${name} = column${name} < OW & row${name} < min(${tiling.tile_rows}, OH - top);
% else:
      const int m${name} = m0 + ${r}, there${name} = m${name} < ${tiling.places};
% endif
</%def>\
## Where the offsets begin for the taps that are in x of a tile's row r: the copy engine's zeros stand for x_zero.
<%def name="set_of(r, name)">\
% if tiling.by_rows:
      const int set${name} = (ROW_SET[min(top + (${r}) / ${tiling.pitch}, OH - 1)] + COLUMN_SET[min((${r}) % ${tiling.pitch}, OW - 1)]) * ${tiling.tile.bn};
% else:
      const int set${name} = (ROW_SET[(m0 + ${r}) / OW % OH] + COLUMN_SET[(m0 + ${r}) % OW]) * ${tiling.tile.bn};
% endif
</%def>\
<%def name="place(g, i, half)">\
<%
t, size, run, nbytes = numbers_of(tiling)
left = str(nbytes) if tiling.n % t.bn == 0 else f"({tiling.n} - n0 - n_lane - {g * 4 * run}) * {size}"
%>\
% if tiling.by_rows:
      const int left = there${half} ? ${left} : 0;
      const long byte = first_byte + ((long)m${half} * OC + ${g * 4 * run}) * ${size};
% else:
% if tiling.ragged:
      const int left = m_lane + ${i * 16 + half * 8} < ${tiling.places} ? ${left} : 0;
% else:
      const int left = ${left};
% endif
      const long byte = first_byte + ${((i * 16 + half * 8) * tiling.problem.oc + g * 4 * run) * size};
% endif
</%def>\
<%def name="loaded(g, halves)">\
% for i, half in halves:
    RUN added${g}_${i}_${half};
% if tiling.problem.residual:
    {
${place(g, i, half)}\
      added${g}_${i}_${half} = load_run((global const uchar *)residual + byte, left);
    }
% endif
% endfor
</%def>\
## y's tile, finished; a block's residual is on its way while the block before it leaves.
<%def name="leave()">\
<%
t, size, run, nbytes = numbers_of(tiling)
blocks = 2 * t.frag_n // run
halves = [(i, half) for i in range(t.frag_m) for half in range(2)]
%>\
    const int n_lane = n_warp + lane % 4 * ${run};
% if tiling.sets > 1:
% for half in range(2):
${set_of(f"m_warp + lane / 4 + {8 * half}", half)}\
% endfor
% endif
% if tiling.by_rows:
% for half in range(2):
${place_of(f"m_warp + lane / 4 + {8 * half}", half)}\
% endfor
    const long first_byte = (group * ${tiling.n} + n0 + n_lane) * ${size};
% else:
    const int m_lane = m0 + m_warp + lane / 4;
    const long first_byte = ((long)m_lane * OC + group * ${tiling.n} + n0 + n_lane) * ${size};
% endif
${loaded(0, halves)}\
% for g in range(blocks):
% if g + 1 < blocks:
${loaded(g + 1, halves)}\
% endif
    {
      OFFSETS offset;
      FACTORS multiplier;
#pragma unroll
      for (int i = 0; i < ${run // 4}; ++i) {
% if tiling.sets == 1:
        offset.fours[i] = ((local const uint4 *)(offsets + n_lane + ${g * 4 * run}))[i];
% endif
        multiplier.fours[i] = ((local const float4 *)(multipliers + n_lane + ${g * 4 * run}))[i];
      }
% for i, half in halves:
      {
${place(g, i, half)}\
% if tiling.sets > 1:
#pragma unroll
        for (int i = 0; i < ${run // 4}; ++i) offset.fours[i] = ((local const uint4 *)(offsets + set${half} + n_lane + ${g * 4 * run}))[i];
% endif
        const ACC sums[${run}] = {${", ".join(f"{tiling.sums}[{(i * t.frag_n + (g * run + c) // 2) * 4 + half * 2 + c % 2}]" for c in range(run))}};
        store_run((global uchar *)y + byte, left, finish_run(words, sums, &offset, &multiplier, &added${g}_${i}_${half}));
      }
% endfor
    }
% endfor
</%def>\
