/*
 * exp and log that give the same bits on every machine: libm's differ between versions and
 * instruction sets, and what is sampled must not.  Plain IEEE double arithmetic in a fixed order
 * (the project compiles without contraction); errors are below 2 units in the last place.
 */

#ifndef MOE_MATHS_H
#define MOE_MATHS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x; 0 below -708, about 1.8e308 above 709.  x is not a NaN. */
static inline double moe_exp(double x)
{
    static const double c[] = {
        1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0
    };
    const double round = 0x1.8p52;
    double k, r, sum, scale;
    uint64_t bits;

    if (x < -708.0) {
        return 0.0;
    }
    if (x > 709.0) {
        x = 709.0;
    }
    k = (x * 0x1.71547652b82fep0 + round) - round;
    r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
    sum = c[0];
    for (int i = 1; i < 13; i++) {
        sum = sum * r + c[i];
    }
    bits = (uint64_t) ((int64_t) k + 1023) << 52;
    memcpy(&scale, &bits, sizeof(scale));
    return sum * scale;
}


/* Natural logarithm of a positive, normal, finite x. */
static inline double moe_log_natural(double x)
{
    double m, s, square, sum;
    int64_t exponent;
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    exponent = (int64_t) (bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    memcpy(&m, &bits, sizeof(m));
    if (m > 0x1.6a09e667f3bcdp0) {
        m *= 0.5;
        exponent++;
    }
    s = (m - 1.0) / (m + 1.0);
    square = s * s;
    sum = 0.0;
    for (int i = 23; i >= 3; i -= 2) {
        sum = (sum + 1.0 / i) * square;
    }
    return (double) exponent * 0x1.62e42fefa39efp-1 + 2.0 * s * (1.0 + sum);
}

#endif
