/* The six tile instructions that the projection uses, carried out where the processor refuses them.

   A processor without AMX raises SIGILL on each; the handler decodes it, does in C what Intel's manual says
   (Architecture Instruction Set Extensions, chapter 3: LDTILECFG, TILELOADD, TILESTORED, TILERELEASE, TDPBF16PS) and goes
   on behind it. So the machine code that would run on a processor with AMX runs here, instruction by instruction: its
   addresses, strides, tile shapes and operands are put to the test, and its numbers. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, BYTES = 64, THREADS = 64 };

typedef struct {
    long thread;
    uint8_t rows[TILES];
    uint16_t width[TILES];
    uint8_t tile[TILES][ROWS][BYTES];
} Machine;

static Machine machines[THREADS];
static long done; /* instructions carried out */
static struct sigaction before;

static Machine *mine(void) {
    long self = syscall(SYS_gettid);
    for (int i = 0; i < THREADS; i++)
        if (__atomic_load_n(&machines[i].thread, __ATOMIC_ACQUIRE) == self) return &machines[i];
    for (int i = 0; i < THREADS; i++) { /* only then a free one: there may be one before its own */
        long none = 0;
        if (__atomic_compare_exchange_n(&machines[i].thread, &none, self, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return &machines[i];
    }
    return 0;
}

static const int NUMBERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static float flushed(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static float widened(const uint8_t *row, int i) {
    uint16_t half;
    memcpy(&half, row + 2 * i, 2);
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return flushed(x);
}

static int configure(Machine *m, const uint8_t *from) {
    if (from[0] != 1 || from[1] != 0) return 0; /* palette 1, from row 0 */
    for (int i = 2; i < 16; i++)
        if (from[i]) return 0;
    memset(m->tile, 0, sizeof m->tile);
    for (int t = 0; t < TILES; t++) {
        memcpy(&m->width[t], from + 16 + 2 * t, 2);
        m->rows[t] = from[48 + t];
        if (m->width[t] > BYTES || m->rows[t] > ROWS || !m->width[t] != !m->rows[t]) return 0;
    }
    return 1;
}

static int dot(Machine *m, int c, int a, int b) {
    int inner = m->width[a] / 4, columns = m->width[c] / 4;
    if (c == a || c == b || a == b || m->width[a] % 4 || m->width[b] % 4 || m->width[c] % 4) return 0;
    if (m->rows[c] != m->rows[a] || m->width[c] != m->width[b] || m->rows[b] != inner || !m->rows[c]) return 0;
    for (int i = 0; i < m->rows[c]; i++) {
        for (int n = 0; n < columns; n++) {
            float even = 0, odd = 0, total;
            for (int k = 0; k < inner; k++) {
                even = flushed(fmaf(widened(m->tile[a][i], 2 * k), widened(m->tile[b][k], 2 * n), even));
                odd = flushed(fmaf(widened(m->tile[a][i], 2 * k + 1), widened(m->tile[b][k], 2 * n + 1), odd));
            }
            memcpy(&total, m->tile[c][i] + 4 * n, 4);
            total = flushed(flushed(total) + flushed(even + odd));
            memcpy(m->tile[c][i] + 4 * n, &total, 4);
        }
        memset(m->tile[c][i] + 4 * columns, 0, BYTES - 4 * columns);
    }
    return 1;
}

static void move(Machine *m, int t, uint8_t *memory, int64_t stride, int store) {
    if (!store) memset(m->tile[t], 0, sizeof m->tile[t]);
    for (int i = 0; i < m->rows[t]; i++, memory += stride) {
        if (store) memcpy(memory, m->tile[t][i], m->width[t]);
        else memcpy(m->tile[t][i], memory, m->width[t]);
    }
}

/* The instruction's length, 0 for one that is not ours or would fault. */
static int step(const uint8_t *code, greg_t *registers) {
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || code[2] & 0x84) return 0; /* VEX, 0F38, W0, 128 bits */
    int prefix = code[2] & 3, third = ~(code[2] >> 3) & 15, opcode = code[3], mod = code[4] >> 6;
    int reg = code[4] >> 3 & 7, rm = code[4] & 7, high_index = !(code[1] & 0x40), high_base = !(code[1] & 0x20);
    Machine *m = mine();
    if (!m) return 0;
    if (opcode == 0x5C && prefix == 2 && mod == 3) return third < TILES && dot(m, reg, rm, third) ? 5 : 0;
    if (third) return 0;
    if (opcode == 0x49 && prefix == 0 && code[4] == 0xC0) {
        memset(m->rows, 0, sizeof m->rows);
        memset(m->width, 0, sizeof m->width);
        __atomic_store_n(&m->thread, 0, __ATOMIC_RELEASE); /* for the next thread, of which there may be any number */
        return 5;
    }
    int moves = opcode == 0x4B && rm == 4 && prefix > 0; /* 66: load without caching, F3: store, F2: load */
    if (mod == 3 || !(moves || (opcode == 0x49 && prefix == 0 && reg == 0))) return 0;
    int length = 5, base = rm, index = 4, scale = 0;
    if (rm == 4) {
        scale = code[5] >> 6, index = (code[5] >> 3 & 7) | high_index << 3, base = code[5] & 7, length = 6;
    }
    int64_t address = 0;
    int32_t far = 0;
    if (mod == 0 && base == 5) {
        if (rm != 4) return 0; /* relative to the instruction: never for what arrives as an argument */
        mod = 2;
    } else {
        address = registers[NUMBERS[base | high_base << 3]];
    }
    if (mod == 1) far = (int8_t)code[length], length += 1;
    if (mod == 2) memcpy(&far, code + length, 4), length += 4;
    int64_t step_bytes = index == 4 ? 0 : (int64_t)registers[NUMBERS[index]] << scale;
    address += far;
    if (opcode == 0x49) return configure(m, (uint8_t *)(address + step_bytes)) ? length : 0;
    if (!m->rows[reg]) return 0;
    move(m, reg, (uint8_t *)address, step_bytes, prefix == 2);
    return length;
}

static void refused(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    int length = step((const uint8_t *)registers[REG_RIP], registers);
    if (length) {
        registers[REG_RIP] += length;
        __atomic_fetch_add(&done, 1, __ATOMIC_RELAXED);
    } else {
        sigaction(number, &before, 0); /* it is met again, by whoever had the signal */
    }
}

void install(void) {
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = refused;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGILL, &ours, &before);
}

long carried_out(void) {
    return __atomic_load_n(&done, __ATOMIC_RELAXED);
}
