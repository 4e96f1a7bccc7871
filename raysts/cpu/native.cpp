// What torch has no kernel for on CPUs: what a post-norm transformer layer computes between its matrix products, over texts that
// stand one after the other without padding (raysts/cpu/fused.py says what each array holds), and Adam for a table of which a
// batch has few rows (raysts/cpu/rowwise.py).
//
// Every sum has an order that does not depend on the number of threads, and dropout draws depend on (seed, row, column) alone:
// backward draws them again instead of reading them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

// A vector is as wide as a register: of wider ones compilers make code that goes through memory, ten times as slow.
#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS = 8;
#define EACH(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#elif defined(__AVX__)
constexpr int LANES = 8, ROWS = 6;
#define EACH(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#else
constexpr int LANES = 4, ROWS = 6;  // rows of a product at once: their sums stay in the registers
#define EACH(f) f(0), f(1), f(2), f(3)
#endif
constexpr int LINE = 16;  // floats of a cache line
typedef float V __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef uint16_t S __attribute__((vector_size(2 * LANES)));
typedef uint16_t S8 __attribute__((vector_size(16)));

#define ITSELF(l) l
const I COUNT = {EACH(ITSELF)};

struct bf16 {
    uint16_t bits;
};

inline V load(const float* from) {
    V v;
    memcpy(&v, from, sizeof v);
    return v;
}

inline V load(const bf16* from) {
    S s;
    memcpy(&s, from, sizeof s);
    return (V)(__builtin_convertvector(s, U) << 16);
}

inline void store(float* to, V v) { memcpy(to, &v, sizeof v); }

inline void store(bf16* to, V v) {  // to the nearest, ties to even; infinities stay, and so does what is not a number
#if defined(__AVX512BF16__)
    auto s = _mm512_cvtneps_pbh((__m512)v);
#else
    U u = (U)v;
    U rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    u = (u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded;
    S s = __builtin_convertvector(u, S);
#endif
    memcpy(to, &s, sizeof s);
}

inline V all(float x) { return x - V{}; }

#if defined(__clang__)
#define MIXED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIXED(a, b, ...) __builtin_shuffle(a, b, decltype((a) == (b)){__VA_ARGS__})
#endif
#define SWAP_8(l) (((l) ^ 8) % LANES)
#define SWAP_4(l) (((l) ^ 4) % LANES)
#define SWAP_2(l) ((l) ^ 2)
#define SWAP_1(l) ((l) ^ 1)

inline V larger(V a, V b) { return a > b ? a : b; }
inline V sum(V a, V b) { return a + b; }

// Of all elements, halves first.
template <V (*join)(V, V)>
inline float joined(V v) {
    if constexpr (LANES > 8) v = join(v, MIXED(v, v, EACH(SWAP_8)));
    if constexpr (LANES > 4) v = join(v, MIXED(v, v, EACH(SWAP_4)));
    v = join(v, MIXED(v, v, EACH(SWAP_2)));
    v = join(v, MIXED(v, v, EACH(SWAP_1)));
    return v[0];
}

inline float total(V v) { return joined<sum>(v); }
inline float greatest(V v) { return joined<larger>(v); }

// A square: rows i and i + LANES / 2 are merged, element by element, until every row is a column.
#define LOW(l) ((l) / 2 + (l) % 2 * LANES)
#define HIGH(l) (LOW(l) + LANES / 2)

inline void transposed(V r[LANES]) {
    for (int step = 1; step < LANES; step *= 2) {
        V s[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            s[2 * i] = MIXED(r[i], r[i + LANES / 2], EACH(LOW));
            s[2 * i + 1] = MIXED(r[i], r[i + LANES / 2], EACH(HIGH));
        }
        memcpy((void*)r, s, sizeof s);
    }
}

// e^x to 1e-7, for x <= 0; below -87 it is next to nothing. What is not a number need not stay so: a row that has any has it in
// its residual, too, and from there in everything that follows.
inline V exponential(V x) {
    x = larger(x, all(-87.f));
    V n = x * 1.44269504f + 12582912.f;  // to the nearest integer, which stands in the low bits
    I power = (I)n - 0x4b400000;
    n -= 12582912.f;
    V r = x - n * 0.693359375f + n * 2.12194440e-4f;
    V p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    return (V)((I)p + (power << 23));
}

// Which elements of a row stay.
struct Draws {
    uint32_t first, second, kept;
    float scale;  // of what stays; 0: everything stays as it is

    Draws(uint64_t seed, uint64_t row, uint32_t kept_) : kept(kept_), scale(kept_ ? 4294967296.f / kept_ : 0.f) {
        uint64_t z = seed + (row + 1) * 0x9e3779b97f4a7c15ull;  // splitmix64
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        first = (uint32_t)z, second = (uint32_t)(z >> 32);
    }

    // scale where an element of columns [column, column + LANES) stays, else 0
    V at(uint32_t column) const {
        U x = (U)COUNT + (column + first);
        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15) ^ second) * 0x846ca68bu;
        x ^= x >> 16;
        return x < kept ? all(scale) : V{};
    }
};

