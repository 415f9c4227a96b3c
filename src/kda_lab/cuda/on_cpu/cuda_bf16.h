#pragma once
// the upper half of an fp32 number, rounded to even
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        const unsigned u = __float_as_uint(x);
        bits = x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
    }
    operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};
