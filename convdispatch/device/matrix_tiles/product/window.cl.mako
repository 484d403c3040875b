## Two windows in local memory hold the source pixels that a tile's taps read, for a block of channels each: one is
## multiplied while the other is copied. A part of ``product.cl.mako``.
##
## The distance in rows from a tap's first row to the window's first row.
<%def name="shift_of_tap()">\
    ${form.split("tap", "TAPS", form.along("t", False), "")}
    const int shift = FIRST_SHIFT${"".join(f" + t{letters[axis]} * SHIFT_{capitals[axis]}" for axis in form.tapped)};
</%def>
## Copies the window of the first block of channels.
<%def name="first()">\
% if t.window:
  uint window_at = 0;
  int tap = 0, block = DIVIDED(begin, TAPS);
  if (begin < end) {
% for i in range(rows_w):
${part("copies.cl.mako", number=i, slice="block", stage="0")}\
% endfor
  }
% endif
</%def>
## Copies the window of the next block of channels, a piece at each tap.
<%def name="next()">\
% if t.window:
    // From tap 1 on nobody reads the other window any more, so each tap copies a piece of its next content.
    if ((block + 1) * TAPS < end) {
% for i in range(rows_w):
      if (tap == ${1 + i * form.span // rows_w})
${part("copies.cl.mako", number=i, slice="(block + 1)", stage=f"({wbytes}u - window_at)")}\
% endfor
    }
% endif
</%def>
## Advances the counters after a tap.
<%def name="turn()">\
% if t.window:
    if (++tap == TAPS) {
      tap = 0;
      ++block;
      window_at = ${wbytes} - window_at;
    }
% endif
</%def>
