// prefetch.cuh in plain C++: a CPU run has no L2 to fill, but reads what it was told of, so that a wrong address shows.
#pragma once

inline void prefetch(const float* global, unsigned bytes) {
    volatile float first = global[0], last = global[bytes / 4 - 1];
}