// c[M, LANES * C] = a[M, K] b[K, LANES * C], where a[m, k] = a[m * am + k * ak].
template <int R, int C>
inline void block(const float* a, long am, long ak, const float* b, long ldb, float* c, long ldc, int K) {
    V acc[R][C] = {};
    for (int k = 0; k < K; k++) {
        V row[C];
        for (int j = 0; j < C; j++) row[j] = load(b + k * ldb + j * LANES);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) acc[i][j] += a[i * am + k * ak] * row[j];
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) store(c + i * ldc + j * LANES, acc[i][j]);
}

template <int C>
inline void columns(const float* a, long am, long ak, const float* b, long ldb, float* c, long ldc, int M, int K) {
    int m = 0;
    for (; m + ROWS <= M; m += ROWS) block<ROWS, C>(a + m * am, am, ak, b, ldb, c + m * ldc, ldc, K);
    for (; m + 4 <= M; m += 4) block<4, C>(a + m * am, am, ak, b, ldb, c + m * ldc, ldc, K);
    for (; m < M; m++) block<1, C>(a + m * am, am, ak, b, ldb, c + m * ldc, ldc, K);
}

void product(const float* a, long am, long ak, const float* b, long ldb, float* c, long ldc, int M, int N, int K) {
    int n = 0;
    for (; n + 2 * LANES <= N; n += 2 * LANES) columns<2>(a, am, ak, b + n, ldb, c + n, ldc, M, K);
    if (n < N) columns<1>(a, am, ak, b + n, ldb, c + n, ldc, M, K);
}

// Memory of one thread, in parts that begin at cache lines.
struct Scratch {
    std::vector<float> memory;
    size_t used = 0;
    explicit Scratch(size_t floats) : memory(floats + LINE) {}
    float* take(size_t floats) {
        uintptr_t begin = (uintptr_t)(memory.data() + used);
        used += floats + (63 - (begin + 63) % 64) / sizeof(float);
        return (float*)((begin + 63) / 64 * 64);
    }
};

inline int wide(int n) { return (n + LANES - 1) / LANES * LANES; }

struct Texts {
    const int32_t* starts;  // [B + 1]
    int B, A, E;
    float scaling;
    uint32_t kept;
    uint64_t seed;

    int longest() const {
        int most = 0;
        for (int b = 0; b < B; b++) most = std::max(most, starts[b + 1] - starts[b]);
        return most;
    }
};

// One head of one text in float32: queries (scaled), and keys and values as rows or as columns.
template <class T>
void gather(const T* from, long stride, int rows, int E, float scale, float* to) {
    for (int i = 0; i < rows; i++)
        for (int e = 0; e < E; e += LANES) store(to + i * E + e, load(from + i * stride + e) * scale);
}

template <class T>
void gather_columns(const T* from, long stride, int rows, int E, float* to) {
    int W = wide(rows);
    for (int i = 0; i < W; i += LANES)
        for (int e = 0; e < E; e += LANES) {
            V r[LANES];
            for (int l = 0; l < LANES; l++) r[l] = i + l < rows ? load(from + (i + l) * stride + e) : V{};
            transposed(r);
            for (int l = 0; l < LANES; l++) store(to + (e + l) * W + i, r[l]);
        }
}

template <class T>
void scatter(const float* from, int rows, int E, float scale, T* to, long stride) {
    for (int i = 0; i < rows; i++)
        for (int e = 0; e < E; e += LANES) store(to + i * stride + e, load(from + i * E + e) * scale);
}

inline V inside(V v, int column, int rows, float other) { return COUNT < rows - column ? v : all(other); }

