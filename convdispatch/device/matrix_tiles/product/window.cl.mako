## Two windows in local memory hold the source pixels that a tile's taps read, for a block of channels each: one is
## multiplied while the other is copied. A part of ``product.cl.mako``.
##
## The distance in rows from a tap's first row to the window's first row.
<%def name="shift_of_tap()">\
<%
k = geo.phases[0].taps
stride = (win.size[1] * win.size[2], win.size[2], 1)
%>\
    const int shift = ${win.shifts[0]}${"".join(f" + ({divided}) * ({geo.spread[axis] * stride[axis]})" for axis, divided in enumerate((f"tap / {k[1] * k[2]}", f"tap / {k[2]} % {k[1]}", f"tap % {k[2]}")) if k[axis] > 1)};
</%def>
## Copies the window of the first block of channels.
<%def name="first()">\
% if t.window:
  if (begin < end) {
% for i in range(rows_w):
${part("copies.cl.mako", number=i, slice=f"(begin / {volume})", stage="0")}\
% endfor
  }
  uint window_at = 0;
  int tap = 0, block = begin / ${volume};
% endif
</%def>
## Copies the window of the next block of channels, a piece at each tap.
<%def name="next()">\
% if t.window:
    // From tap 1 on nobody reads the other window any more, so each tap copies a piece of its next content.
    if ((block + 1) * ${volume} < end) {
% for i in range(rows_w):
      if (tap == ${1 + i * span // rows_w})
${part("copies.cl.mako", number=i, slice="(block + 1)", stage=f"({wbytes}u - window_at)")}\
% endfor
    }
% endif
</%def>
## Advances the counters after a tap.
<%def name="turn()">\
% if t.window:
    if (++tap == ${volume}) {
      tap = 0;
      ++block;
      window_at = ${wbytes} - window_at;
    }
% endif
</%def>
