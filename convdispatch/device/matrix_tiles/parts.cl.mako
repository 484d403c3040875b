## Parts of a tile's sums, which work groups of one launch add themselves, always in the parts' order.
##
## A tile has a word of state: how many parts are there, and how many blocks of the tile are taken. Each work group leaves
## its part in the workspace and counts it (``arrive``); whoever finds all of them takes one block after another, adds the
## block's parts and writes the results (``take``). Work groups wait for each other ``POLLS`` times at most, and only where
## all run at once; the last finds every part and never waits, so no order in which they run leaves a block behind.
## The state begins as anything that the workspace held: what lacks ``magic``, 48 bits made from the problem and the
## tile, counts as 0. Whoever takes the last block leaves 0.
##
## magic, split, blocks
#define POLLS 64
// A part is there.
inline void arrive(global ulong *state) {
  for (ulong now = word_load(state);;) {
    const ulong old = word_exchange(state, now, (now >> 16 == ${magic}UL ? now : ${magic}UL << 16) + 1);
    if (old == now) return;
    now = old;
  }
}
// The block to add next, or -1: all are taken, or parts are missing still. Without polls, block 0 stands for all.
inline int take(global ulong *state, int polls) {
  for (;;) {
    const ulong now = word_load(state);
    const int taken = now >> 8 & 255;
    if (now >> 16 != ${magic}UL) return -1;
    if ((now & 255) == ${split}) {
      if (word_exchange(state, now, taken == ${blocks - 1} | polls <= 0 ? 0 : now + 256) == now) return taken;
    } else if (--polls <= 0) {
      return -1;
    }
  }
}