template <class T>
void attention(T* mixed, float* lse, const T* qkv, Texts t, int N, int threads) {
    long H = (long)t.A * t.E, stride = 3 * H;
    int most = t.longest(), tasks = t.B * t.A;
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch(3 * (size_t)wide(most) * t.E + (size_t)most * (wide(most) + t.E) + 8 * LINE);
        float* q = scratch.take((size_t)most * t.E);
        float* k = scratch.take((size_t)wide(most) * t.E);
        float* v = scratch.take((size_t)most * t.E);
        float* p = scratch.take((size_t)most * wide(most));
        float* o = scratch.take((size_t)most * t.E);
#pragma omp for schedule(dynamic, 4)
        for (int task = 0; task < tasks; task++) {
            int b = task / t.A, a = task % t.A, first = t.starts[b], rows = t.starts[b + 1] - first, W = wide(rows);
            const T* at = qkv + first * stride + a * t.E;
            gather(at, stride, rows, t.E, t.scaling, q);
            gather_columns(at + H, stride, rows, t.E, k);
            gather(at + 2 * H, stride, rows, t.E, 1.f, v);
            product(q, t.E, 1, k, W, p, W, rows, W, t.E);
            for (int i = 0; i < rows; i++) {
                float* row = p + (long)i * W;
                V high = all(-INFINITY);
                for (int j = 0; j < W; j += LANES) {
                    V s = inside(load(row + j), j, rows, -INFINITY);
                    store(row + j, s);
                    high = larger(high, s);
                }
                float m = greatest(high);
                V sum = {};
                for (int j = 0; j < W; j += LANES) {
                    V e = inside(exponential(load(row + j) - m), j, rows, 0.f);
                    store(row + j, e);
                    sum += e;
                }
                float s = total(sum);
                lse[(first + i) * (long)t.A + a] = m + logf(s);
                Draws draws(t.seed, (uint64_t)(first + i) * t.A + a, t.kept);
                for (int j = 0; j < W; j += LANES) {
                    V e = load(row + j) * (1.f / s);
                    store(row + j, t.kept ? e * draws.at(j) : e);
                }
            }
            product(p, W, 1, v, t.E, o, t.E, rows, t.E, rows);
            scatter(o, rows, t.E, 1.f, mixed + first * H + a * t.E, H);
        }
    }
    memset((void*)(mixed + t.starts[t.B] * H), 0, sizeof(T) * H * (N - t.starts[t.B]));
}

template <class T>
void attention_backward(T* dqkv, const T* dmixed, const float* lse, const T* qkv, Texts t, int N, int threads) {
    long H = (long)t.A * t.E, stride = 3 * H;
    int most = t.longest(), tasks = t.B * t.A;
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch(6 * (size_t)wide(most) * t.E + 3 * (size_t)most * wide(most) + 10 * LINE);
        float* q = scratch.take((size_t)most * t.E);
        float* k = scratch.take((size_t)most * t.E);
        float* kt = scratch.take((size_t)wide(most) * t.E);
        float* vt = scratch.take((size_t)wide(most) * t.E);
        float* d = scratch.take((size_t)most * t.E);
        float* p = scratch.take((size_t)most * wide(most));
        float* dp = scratch.take((size_t)most * wide(most));
        float* dropped = t.kept ? scratch.take((size_t)most * wide(most)) : p;
        float* o = scratch.take((size_t)most * t.E);
#pragma omp for schedule(dynamic, 4)
        for (int task = 0; task < tasks; task++) {
            int b = task / t.A, a = task % t.A, first = t.starts[b], rows = t.starts[b + 1] - first, W = wide(rows);
            const T* at = qkv + first * stride + a * t.E;
            T* to = dqkv + first * stride + a * t.E;
            gather(at, stride, rows, t.E, t.scaling, q);
            gather(at + H, stride, rows, t.E, 1.f, k);
            gather_columns(at + H, stride, rows, t.E, kt);
            gather_columns(at + 2 * H, stride, rows, t.E, vt);
            gather(dmixed + first * H + a * t.E, H, rows, t.E, 1.f, d);
            product(q, t.E, 1, kt, W, p, W, rows, W, t.E);
            product(d, t.E, 1, vt, W, dp, W, rows, W, t.E);
            for (int i = 0; i < rows; i++) {
                float *row = p + (long)i * W, *drow = dp + (long)i * W, *dropped_row = dropped + (long)i * W;
                float log_sum = lse[(first + i) * (long)t.A + a];
                Draws draws(t.seed, (uint64_t)(first + i) * t.A + a, t.kept);
                V sum = {};
                for (int j = 0; j < W; j += LANES) {
                    V e = inside(exponential(load(row + j) - log_sum), j, rows, 0.f);
                    V g = load(drow + j);
                    store(row + j, e);
                    if (t.kept) {
                        V scale = draws.at(j);
                        g *= scale;
                        store(dropped_row + j, e * scale);
                    }
                    store(drow + j, g);
                    sum += e * g;
                }
                float mean = total(sum);
                for (int j = 0; j < W; j += LANES) store(drow + j, load(row + j) * (load(drow + j) - mean));
            }
            product(dp, W, 1, k, t.E, o, t.E, rows, t.E, rows);
            scatter(o, rows, t.E, t.scaling, to, stride);
            product(dp, 1, W, q, t.E, o, t.E, rows, t.E, rows);
            scatter(o, rows, t.E, 1.f, to + H, stride);
            product(dropped, 1, W, d, t.E, o, t.E, rows, t.E, rows);
            scatter(o, rows, t.E, 1.f, to + 2 * H, stride);
        }
    }
    memset((void*)(dqkv + t.starts[t.B] * stride), 0, sizeof(T) * stride * (N - t.starts[t.B]));
}

