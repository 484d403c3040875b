## out = epilogue(scale * tile of the spectrum hat[f, row, slot]): rows complex, then columns half a spectrum to real.
//
// The way back of forward.cl.mako. Rows give the wanted columns alone, columns the wanted pixels alone; what is known
// of real values' spectra is not read. Nothing is written for rows, slots and pixels beyond the last ones.
${p.types}
#define SCALE ((ACC)${repr(p.scale)}f)
#include <convdispatch/output.cl>
kernel __attribute__((reqd_work_group_size(${p.items}, 1, 1)))
void synthesise(global const PAIR *restrict hat, long hat_off, OUT_PARAMS, int row0, int slot0) {
  local PAIR stage[${p.stage_size}];
  const int lid = get_local_id(0), block = get_group_id(0) % ${p.blocks}, line = get_group_id(0) / ${p.blocks};
  const int group = line / ${p.rows}, row = row0 + line % ${p.rows};
  for (int i = lid; i < ${p.slots * p.height}; i += ${p.items}) {
    const int at = i % ${p.slots}, f = i / ${p.slots};
    const bool whole = ${p.whole_text};
    global const PAIR *restrict from = hat + hat_off + ${p.first_frequency("f")} * ${p.frequency_stride}L
        + (long)line * ${p.pitch} + block * ${p.slots} + at;
% for k in range(p.row_size):
% if 2 * k <= p.row_size:
    const PAIR v${k} = from[${k * p.frequency_stride}L];
% else:
    const PAIR v${k} = whole ? from[${k * p.frequency_stride}L] : (PAIR)(v${p.row_size - k}.s0, -v${p.row_size - k}.s1);
% endif
% endfor
    local PAIR *to = stage + at * ${p.slot_pitch} + f * ${p.row_pitch};
${p.row_code}\
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = lid; i < ${p.slots * p.width}; i += ${p.items}) {
    const int at = i / ${p.width}, e = i % ${p.width}, slot = slot0 + block * ${p.slots} + at;
    local const PAIR *from = stage + at * ${p.slot_pitch} + e;
% for k in range(p.height):
    const PAIR v${k} = from[${k * p.row_pitch}];
% endfor
    const long to = ${p.plane_offset_text};
% for text in p.tile_texts:
    ${text}
% endfor
    const bool live = ${p.live_text};
    const int channel = ${p.channel_text};
${p.column_code}\
  }
}
