// Waits for the four warps of a group of warps.
inline void group_meets(int wg) { asm volatile("bar.sync %0, 128;" ::"r"(wg + 2) : "memory"); }