// Rows in parts that are the same for any number of threads; `each(row, sums)` adds to [width] sums of its part.
constexpr int PARTS = 16;

template <class F>
void by_rows(float* sums, int width, int N, int threads, F each) {
    std::vector<float> parts(sums ? (size_t)PARTS * width : 0);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int part = 0; part < PARTS; part++) {
        float* own = sums ? parts.data() + (size_t)part * width : nullptr;
        for (int row = (long)N * part / PARTS; row < (long)N * (part + 1) / PARTS; row++) each(row, own);
    }
    if (sums)
        for (int c = 0; c < width; c++) {
            sums[c] = 0;
            for (int part = 0; part < PARTS; part++) sums[c] += parts[(size_t)part * width + c];
        }
}

template <class T, class R>
void norm(R* y, T* lower, float* stats, const T* x, const R* residual, const float* weight, const float* bias, int N, int H,
          float eps, uint32_t kept, uint64_t seed, int threads) {
    by_rows(nullptr, 0, N, threads, [=](int row, float*) {
        Draws draws(seed, row, kept);
        const T* from = x + (long)row * H;
        const R* other = residual + (long)row * H;
        float held[H] __attribute__((aligned(64)));
        V sum = {}, squares = {};
        for (int c = 0; c < H; c += LANES) {
            V v = load(from + c);
            if (kept) v *= draws.at(c);
            v += load(other + c);
            store(held + c, v);
            sum += v;
        }
        float mean = total(sum) / H;
        for (int c = 0; c < H; c += LANES) {
            V v = load(held + c) - mean;
            squares += v * v;
        }
        float inverse = 1.f / sqrtf(total(squares) / H + eps);
        for (int c = 0; c < H; c += LANES) {
            V v = (load(held + c) - mean) * inverse * load(weight + c) + load(bias + c);
            store(y + (long)row * H + c, v);
            if (lower) store(lower + (long)row * H + c, v);
        }
        stats[2 * row] = mean, stats[2 * row + 1] = inverse;
    });
}

template <class T, class R>
void norm_backward(R* dresidual, T* dx, float* sums, const R* dy, const T* more, const T* x, const R* residual,
                   const float* weight, const float* stats, int N, int H, uint32_t kept, uint64_t seed, int threads) {
    by_rows(sums, 3 * H, N, threads, [=](int row, float* own) {
        Draws draws(seed, row, kept);
        long at = (long)row * H;
        float mean = stats[2 * row], inverse = stats[2 * row + 1];
        float held[3 * H] __attribute__((aligned(64)));
        V first = {}, second = {};
        for (int c = 0; c < H; c += LANES) {
            V hat = load(x + at + c);
            if (kept) {
                V scale = draws.at(c);
                hat *= scale;
                store(held + 2 * H + c, scale);
            }
            hat = (hat + load(residual + at + c) - mean) * inverse;
            V g = load(dy + at + c);
            if (more) g += load(more + at + c);
            store(own + c, load(own + c) + g * hat);
            store(own + H + c, load(own + H + c) + g);
            g *= load(weight + c);
            first += g;
            second += g * hat;
            store(held + c, g);
            store(held + H + c, hat);
        }
        float a = total(first) / H, b = total(second) / H;
        for (int c = 0; c < H; c += LANES) {
            V g = (load(held + c) - a - load(held + H + c) * b) * inverse;
            store(dresidual + at + c, g);
            if (kept) g *= load(held + 2 * H + c);
            store(dx + at + c, g);
            store(own + 2 * H + c, load(own + 2 * H + c) + g);
        }
    });
}

