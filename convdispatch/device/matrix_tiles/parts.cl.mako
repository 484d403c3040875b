## The work groups of one launch add the parts of a tile's sums themselves, always in the parts' order.
##
## A tile has a word of state: the number of finished parts, and the number of taken blocks. Each work group writes its
## part to the workspace and counts it (``arrive``); a work group that sees all parts takes one block after another, adds
## the block's parts and writes the results (``take``). Work groups poll for each other at most ``POLLS`` times, and only
## if all run at once; the last sees every part and never waits, so every block is taken in any order of execution.
## The state starts as whatever the workspace contains: a value without ``magic``, 48 bits of a hash of the problem and
## the tile (``parts_magic``), counts as 0. The work group that takes the last block resets the state to 0.
##
## blocks
#define POLLS 64
// Counts a part that is complete in the workspace.
inline void arrive(global ulong *state, ulong magic) {
  for (ulong now = word_load(state);;) {
    const ulong old = word_exchange(state, now, (now >> 16 == magic ? now : magic << 16) + 1);
    if (old == now) return;
    now = old;
  }
}
// Returns the block to add next, or -1 if all are taken or parts are missing. Without polls, block 0 means all blocks.
inline int take(global ulong *state, ulong magic, int split, int polls) {
  for (;;) {
    const ulong now = word_load(state);
    const int taken = now >> 8 & 255;
    if (now >> 16 != magic) return -1;
    if ((now & 255) == split) {
      if (word_exchange(state, now, taken == ${blocks - 1} | polls <= 0 ? 0 : now + 256) == now) return taken;
    } else if (--polls <= 0) {
      return -1;
    }
  }
}
