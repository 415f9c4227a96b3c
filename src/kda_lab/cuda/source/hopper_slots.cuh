// Which slot of shared memory a block of tokens has, and the mbarriers that go with it. Powers of two throughout, since all of this
// is asked for each block.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

// rank: of the thread block in its cluster. n counts the blocks of the range in the order of work. A block that is prepared here has
// a slot for long, one that the partner sends for a short time: two rings. mask, first: of the one in question
struct Place {
    unsigned base;
    int cluster, rank, warp, lane;
    unsigned mask = OWN_SLOTS - 1, first = 0;
    __device__ bool own() const { return first == 0; }
    __device__ void other_ring() {
        if (CTAS == 2) mask ^= OWN_SLOTS - 1 ^ SENT_SLOTS - 1, first ^= OWN_SLOTS;
    }
    __device__ Place own_ring() const { return {base, cluster, rank, warp, lane}; }
    // the one of block n
    __device__ Place of(int n) const {
        Place p = own_ring();
        if (CTAS == 2 && (n & 1) != rank) p.other_ring();
        return p;
    }
    // for the same block: prepared here, sent there
    __device__ Place partner() const {
        Place p = *this;
        p.base = in_block(base, 1 - rank), p.rank = 1 - rank, p.other_ring();
        return p;
    }
    __device__ unsigned number(int n) const { return unsigned(n) / CTAS & mask | first; }
    __device__ bool again(int n) const { return unsigned(n) / CTAS > mask; }    // the slot has held a block before
    __device__ unsigned phase(int n) const { return (unsigned(n) / CTAS & mask + 1) != 0; }
    __device__ unsigned slot(int n) const { return base + number(n) * Slot::BYTES; }
    // the mbarriers of a block's slot; each phase of theirs is a block
    __device__ unsigned full(int n) const { return base + Shared::FULL + number(n) * 8; }
    __device__ unsigned out(int n) const { return base + Shared::OUT + number(n) * 8; }
    __device__ unsigned empty(int n) const { return base + Shared::EMPTY + number(n) * 8; }
    __device__ unsigned tokens(int n) const { return base + Shared::TOKENS + number(n) * 8; }
    __device__ unsigned part(int n) const { return base + Shared::PARTS + number(n) * 32; }
    // EXIT of block n, which waits for nothing of the partner: its ring is as long as that of the slots where it comes from
    __device__ unsigned exits(int n) const { return base + Shared::EXITS + unsigned(n) / CTAS % OWN_SLOTS * 8; }
    __device__ unsigned exit_phase(int n) const { return unsigned(n) / CTAS / OWN_SLOTS & 1; }
    __device__ unsigned exit(int n) const {
        return CTAS == 1 ? slot(n) + Slot::EXIT : base + Shared::AHEAD + unsigned(n) / CTAS % OWN_SLOTS * (4 * KEY);
    }
};

// the slot of a block has been read for the last time: its owner has to know, who may send to it again
ON_DEVICE void release(const Place& p, int n) {
    arrive(p.empty(n));
    if (!p.own()) arrive_there(p.partner().empty(n));
}

// all blocks in turn: what Place says of their slots, in few instructions
struct Cursor {
    unsigned slot, units, bar, parity, part;
    __device__ unsigned full() const { return bar; }
    __device__ unsigned out() const { return bar + Shared::OUT - Shared::FULL; }
};
struct Turn {
    Place p;
    unsigned units;
    int n = 0;
    __device__ explicit Turn(const Place& p) : p(p.of(0)), units(in_units(p.base)) {}
    __device__ Cursor next() {
        const Cursor c{p.slot(n), units + p.number(n) * (Slot::BYTES / 16), p.full(n), p.phase(n), p.part(n)};
        ++n, p.other_ring();
        return c;
    }
};