// The normal distribution's density at x, times sqrt(2 pi), and the distribution to 1e-7 (Abramowitz and Stegun, 7.1.26).
inline V normal(V x, V& density) {
    V z = x < 0.f ? -x : x;
    density = exponential(-.5f * x * x);
    V t = 1.f / (1.f + 0.3275911f * 0.70710678f * z);
    V p = 1.061405429f * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    V tail = .5f * p * t * density;
    return x < 0.f ? tail : 1.f - tail;
}

// GELU and its slope, x * normal(x) and normal(x) + x * density(x). Each is a half and an odd function: of values of 8 bits it is
// enough to have that as a polynomial up to 4.5, from where it stays what it is (least absolute errors: 7e-6 and 5e-5, at the
// cut 2e-5 and 7e-5), in little more than half the time of an exponential and a division.
inline V odd(V x, const float (&c)[10]) {
    x = x < -4.5f ? all(-4.5f) : x > 4.5f ? all(4.5f) : x;
    V square = x * x, p = all(c[0]);
    for (int i = 1; i < 10; i++) p = p * square + c[i];
    return x * p;
}

constexpr float DISTRIBUTION[10] = {-1.40006930e-12f, 1.69730563e-10f, -9.19375687e-09f, 2.95890032e-07f, -6.36525829e-06f,
                                    9.78713797e-05f,  -1.12267863e-03f, 9.83318500e-03f, -6.63370565e-02f, 3.98883790e-01f};
constexpr float SLOPE[10] = {-2.21082493e-11f, 2.52133936e-09f, -1.26806142e-07f, 3.72195086e-06f, -7.12221445e-05f,
                             9.40543017e-04f,  -8.81586224e-03f, 5.86093068e-02f, -2.64925689e-01f, 7.97626138e-01f};

inline V gelu_at(V x, const bf16*) { return x * (odd(x, DISTRIBUTION) + .5f); }

inline V gelu_at(V x, const float*) {
    V density;
    return x * normal(x, density);
}

inline V slope_at(V x, const bf16*) { return odd(x, SLOPE) + .5f; }

inline V slope_at(V x, const float*) {
    V density, below = normal(x, density);
    return below + x * density * 0.39894228f;
}

template <class T>
void gelu(T* y, const T* x, int N, int C, int threads) {
    by_rows(nullptr, 0, N, threads, [=](int row, float*) {
        for (long c = (long)row * C; c < (long)(row + 1) * C; c += LANES) {
            store(y + c, gelu_at(load(x + c), x));
        }
    });
}

template <class T>
void gelu_backward(T* dx, float* sums, const T* dy, const T* x, int N, int C, int threads) {
    by_rows(sums, C, N, threads, [=](int row, float* own) {
        for (int c = 0; c < C; c += LANES) {
            long at = (long)row * C + c;
            V g = load(dy + at) * slope_at(load(x + at), x);
            store(dx + at, g);
            store(own + c, load(own + c) + g);
        }
    });
}

template <class T>
void column_sums(float* sums, const T* x, int N, int C, int threads) {
    by_rows(sums, C, N, threads, [=](int row, float* own) {
        for (int c = 0; c < C; c += LANES) store(own + c, load(own + c) + load(x + (long)row * C + c));
    });
}

