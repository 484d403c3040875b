## C[m, n] = sum over k of A[m, k] B[k, n] on Hopper's tensor cores, from tensors in place, NHWC: 16-bit ones,
## or float32 ones, of which the copy engine leaves TF32's bits.
##
## Data (forward, data gradient): m = place, n = target channel, k = blocks of channels of tap after tap. The data
## gradient of a stride has phases, one after another, whose places have neighbours a stride away.
## Weights: m = target channel, n = blocks of 64 source channels of tap after tap, k = place.
##
## One warp copies and the others multiply. The copying warp tells the copy engine (TMA) boxes of two tensor maps: it
## gathers the places of a tap by itself, stores zeros for those outside, and swizzles. A slice of local memory is
## handed over by two barriers: ``full`` counts bytes that arrived, ``empty`` warps that have read. Work groups stay:
## the copies of the next tile are in flight while a tile's sums leave. What the epilogue reads (a residual, ``saved``) comes
## as further slices behind those of a tile's sum: 128 bytes of columns of all its rows, which results replace on their way out.
##
## bm, bn   tile of a work group; each group of four warps multiplies 64 rows by all columns
## turns    each of two groups of four warps has tiles of its own: one multiplies while the other's sums leave
## stages   slices in local memory
## split    parts of the sum over k, which end in the workspace
## fixup    work groups of this launch add them, 32 columns after 32 columns; see ``parts.cl.mako``
##
## A name in capitals is a number of the geometry (``numbers`` of ``tiling.py``), which is an argument of the kernel. Compiled
## are the tile, and what of a geometry decides code: blocks of channels that are not full, a ragged last tile, and the taps of phases.
##
## Sources: NVIDIA, PTX ISA, sections on cp.async.bulk.tensor, mbarrier and wgmma.
<%
import itertools
t, geo = tiling.tile, tiling.geometry
phases, many = tiling.phases, len(tiling.phases) > 1
deep = len(tiling.axes) > 2
empty = t.split > min(tiling.slices) or not min(tiling.slices)
data = tiling.data
stage_bytes, a_bytes, stages = tiling.stage_bytes, tiling.a_bytes, t.stages
tensors = [("A", "a + A_AT"), ("B", "b + B_AT"), *((name.upper(), name) for name in tiling.read_behind if tiling.slices_behind)]
warps = t.wm * 4
# The sums that a work item has of 64 rows, and blocks of 64 rows of a group of warps.
sums, row_blocks = t.frag_n * 4, t.bm // 64 if t.turns else 1
m_end = "PLACES" if data else "TARGET"
unit = tiling.row_bytes
columns = t.bn // 32
lines = -(-t.bn * tiling.itemsize // 128)
slope, summed = tiling.problem.masked, tiling.summed
# A word of a row of results is two 16-bit ones or a float32 one; a warp's lanes hold a row of ``chunk`` columns.
wide = tiling.partial or tiling.itemsize == 4
of_word, word, vector = (1, "float", "float4") if wide else (2, "uint", "uint4")
run, chunk = 4 * of_word, 32 * of_word
reads, behind = tiling.read_behind, tiling.slices_behind
# Rows are apart, or swizzled in slices, so that neither a row's words nor those of the lanes that hold a fragment meet in a bank.
pitch = 32 if behind else tiling.row_pitch
area = 32 * t.bm if behind else 8 * pitch
word_of = {name: area * i for i, name in enumerate(reads)}
result_of = area * (tiling.areas - 1) if set(reads) <= {"saved"} else 0
def at_word(row, word):
    """OpenCL expression: a word of one of a warp's eight rows in an area."""
    return f"({row}) * 32 + (({word}) ^ ({row}) * 4)" if behind else f"({row}) * {pitch} + {word}"
in_place, tables = t.norm_in_place, tiling.table_columns
slice_table = f"{tiling.tables_at} + {0 if emulate else '(bar - bars)'} * {tiling.table_bytes // 16}"
rows_bytes = 64 * unit
tile_sums = t.bm * t.bn // 4
box = tiling.gathered
boxes = tiling.column_boxes
box_bytes = tiling.b_box_bytes
# Boxes that are outside are slow, all work groups' together: the last tile's columns begin earlier, and are not written twice.
ragged = data and geo.m > t.bn and geo.m % t.bn
inside = "" if data and geo.m >= t.bn else " & n < TARGET"
grouped = geo.groups > 1
weights_part = ("(part * GROUPS + group)" if grouped else "part") if tiling.partial else "group" if grouped else "0"
in_source = "group * SOURCE + " if grouped else ""
in_group = "group * TARGET + " if grouped else ""
sbo_a, sbo_b = 8 * unit, 8 * tiling.b_row_bytes
k_a, k_b = (32 if data else 2048), (16 * tiling.b_row_bytes if tiling.transposed_weights or not data else 32)
FIELDS = ("taps", "tap0", "offset", "first")
def of(name, axis=0):
    """A number of the tile's phase, along (d, h, w)."""
    if not many:
        return "SLICES" if name == "slices" else f"{name.upper()}_{'DHW'[axis]}"
    if name == "slices":
        return "PHASES[phase * 13] * BLOCKS"
    if name == "count":
        step = geo.out_step[axis]
        return f"((TARGET_{'DHW'[axis]} + {step - 1} - {of('first', axis)}) / {step})"
    return f"PHASES[phase * 13 + {1 + 3 * FIELDS.index(name) + axis}]"
def gather(tensor, to, channel, offsets, copy="COPY_IM2COL"):
    """Statement: copies a box of a map from the place (image, d, h, w) on, of pixels that lie (d, h, w) from it."""
    place, offsets = (["w", "h", "d"], offsets[::-1]) if deep else (["w", "h"], offsets[:0:-1])
    return f"{copy}{'3' if deep else ''}({', '.join([tensor, to, channel, *place, 'image', *offsets, 'full'])});"
def numbers(phase):
    return (phase.volume, *phase.taps, *phase.tap0, *phase.offset, *phase.first)
def over(name, axis):
    """OpenCL expression: a variable divided by the phase's taps along an axis."""
    return f"{name} / {of('taps', axis)}" if many else f"DIVIDED({name}, {of('taps', axis)})"
%>\
% if behind:
% if not emulate:
#define COPY_BEHIND COPY_IM2COL
#define COPY_BEHIND3 COPY_IM2COL3
% endif
% endif
#define LBO 8192
#define SBO ${sbo_a}
#define B_LBO ${box_bytes}
#define B_SBO ${sbo_b}
% if many:
// Of each phase: taps, then along d, h and w taps, the first tap, how far it reads, the first place that is written.
constant int PHASES[${13 * len(phases)}] = {${", ".join(str(n) for phase in phases for n in numbers(phase))}};
% endif
<%def name="tile_of()">\
    uint rest = tile, next = DIVIDED(rest, N_TILES);
    const int n_tile = rest - next * N_TILES;
    rest = next, next = DIVIDED(rest, M_TILES);
    const int m_tile = rest - next * M_TILES;
% if t.split > 1:
    rest = next, next = DIVIDED(rest, SPLIT);
    const int part = rest - next * SPLIT;
% endif
% if many and grouped:
    rest = next, next = DIVIDED(rest, GROUPS);
    const int group = rest - next * GROUPS, phase = next;
% elif many or grouped:
    const int ${"phase" if many else "group"} = next;
% endif
    const int m0 = m_tile * ${t.bm}, n0 = ${f"min(n_tile * {t.bn}, TARGET - {t.bn})" if ragged else f"n_tile * {t.bn}"};
% if t.split > 1:
    // Part p begins at slice slices p / SPLIT.
    const uint slices = ${of("slices")}, share = DIVIDED(slices, SPLIT);
    const uint spare = slices - share * SPLIT, before = spare * part, until = before + spare;
    const int begin = share * part + DIVIDED(before, SPLIT), end = share * (part + 1) + DIVIDED(until, SPLIT);
% else:
    const int begin = 0, end = ${of("slices")};
% endif
</%def>
<%def name="start_of(place, steps=('STEP_D + LOW_D', 'STEP_H + LOW_H', 'STEP_W + LOW_W'))">\
      const int from = ${place}, image = DIVIDED(from, PIXELS), pixel = from - image * PIXELS, line = DIVIDED(pixel, COUNT_W);
% if deep:
      const int frame = DIVIDED(line, COUNT_H), d = frame * ${steps[0]};
% endif
      const int h = ${"(line - frame * COUNT_H)" if deep else "line"} * ${steps[1]}, w = (pixel - line * COUNT_W) * ${steps[2]};
</%def>
<%def name="tap_of(kind)">\
% if deep:
      const int taps_h = ${over("tap", 2)};
      ${kind} kz = ${over("taps_h", 1)}, ky = taps_h - kz * ${of("taps", 1)}, kx = tap - taps_h * ${of("taps", 2)};
% else:
      ${kind} ky = ${over("tap", 2)}, kx = tap - ky * ${of("taps", 2)};
% endif
</%def>
<%def name="first_copies()">\
% if data:
      // The slice's block of channels and its tap, of which the next slice has the next.
      int tap = DIVIDED(begin, BLOCKS), block = begin - tap * BLOCKS;
${tap_of("int")}\
% endif
</%def>
<%def name="copies()">\
% if data:
      const int channel = block * ${t.bk};
      ${gather("MAP_A", "at", f"{in_source}channel", [f"{of('offset', axis)} + k{'zyx'[axis]} * SPREAD_{'DHW'[axis]}" for axis in range(3)])}
% if tiling.transposed_weights or tiling.rewritten_weights:
      const int kernel_tap = (${f"(kz * TAP_STEP_D + {of('tap0', 0)}) * KERNEL_H + " if deep else ""}ky * TAP_STEP_H + ${of('tap0', 1)}) * KERNEL_W + kx * TAP_STEP_W + ${of('tap0', 2)};
% endif
% if tiling.transposed_weights:
#pragma unroll
      for (int i = 0; i < ${boxes}; ++i)
        COPY_BOX3(MAP_B, at + ${a_bytes} + i * ${box_bytes}, n0 + i * 64, kernel_tap, ${in_source}channel, full);
% else:
      COPY_BOX3(MAP_B, at + ${a_bytes}, channel, ${"kernel_tap" if tiling.rewritten_weights else "tap"}, ${in_group}n0, full);
% endif
      if (++block == BLOCKS) {
        block = 0, ++tap;
        if (++kx == ${of("taps", 2)}) kx = 0, ++ky;
% if deep:
        if (ky == ${of("taps", 1)}) ky = 0, ++kz;
% endif
      }
% else:
#pragma unroll
      for (int i = 0; i < ${t.wm}; ++i)
        COPY_BOX2(MAP_A, at + i * ${rows_bytes}, ${in_group}m0 + i * 64, slice * 64, full);
${start_of("slice * 64")}\
#pragma unroll
      for (int i = 0; i < ${boxes}; ++i) {
        const int q = min(n0 / ${tiling.block} + i, LAST_BOX), tap = DIVIDED(q, BLOCKS);
${tap_of("const int")}\
        ${gather("MAP_B", f"at + {a_bytes} + i * {box_bytes}", f"{in_source}(q - tap * BLOCKS) * {tiling.block}", [f"k{'zyx'[axis]} * SPREAD_{'DHW'[axis]}" for axis in range(3)])}
      }
% endif
</%def>
<%def name="bytes_of_table(left)">\
          const int table_bytes = clamp(${left}, 0, ${tables}) * 4;
</%def>
<%def name="copy_table(channel)">\
          if (table_bytes > 0) {
#pragma unroll
            for (int i = 0; i < 3; ++i) COPY_RUN(${slice_table} + i * ${4 * tables}, norm + i * NORM_CHANNELS + ${channel}, table_bytes, full);
          }
</%def>
<%def name="copies_behind()">\
      {
% if tables:
${copy_table(f"{in_group}n0 + slice * {chunk}")}\
% endif
${start_of("m0", geo.out_step)}\
% for i, name in enumerate(reads):
        ${gather(f"MAP_{name.upper()}", f"at + {i * area * 4}", f"{in_group}n0 + slice * {chunk}", [of("first", axis) if many else "0" for axis in range(3)], "COPY_BEHIND")}
% endfor
      }
</%def>\
<%
# x is A's rows, of which a warp loads its own into registers, normalises them there and multiplies from there.
steps_k = unit // 32
%>\
<%def name="rows_of_norm()">\
% if in_place:
% if geo.c % t.bk:
      int norm_block = begin - DIVIDED(begin, BLOCKS) * BLOCKS;
% endif
      const uint norm_from = a_from + (warp % 4 * 16 + lane % 16) * ${unit};
% endif
</%def>\
<%def name="multiply_normed(at)">\
% if geo.c % t.bk:
        const int norm_c = norm_block * ${t.bk} + lane % 4 * ${of_word};
% endif
        local const float *norm_table = (local const float *)(memory + ${slice_table}) + lane % 4 * ${of_word};
% for k in range(steps_k):
        {
          // A lane's numbers are of the same ${"four" if tiling.itemsize == 2 else "two"} channels of two rows.
          uint x[4];
<% of_step, apart, number = (16, 8, "float2") if tiling.itemsize == 2 else (8, 4, "float") %>\
% for i in (0, 1):
% for row, name in enumerate(("mean", "scale", "shift")):
          const ${number} ${name}${i} = *(local const ${number} *)(norm_table + ${row * tables + k * of_step + i * apart});
% endfor
% endfor
          WGMMA_WAIT(${steps_k - 1});
          LDMATRIX(x, ${at} + norm_from + ((${2 * k} + lane / 16) ^ ${"lane % 8" if unit == 128 else "lane / 2 % 4"}) * 16);
% for i in range(4):
          x[${i}] = ${f"-(uint)(norm_c + {k * of_step + i // 2 * apart} < SOURCE) & " if geo.c % t.bk else ""}normed_${"pair" if tiling.itemsize == 2 else "word"}(x[${i}], mean${i // 2}, scale${i // 2}, shift${i // 2});
% endfor
          WGMMA_BEGIN();
          WGMMA_ROWS(sum, x, ${at} + ${a_bytes + k * k_b}, ${"add" if k == 0 else 1});
          WGMMA_COMMIT();
        }
% endfor
</%def>\
<%def name="multiply(at)">\
% if in_place:
${multiply_normed(at)}\
% if geo.c % t.bk:
        if (++norm_block == BLOCKS) norm_block = 0;
% endif
% else:
% for k, i in itertools.product(range(unit // 32 if data else t.bk // 16), range(row_blocks)):
      WGMMA(sum + ${i * sums}, ${at} + a_from + ${i * rows_bytes + k * k_a}, ${at} + ${a_bytes + k * k_b}, ${"add" if k == 0 else 1});
% endfor
% endif
</%def>
<%def name="rows_of(half)">\
% for i in (0, 1):
      const int result${i} = from_row + ${half * 8 + i * 4} + lane / 8;
% if many:
      const int line${i} = DIVIDED(result${i}, COUNT_W), image${i} = DIVIDED(result${i}, PIXELS), column${i} = result${i} - line${i} * COUNT_W;
% if deep:
      const int plane${i} = DIVIDED(line${i}, COUNT_H), row${i} = line${i} - plane${i} * COUNT_H, depth${i} = plane${i} - image${i} * COUNT_D;
      const int frame${i} = image${i} * TARGET_D + depth${i} * ${geo.out_step[0]} + ${of("first", 0)};
% else:
      const int row${i} = line${i} - image${i} * COUNT_H, frame${i} = image${i};
% endif
      const int exists${i} = result${i} < ${m_end} & row${i} < ${of("count", 1)} & column${i} < ${of("count", 2)}${f" & depth{i} < {of('count', 0)}" if deep else ""};
      const OUT_INDEX place${i} = (OUT_INDEX)(frame${i} * TARGET_H + row${i} * ${geo.out_step[1]} + ${of("first", 1)}) * TARGET_W + column${i} * ${geo.out_step[2]} + ${of("first", 2)};
% else:
      const int exists${i} = result${i} < ${m_end}, place${i} = ${"result0 + 4" if i else "result0"};
% endif
% endfor
</%def>
<%def name="columns_of(c, count, first)">\
<% lanes = min(chunk, count * 8 - c * chunk) // run; narrow = f" & lane % 8 < {lanes}" if lanes < 8 else "" %>\
        // This lane's ${run} neighbouring columns, of two rows.
        const int n = n0 + ${first} + ${c * chunk} + lane % 8 * ${run};
% if data:
        const int inside = 1${inside}${f" & n >= n_tile * {t.bn}" if ragged else ""}${narrow};
        const OUT_INDEX to0 = ${f"part * (OUT_INDEX)PART_ELEMENTS + " if tiling.partial else ""}(OUT_INDEX)place0 * TARGET_ALL + ${in_group}n;
        const OUT_INDEX to1 = to0 + ${"(place1 - place0)" if many else 4} * TARGET_ALL;
% else:
        const int q = n / ${tiling.block}, tap = DIVIDED(q, BLOCKS), from = (q - tap * BLOCKS) * ${tiling.block} + n % ${tiling.block};
        const int inside = tap < TAPS & from < SOURCE${narrow};
% for i in (0, 1):
        const OUT_INDEX to${i} = ((OUT_INDEX)${weights_part} * TARGET + result${i}) * COLUMNS + tap * SOURCE + from;
% endfor
% endif
% for i in (0, 1):
        const int kept${i} = exists${i} & inside;
% endfor
</%def>
<%def name="read_rows(half, c, count, first)">\
        // What the epilogue reads for these rows and columns; zeros for what is outside.
        {
${rows_of(half)}\
${columns_of(c, count, first)}\
% for operand in reads:
% for i in (0, 1):
          *(local uint4 *)(rows + ${word_of[operand]} + (lane / 8 + ${i * 4}) * ${pitch} + lane % 8 * 4) = kept${i} ? *(global const uint4 *)(${operand} + to${i}) : (uint4)(0);
% endfor
% endfor
        }
        warp_meets();
</%def>
<%def name="weights_of_rows(half)">\
% if summed and not slope:
      // The share and the weight of these rows, when they are merged with those before.
      const int real_rows${half} = clamp(${m_end} - (from_row + ${half * 8}), 0, 8), before${half} = ${f"before0 + real_rows0" if half and behind else "warp_rows"};
      const float scale${half} = 1.0f / max(real_rows${half}, 1), share${half} = real_rows${half} / (float)max(before${half} + real_rows${half}, 1), weight${half} = before${half} * share${half};
% endif
</%def>
<%def name="finish(name, halves, c, count, first)">\
#pragma unroll
        for (int j = 0; j < ${min(chunk, count * 8 - c * chunk) // 8}; ++j) {
% if not tiling.partial:
% if tiling.problem.bias or slope:
          const int n = ${"n" if geo.m >= t.bn else "min(n"}0 + ${first} + ${c * chunk} + j * 8 + lane % 4 * 2${"" if geo.m >= t.bn else ", TARGET - 2)"};
% endif
          const int channel = ${"n - DIVIDED(n, CHANNELS) * CHANNELS" if t.pixels > 1 and tiling.problem.bias else in_group + "n" if tiling.problem.bias or slope else "0"};
% endif
% for half in halves:
          {
            const int place = ${half * 256 if behind else 0} + ${at_word("lane / 4", "j * 8 + lane % 4 * 2" if wide else "j * 4 + lane % 4")}, i = (j + ${c * chunk // 8}) * 4 + ${half * 2};
            float2 v = (float2)(${name}[i], ${name}[i + 1]);
% if not tiling.partial:
            v = finished_pair(OUT_ARGS, v, channel, rows + place${", table + j * 8 + lane % 4 * 2" if slope and behind else ", norm + channel" if slope else ""});
% endif
            ${f"*(local float2 *)(rows + place + {result_of}) = v" if wide else f"rows[place + {result_of}] = NARROW_PAIR(v.x, v.y)"};
          }
% endfor
        }
% if behind:
        VISIBLE_TO_WGMMA();  // what was written to a slice comes before the copies that follow
% endif
        warp_meets();
</%def>
<%def name="store(half, c, count, first)">\
        {
${rows_of(half)}\
${columns_of(c, count, first)}\
% for i in (0, 1):
          {
            local ${vector} *results = (local ${vector} *)(rows + ${result_of + (half * 256 if behind else 0)} + ${at_word(f"(lane / 8 + {i * 4})", "lane % 8 * 4")});
            if (kept${i}) *(global ${vector} *)(${"out + PARTS_AT / 4" if tiling.partial else "out"} + to${i}) = *results;
% if summed and many:
            else *results = (${vector})(0);
% endif
          }
% endfor
        }
</%def>
<%def name="write_columns(name, count, first, block='wg')">\
<% chunks = -(-count * 8 // chunk) %>\
    {
    const int from_row = m0 + ${block} * 64 + warp % 4 * 16;
% if behind:
${weights_of_rows(0)}\
${weights_of_rows(1)}\
% for c in range(chunks):
      {
% if not emulate:
        barrier_wait(bar, parity);
% else:
        const int slice = ${c};
        barrier(CLK_LOCAL_MEM_FENCE);
% if tables:
${bytes_of_table(f"TARGET - n0 - slice * {chunk}")}\
% endif
${copies_behind()}\
        barrier(CLK_LOCAL_MEM_FENCE);
% endif
        local ${word} *rows = (local ${word} *)(memory + at) + (wg * 64 + warp % 4 * 16) * 32;
% if tables:
        local const float *table = (local const float *)(memory + ${slice_table});
% endif
${finish(name, (0, 1), c, count, first)}\
% for half in (0, 1):
${store(half, c, count, first)}\
% endfor
% if summed:
% if many:
        VISIBLE_TO_WGMMA();
        warp_meets();
% endif
% for half in (0, 1):
${sum_rows(half, c, first, count)}\
% endfor
% endif
        warp_meets();
% if not emulate:
        if (lane == 0) barrier_release(bar + 8);
${next_slice()}\
% endif
      }
% endfor
% if summed:
      warp_rows ${"+= 16" if slope else "= before1 + real_rows1"};
% endif
% else:
    // Eight rows of a warp pass through local memory of its own: its lanes have pairs of neighbouring columns of many rows,
    // and store ${run} of a row, so that a row's lanes store whole lines. What is added or saved comes the other way.
% for half in (0, 1):
    {
${weights_of_rows(half)}\
% for c in range(chunks):
      {
% if reads:
${read_rows(half, c, count, first)}\
% endif
${finish(name, (half,), c, count, first)}\
${store(half, c, count, first)}\
% if summed:
% if many:
        warp_meets();
% endif
${sum_rows(half, c, first, count)}\
% endif
        warp_meets();
      }
% endfor
% if summed:
      warp_rows += ${"8" if slope else f"real_rows{half}"};
% endif
    }
% endfor
% endif
    }
</%def>
<%def name="next_slice()">\
        at += ${stage_bytes};
        bar += 16;
        if (at == ${stage_bytes * stages}) {
          at = 0;
          bar = bars;
          parity ^= 1;
        }
</%def>
<%def name="sum_rows(half, c, first, count)">\
<% before = f"warp_rows + {half * 8 if behind else 0}" if slope else f"before{half}" %>\
        // Each lane sums ${"a column" if of_word == 1 else "two columns"} of the warp's eight rows${"" if slope else " about the first row's value"}, and merges that with what came before.
        if (lane < ${min(32, (count * 8 - c * chunk) // of_word)}${"" if slope else f" & real_rows{half} > 0"}) {
          local float2 *column = warp_sums + warp * ${t.bn} + ${first} + ${c * chunk} + lane * ${of_word};
% for e in range(of_word):
          float sum${e} = 0, squares${e} = 0${f", mean{e} = table[lane * {of_word} + {e}]" if slope and behind else f", mean{e} = norm[{in_group}min(n0 + {first} + {c * chunk} + lane * {of_word} + {e}, TARGET - 1)]" if slope else f", origin{e}"};
% endfor
#pragma unroll
          for (int r = 0; r < 8; ++r) {
            const int word = ${half * 256 if behind else 0} + ${at_word("r", "lane")};
% for name, begin in (("v", result_of), *([("x", word_of["saved"])] if slope else [])):
% if of_word == 1:
            const float ${name}0 = rows[${begin} + word];
% else:
            const uint ${name}_pair = rows[${begin} + word];
            const float ${name}0 = widen((ushort)${name}_pair), ${name}1 = widen((ushort)(${name}_pair >> 16));
% endif
% endfor
% for e in range(of_word):
% if slope:
            sum${e} += v${e};
            squares${e} = fma(v${e}, x${e} - mean${e}, squares${e});
% else:
            if (r == 0) origin${e} = v${e};
            const float d${e} = v${e} - origin${e};
            if (r < real_rows${half}) sum${e} += d${e}, squares${e} = fma(d${e}, d${e}, squares${e});
% endif
% endfor
          }
% for e in range(of_word):
          {
            const float2 sums = column[${e}];
% if slope:
            column[${e}] = ${before} ? (float2)(sums.x + sum${e}, sums.y + squares${e}) : (float2)(sum${e}, squares${e});
% else:
            const float mean = fma(sum${e}, scale${half}, origin${e}), delta = mean - sums.x;
            squares${e} = fmax(fma(sum${e} * -scale${half}, sum${e}, squares${e}), 0.0f);
            column[${e}] = ${before} ? (float2)(fma(delta, share${half}, sums.x), sums.y + fma(delta * delta, weight${half}, squares${e})) : (float2)(mean, squares${e});
% endif
          }
% endfor
        }
</%def>\
<%def name="leave_sums(first, count)">\
    // The warps' sums of each column are merged: means by their numbers of rows, squared distances about the common mean.
    if (lane == 0) rows_of_warps[warp] = warp_rows;
    warps_meet(${t.items});
    for (int c = tid; c < ${count}; c += ${t.items}) {
      const int n = n0 + ${first} + c;
      if (n < TARGET${f" & n >= n_tile * {t.bn}" if ragged else ""}) {
        const int row = ${"m_tile" if t.fixup else "same_columns ? DIVIDED(first, N_TILES) : m_tile"};
        global float *to = channel_parts + SUMS_AT + (long)(row${"" if not many else " + phase * M_TILES" if t.fixup else " + phase * (same_columns ? DIVIDED(step, N_TILES) : M_TILES)"}) * (${2 if slope else 3} * TARGET_ALL) + ${in_group}n;
        local const float2 *of_warps = warp_sums + ${first} + c;
        float sum = 0, squares = 0;
% if slope:
#pragma unroll
        for (int i = 0; i < ${warps}; ++i) sum += of_warps[i * ${t.bn}].x, squares += of_warps[i * ${t.bn}].y;
        to[0] = sum;
        to[TARGET_ALL] = squares;
% else:
        const float origin = of_warps[0].x;
        int count = 0;
#pragma unroll
        for (int i = 0; i < ${warps}; ++i) {
          count += rows_of_warps[i];
          if (rows_of_warps[i] > 0) sum += rows_of_warps[i] * (of_warps[i * ${t.bn}].x - origin);
        }
        const float mean = sum / count;
#pragma unroll
        for (int i = 0; i < ${warps}; ++i) {
          const float delta = of_warps[i * ${t.bn}].x - origin - mean;
          if (rows_of_warps[i] > 0) squares += fma(rows_of_warps[i] * delta, delta, of_warps[i * ${t.bn}].y);
        }
        to[0] = count;
        to[TARGET_ALL] = origin + mean;
        to[2 * TARGET_ALL] = squares;
% endif
      }
    }
    warps_meet(${t.items});
    warp_rows = 0;
</%def>\
<%def name="write_sums()">\
% if t.fixup:
    const int whole = (${("(phase * GROUPS + group)" if grouped else "phase") if many else "group" if grouped else "0"} * M_TILES + m_tile) * N_TILES + n_tile;
    global float4 *parts = (global float4 *)(workspace + PARTS_AT) + (long)whole * (SPLIT * ${tile_sums}) + tid;
#pragma unroll
    for (int i = 0; i < ${t.frag_n}; ++i)
      parts[part * ${tile_sums} + i * ${t.items}] = (float4)(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]);
    warps_meet(${t.items});
    if (tid == 0) arrive(states + whole, MAGIC);
    for (;;) {
      if (tid == 0) *shared = take(states + whole, MAGIC, SPLIT, polls);
      warps_meet(${t.items});
      const int columns = *shared;
      warps_meet(${t.items});
      if (columns < 0) break;
      for (int block = columns; block < (polls ? columns + 1 : ${columns}); ++block) {
      float s[16] = {0};
#pragma unroll 4
      for (int i = 0; i < SPLIT; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float4 v = load_written(parts + i * ${tile_sums} + (block * 4 + j) * ${t.items});
          s[j * 4] += v.x, s[j * 4 + 1] += v.y, s[j * 4 + 2] += v.z, s[j * 4 + 3] += v.w;
        }
      }
${write_columns("s", 4, "block * 32")}\
% if summed:
${leave_sums("block * 32", 32)}\
% endif
      }
      if (!polls) break;
    }
% else:
% for i in range(row_blocks):
${write_columns(f"(sum + {i * sums})", t.frag_n, 0, i if t.turns else "wg")}\
% endfor
% if summed:
    const uint next_tile = tile + step, next_row = DIVIDED(next_tile, N_TILES);
    if (!same_columns | next_tile >= TILES${f" || DIVIDED(next_row, M_TILES) != {'phase * GROUPS + group' if many and grouped else 'phase' if many else 'group'}" if many or grouped else ""}) {
${leave_sums(0, t.bn)}\
    }
% endif
% endif
</%def>
<%def name="begin_sums()">\
% if t.fixup:
  global ulong *states = (global ulong *)(workspace + STATES_AT);
  const int polls = TILES <= step ? POLLS : 0;
% endif
% if summed:
% if not t.fixup:
  // A work group whose tiles all have the same columns merges their sums before it leaves them.
  const int same_columns = step == DIVIDED(step, N_TILES) * N_TILES & M_TILES * N_TILES >= step;
% endif
  int warp_rows = 0;
% endif
</%def>
% if not tiling.partial:
% if not wide:
#define NARROW_PAIR(low, high) ${tiling.narrow_pair}
% endif
// The epilogue of two neighbouring columns; ``at`` is where the words of what it reads are.
<%def name="pair_of(operand)">\
<% at = f"at[{word_of[operand]}]" if operand in reads else "" %>\
${"(float2)(0)" if not at else f"*(local const float2 *)&{at}" if wide else f"(float2)(widen((ushort){at}), widen((ushort)({at} >> 16)))"}\
</%def>\
<% table_step = tables if behind else "NORM_CHANNELS" %>\
inline float2 finished_pair(OUT_PARAMS, float2 v, int channel, local const ${word} *at${f', {"local" if behind else "global"} const float *table' if slope else ""}) {
  EPILOGUE(float2, v, LOAD2(bias + channel), ${pair_of("residual")}, ${pair_of("out")})
% if slope:
  const float2 x = ${pair_of("saved")}, mean = *(${"local" if behind else "global"} const float2 *)table;
  const float2 scale = *(${"local" if behind else "global"} const float2 *)(table + ${table_step}), shift = *(${"local" if behind else "global"} const float2 *)(table + 2 * ${table_step});
  v.x = norm_gradient(v.x, fma(x.x - mean.x, scale.x, shift.x));
  v.y = norm_gradient(v.y, fma(x.y - mean.y, scale.y, shift.y));
% endif
  return v;
}
% endif
kernel __attribute__((reqd_work_group_size(${t.items + (0 if emulate else 32)}, 1, 1)))
void product(global const ushort *restrict a, global const ushort *restrict b, global uchar *workspace, OUT_PARAMS${", global float *channel_parts" if summed else ""}${", global const float *norm" if in_place else ""} NUMBERS) {
  local uint4 area[${(tiling.local_bytes + 15) // 16}] __attribute__((aligned(1024)));
  local uchar *memory = (local uchar *)area;
  local int *shared = (local int *)(memory + ${(stage_bytes + 16) * stages});
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int first = get_group_id(0), step = get_num_groups(0);
% if not behind:
  local ${word} *rows = (local ${word} *)(memory + ${tiling.rows_at}) + warp * ${tiling.row_words};
% endif
% if summed:
  local float2 *warp_sums = (local float2 *)(memory + ${tiling.sums_at});
  local int *rows_of_warps = (local int *)(memory + ${tiling.sums_at + warps * t.bn * 8});
% endif
% if not emulate:
  const uint base = LOCAL_BASE(memory), bars = base + ${stage_bytes * stages};
  if (tid == 0) {
#pragma unroll
    for (int i = 0; i < ${stages}; ++i) {
      barrier_init(bars + i * 16, 1);
      barrier_init(bars + i * 16 + 8, ${4 if t.turns else warps});
    }
    barriers_visible();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warp == ${warps}) {
    if (lane == 0) {
      global ulong *maps = (global ulong *)(workspace + MAPS_AT + get_group_id(0) * ${tiling.maps_each});
% for i, word in enumerate(words):
      maps[${i}] = ${word};
% endfor
% for i, (name, tensor) in enumerate(tensors):
      map_address(maps + ${i * 16}, ${tensor});
      map_visible(maps + ${i * 16});
      const ulong MAP_${name} = (ulong)(maps + ${i * 16});
% endfor
      uint at = 0, bar = bars, parity = 1;
      for (int tile = first; tile < TILES; tile += step) {
${tile_of()}\
% if data:
${start_of("m0")}\
${first_copies()}\
% endif
        for (int slice = begin; slice < end; ++slice) {
          barrier_wait(bar + 8, parity);
          const uint full = bar;
% if in_place:
${bytes_of_table(f"SOURCE - block * {t.bk}")}\
% endif
          barrier_expect(full, ${a_bytes + boxes * box_bytes}${" + 3 * table_bytes" if in_place else ""});
% if in_place:
${copy_table(f"{in_source}block * {t.bk}")}\
% endif
${copies()}\
${next_slice()}\
        }
% if behind:
        for (int slice = 0; slice < ${lines}; ++slice) {
          barrier_wait(bar + 8, parity);
          const uint full = bar;
% if tables:
${bytes_of_table(f"TARGET - n0 - slice * {chunk}")}\
% endif
          barrier_expect(full, ${len(reads) * area * 4}${" + 3 * table_bytes" if tables else ""});
${copies_behind()}\
${next_slice()}\
        }
% endif
      }
    }
  } else {
    const int wg = warp / 4;
    const uint a_from = ${0 if t.turns else f"wg * {rows_bytes}"};
${begin_sums()}\
    uint at = 0, bar = bars, parity = 0;
    float sum[${sums * row_blocks}];
#pragma unroll
    for (int i = 0; i < ${sums * row_blocks}; ++i) sum[i] = 0;
% if t.turns:
    // Tiles are copied one after another, whoever multiplies them: ``slot`` is a tile's first slice of all.
    for (int tile = first + wg * step, slot = wg * SLICES; tile < TILES; tile += step * 2, slot += SLICES * 2) {
      at = slot % ${stages} * ${stage_bytes}, bar = bars + slot % ${stages} * 16, parity = slot / ${stages} & 1;
      // The other group has seen its last slice: a barrier's parity tells one of two passes through the slices.
      if (slot > 0) turn_begins(wg);
% else:
    for (int tile = first; tile < TILES; tile += step) {
% endif
${tile_of()}\
      uint last = 0;
      int add = 0;
% if t.fixup or empty or not data:
      // Nothing of the last tile's sums stays alive while parts are added, or while columns of weights are computed.
#pragma unroll
      for (int i = 0; i < ${sums * row_blocks}; ++i) sum[i] = 0;
% endif
${rows_of_norm()}\
      for (int left = end - begin; left > 0; --left) {
        barrier_wait(bar, parity);
% if t.turns:
        if (left == 1 & tile + step < TILES) turn_ends(wg);
% endif
% if in_place:
${multiply("at")}\
        // The slice before was waited for by the last step.
        if (lane == 0 & add) barrier_release(last);
% else:
        WGMMA_BEGIN();
${multiply("at")}\
        WGMMA_COMMIT();
        if (add) {
          WGMMA_WAIT(1);
          if (lane == 0) barrier_release(last);
        }
% endif
        add = 1;
        last = bar + 8;
${next_slice()}\
      }
% for i in range(row_blocks):
      wgmma_finish(sum + ${i * sums});
% endfor
      if (lane == 0${" & add" if empty else ""}) barrier_release(last);
${write_sums()}\
    }
  }
% else:
% if in_place:
  SCRATCH(${t.items});
% endif
  const int wg = warp / 4;
  const uint a_from = ${0 if t.turns else f"wg * {rows_bytes}"}, at = 0, full = 0;
${begin_sums()}\
% for name, tensor in tensors:
  global const void *MAP_${name} = ${tensor};
% endfor
  float sum[${sums * row_blocks}];
  for (int tile = first; tile < TILES; tile += step) {
${tile_of()}\
${rows_of_norm()}\
${first_copies()}\
    for (int slice = begin; slice < end; ++slice) {
      const int add = slice > begin;
% if data:
${start_of("m0")}\
% endif
% if in_place:
${bytes_of_table(f"SOURCE - block * {t.bk}")}\
${copy_table(f"{in_source}block * {t.bk}")}\
% endif
${copies()}\
      barrier(CLK_LOCAL_MEM_FENCE);
${multiply("at")}\
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (begin == end) {
      for (int i = 0; i < ${sums * row_blocks}; ++i) sum[i] = 0;
    }
${write_sums()}\
  }
% endif
}
