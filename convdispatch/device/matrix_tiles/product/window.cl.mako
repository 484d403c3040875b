## The source's pixels that a tile's taps read, in local memory once for a block of channels: two windows, of which one is
## multiplied and the other copied. A part of ``product.cl.mako``.
##
## How far a tap's rows are from those of the tap at the places themselves.
<%def name="shift_of_tap()">\
<%
k = geo.phases[0].taps
stride = (win.size[1] * win.size[2], win.size[2], 1)
%>\
    const int shift = ${win.shifts[0]}${"".join(f" + ({divided}) * ({geo.spread[axis] * stride[axis]})" for axis, divided in enumerate((f"tap / {k[1] * k[2]}", f"tap / {k[2]} % {k[1]}", f"tap % {k[2]}")) if k[axis] > 1)};
</%def>
## The first block's.
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
## The next block's, spread over the taps.
<%def name="next()">\
% if t.window:
    // The other window's last reader is done from tap 1 on; the copies are spread over the taps.
    if ((block + 1) * ${volume} < end) {
% for i in range(rows_w):
      if (tap == ${1 + i * span // rows_w})
${part("copies.cl.mako", number=i, slice="(block + 1)", stage=f"({wbytes}u - window_at)")}\
% endfor
    }
% endif
</%def>
## After a tap.
<%def name="turn()">\
% if t.window:
    if (++tap == ${volume}) {
      tap = 0;
      ++block;
      window_at = ${wbytes} - window_at;
    }
% endif
</%def>