// [N, C] -> [C, N], 8 by 8: three times the rows i and i + 4 are merged, element by element. N and C are multiples of 8.
void transposed(uint16_t* to, const uint16_t* from, int N, int C, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int c = 0; c < C; c += 32)
        for (int n = 0; n < N; n += 8)
            for (int d = c; d < std::min(c + 32, C); d += 8) {
                S8 r[8], s[8];
                for (int i = 0; i < 8; i++) memcpy(&r[i], from + (long)(n + i) * C + d, sizeof r[i]);
                for (int step = 0; step < 3; step++) {
                    for (int i = 0; i < 4; i++) {
                        s[2 * i] = MIXED(r[i], r[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
                        s[2 * i + 1] = MIXED(r[i], r[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
                    }
                    memcpy(r, s, sizeof r);
                }
                for (int i = 0; i < 8; i++) memcpy(to + (long)(d + i) * N + n, &r[i], sizeof r[i]);
            }
}

// Adam of a table [words, H] whose gradient has R rows, ascending; decay = 1 - lr * weight decay. Rows that never had a gradient
// (`touched` is 0) have no moments, and only decay.
void adam_of_rows(float* p, float* m, float* v, uint8_t* touched, const int64_t* rows, const float* gradients, int R,
                  int words, int H, float decay, float beta1, float beta2, float eps, float rate, float correction, int threads) {
    for (int r = 0; r < R; r++) touched[rows[r]] = 1;
    by_rows(nullptr, 0, words, threads, [=](int row, float*) {
        float* at = p + (long)row * H;
        if (!touched[row]) {
            if (decay != 1.f)
                for (int c = 0; c < H; c += LANES) store(at + c, load(at + c) * decay);
            return;
        }
        const int64_t* found = std::lower_bound(rows, rows + R, (int64_t)row);
        const float* gradient = found < rows + R && *found == row ? gradients + (found - rows) * H : nullptr;
        float *first = m + (long)row * H, *second = v + (long)row * H;
        for (int c = 0; c < H; c += LANES) {
            V g = gradient ? load(gradient + c) : V{};
            V a = load(first + c), b = load(second + c) * beta2 + (1.f - beta2) * g * g;
            a += (1.f - beta1) * (g - a);
            store(first + c, a);
            store(second + c, b);
            V root;
            for (int l = 0; l < LANES; l++) root[l] = sqrtf(b[l]);
            store(at + c, load(at + c) * decay - rate * a / (root * correction + eps));
        }
    });
}

}  // namespace

extern "C" void adam(float* p, float* m, float* v, uint8_t* touched, const int64_t* rows, const float* gradients, int R,
                     int words, int H, float decay, float beta1, float beta2, float eps, float rate, float correction, int threads) {
    adam_of_rows(p, m, v, touched, rows, gradients, R, words, H, decay, beta1, beta2, eps, rate, correction, threads);
}

#define ATTENTION(NAME, T)                                                                                                    \
    extern "C" void attention_##NAME(T* mixed, float* lse, const T* qkv, const int32_t* starts, int B, int A, int E,          \
                                     float scaling, uint32_t kept, uint64_t seed, int N, int threads) {                       \
        attention(mixed, lse, qkv, Texts{starts, B, A, E, scaling, kept, seed}, N, threads);                                  \
    }                                                                                                                         \
    extern "C" void attention_backward_##NAME(T* dqkv, const T* dmixed, const float* lse, const T* qkv,                       \
                                              const int32_t* starts, int B, int A, int E, float scaling, uint32_t kept,       \
                                              uint64_t seed, int N, int threads) {                                            \
        attention_backward(dqkv, dmixed, lse, qkv, Texts{starts, B, A, E, scaling, kept, seed}, N, threads);                  \
    }                                                                                                                         \
    extern "C" void gelu_##NAME(T* y, const T* x, int N, int C, int threads) { gelu(y, x, N, C, threads); }                   \
    extern "C" void gelu_backward_##NAME(T* dx, float* sums, const T* dy, const T* x, int N, int C, int threads) {            \
        gelu_backward(dx, sums, dy, x, N, C, threads);                                                                        \
    }                                                                                                                         \
    extern "C" void column_sums_##NAME(float* sums, const T* x, int N, int C, int threads) {                                  \
        column_sums(sums, x, N, C, threads);                                                                                  \
    }

#define NORM(NAME, T, R)                                                                                                      \
    extern "C" void norm_##NAME(R* y, T* lower, float* stats, const T* x, const R* residual, const float* weight,             \
                                const float* bias, int N, int H, float eps, uint32_t kept, uint64_t seed, int threads) {      \
        norm(y, lower, stats, x, residual, weight, bias, N, H, eps, kept, seed, threads);                                     \
    }                                                                                                                         \
    extern "C" void norm_backward_##NAME(R* dresidual, T* dx, float* sums, const R* dy, const T* more, const T* x,            \
                                         const R* residual, const float* weight, const float* stats, int N, int H,            \
                                         uint32_t kept, uint64_t seed, int threads) {                                         \
        norm_backward(dresidual, dx, sums, dy, more, x, residual, weight, stats, N, H, kept, seed, threads);                  \
    }

ATTENTION(f32, float)
ATTENTION(bf16, bf16)
NORM(f32_f32, float, float)
NORM(bf16_f32, bf16, float)
NORM(bf16_bf16, bf16, bf16)

extern "C" void transpose(uint16_t* to, const uint16_t* from, int N, int C, int threads) {
    transposed(to, from, N, C, threads);
}
