## hat[f, row, slot] = spectrum of a tile of src: columns real to half a spectrum, then rows complex, in one work group.
//
// A row is what the product sums over, slots are its columns: neighbouring slots are contiguous in hat, so a work
// group transforms SLOTS tiles at once and writes that many numbers side by side. Columns are one item's registers,
// the half spectra meet in local memory, rows are one item's registers again. Elements outside the tensor are 0, and
// so are rows and slots beyond the last one.
//
// row0, slot0  first row (in each group) and slot of this part
${p.types}
kernel __attribute__((reqd_work_group_size(${p.items}, 1, 1)))
void analyse(global const REAL *restrict src, global PAIR *restrict hat, long hat_off, int row0, int slot0) {
  local PAIR stage[${p.stage_size}];
  const int lid = get_local_id(0), block = get_group_id(0) % ${p.blocks}, line = get_group_id(0) / ${p.blocks};
  const int group = line / ${p.rows}, row = row0 + line % ${p.rows};
  for (int i = lid; i < ${p.slots * p.width}; i += ${p.items}) {
    const int at = i / ${p.width}, e = i % ${p.width}, slot = slot0 + block * ${p.slots} + at;
    global const REAL *restrict from = src + ${p.plane_offset_text};
% for text in p.tile_texts:
    ${text}
% endfor
    const bool live = ${p.live_text};
% for k in p.column_elements:
    const ACC v${k * p.columns.spread} = ${p.column_guard(k)} ? LOAD(from, ${k * p.column_stride}) : (ACC)0;
% endfor
    local PAIR *to = stage + at * ${p.slot_pitch} + e;
${p.column_code}\
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = lid; i < ${p.slots * p.height}; i += ${p.items}) {
    const int at = i % ${p.slots}, f = i / ${p.slots};
    local const PAIR *from = stage + at * ${p.slot_pitch} + f * ${p.row_pitch};
% for k in range(p.width):
    const PAIR v${k * p.rows_span.spread} = from[${k}];
% endfor
    const bool whole = ${p.whole_text};
    global PAIR *restrict to = hat + hat_off + ${p.first_frequency("f")} * ${p.frequency_stride}L
        + (long)line * ${p.pitch} + block * ${p.slots} + at;
${p.row_code}\
  }
}
