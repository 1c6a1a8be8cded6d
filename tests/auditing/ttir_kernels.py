"""Kernels that the TTIR tests compile: one function a kernel, in the form in which kernels are printed."""
# ruff: noqa: E741, B007, PIE808 - names and loops are those that a printer gives them

import triton
import triton.language as tl


@triton.jit
def flash(Q, K, V, A_p, M_p, D_p, scale, BH, L, S, S_SLICE, BM: tl.constexpr, BN: tl.constexpr, F: tl.constexpr):
    pid = tl.program_id(0)
    n_l = tl.cdiv(L, BM)
    i_l = pid % n_l
    i_bh = ((pid // n_l) % BH).to(tl.int64)
    i_s = pid // (n_l * BH)
    l = i_l * BM + tl.arange(0, BM)
    f = tl.arange(0, F)
    q = tl.load(Q + i_bh * L * F + l[:, None] * F + f[None, :], mask=l[:, None] < L, other=0.0)
    m = tl.full([BM], float("-inf"), tl.float32)
    d = tl.zeros([BM], tl.float32)
    a = tl.zeros([BM, F], tl.float32)
    lo = i_s * S_SLICE
    hi = tl.minimum(lo + S_SLICE, S)
    for s0 in range(lo, hi, BN):
        s = s0 + tl.arange(0, BN)
        k = tl.load(K + i_bh * S * F + s[:, None] * F + f[None, :], mask=s[:, None] < hi, other=0.0)
        x = tl.dot(q, tl.trans(k)) * scale
        x = tl.where(s[None, :] < hi, x, float("-inf"))
        m_new = tl.maximum(m, tl.max(x, 1))
        p = tl.exp2(x - m_new[:, None])
        r = tl.exp2(m - m_new)
        d = d * r + tl.sum(p, 1)
        v = tl.load(V + i_bh * S * F + s[:, None] * F + f[None, :], mask=s[:, None] < hi, other=0.0)
        a = tl.dot(p.to(tl.float16), v, a * r[:, None])
        m = m_new
    row = (i_s * BH + i_bh) * L + l
    tl.store(A_p + row[:, None] * F + f[None, :], a, mask=l[:, None] < L)
    tl.store(M_p + row, m, mask=l < L)
    tl.store(D_p + row, d, mask=l < L)


@triton.jit
def flash_merge(A_p, M_p, D_p, O, BH, L, SPLIT, ROWS: tl.constexpr, F: tl.constexpr):
    pid = tl.program_id(0)
    n_l = tl.cdiv(L, ROWS)
    l = (pid % n_l) * ROWS + tl.arange(0, ROWS)
    f = tl.arange(0, F)
    out = (pid // n_l).to(tl.int64) * L + l
    row = out
    m = tl.full([ROWS], float("-inf"), tl.float32)
    d = tl.zeros([ROWS], tl.float32)
    a = tl.zeros([ROWS, F], tl.float32)
    for i in range(0, SPLIT):
        m_i = tl.load(M_p + row, mask=l < L, other=float("-inf"))
        d_i = tl.load(D_p + row, mask=l < L, other=0.0)
        a_i = tl.load(A_p + row[:, None] * F + f[None, :], mask=l[:, None] < L, other=0.0)
        m_new = tl.maximum(m, m_i)
        r = tl.where(m > float("-inf"), tl.exp2(m - m_new), 0.0)
        w = tl.where(m_i > float("-inf"), tl.exp2(m_i - m_new), 0.0)
        d = d * r + d_i * w
        a = a * r[:, None] + a_i * w[:, None]
        m = m_new
        row += BH * L
    tl.store(O + out[:, None] * F + f[None, :], (a / d[:, None]).to(tl.float16), mask=l[:, None] < L)


@triton.jit
def causal(Q, K, V, O, BH, L, S, OFFSET, BM: tl.constexpr, BN: tl.constexpr, F: tl.constexpr):
    pid = tl.program_id(0)
    n_l = tl.cdiv(L, BM)
    i_l = pid % n_l
    i_bh = (pid // n_l).to(tl.int64)
    l = i_l * BM + tl.arange(0, BM)
    f = tl.arange(0, F)
    q = tl.load(Q + i_bh * L * F + l[:, None] * F + f[None, :], mask=l[:, None] < L, other=0.0)
    m = tl.full([BM], float("-inf"), tl.float32)
    d = tl.zeros([BM], tl.float32)
    a = tl.zeros([BM, F], tl.float32)
    hi = tl.minimum(S, (i_l + 1) * BM + OFFSET)
    for s0 in range(0, hi, BN):
        s = s0 + tl.arange(0, BN)
        k = tl.load(K + i_bh * S * F + s[:, None] * F + f[None, :], mask=s[:, None] < hi, other=0.0)
        x = tl.dot(q, tl.trans(k))
        x = tl.where((s[None, :] < hi) & (s[None, :] <= l[:, None] + OFFSET), x, float("-inf"))
        m_new = tl.maximum(m, tl.max(x, 1))
        p = tl.exp2(x - m_new[:, None])
        r = tl.exp2(m - m_new)
        d = d * r + tl.sum(p, 1)
        v = tl.load(V + i_bh * S * F + s[:, None] * F + f[None, :], mask=s[:, None] < hi, other=0.0)
        a = tl.dot(p.to(tl.float16), v, a * r[:, None])
        m = m_new
    tl.store(O + i_bh * L * F + l[:, None] * F + f[None, :], (a / d[:, None]).to(tl.float16), mask=l[:, None] < L)


@triton.jit
def qk(Q, K, S_p, BH, L, S, E, E_SLICE, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    n_l = tl.cdiv(L, BM)
    n_s = tl.cdiv(S, BN)
    i_bh = ((pid // (n_l * n_s)) % BH).to(tl.int64)
    i_e = pid // (n_l * n_s * BH)
    l = (pid % n_l) * BM + tl.arange(0, BM)
    s = ((pid // n_l) % n_s) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    lo = i_e * E_SLICE
    hi = tl.minimum(lo + E_SLICE, E)
    for e0 in range(lo, hi, BK):
        e = e0 + tl.arange(0, BK)
        q = tl.load(Q + (i_bh * L + l[:, None]) * E + e[None, :], mask=(l[:, None] < L) & (e[None, :] < hi), other=0.0)
        k = tl.load(K + (i_bh * S + s[:, None]) * E + e[None, :], mask=(s[:, None] < S) & (e[None, :] < hi), other=0.0)
        if BK < 16:
            acc += tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], 2)
        else:
            acc = tl.dot(q, tl.trans(k), acc)
    row = (i_e * BH + i_bh) * L + l
    tl.store(S_p + row[:, None] * S + s[None, :], acc, mask=(l[:, None] < L) & (s[None, :] < S))


@triton.jit
def av_merge(O_p, O, N, SPLIT, BLOCK: tl.constexpr):
    out = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    at = out
    for i in range(0, SPLIT):
        acc += tl.load(O_p + at, mask=out < N, other=0.0)
        at += N
    tl.store(O + out, acc.to(tl.float16), mask=out < N)


@triton.jit
def grid2d(X, Y, N, BLOCK: tl.constexpr):
    row = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    at = row * N + tl.arange(0, BLOCK)
    if tl.program_id(0) > 0:
        tl.store(Y + at, tl.load(X + at, mask=tl.arange(0, BLOCK) < N), mask=tl.arange(0, BLOCK) < N)
    else:
        tl.store(Y + at, tl.zeros([BLOCK], tl.float32), mask=tl.arange(0, BLOCK) < N)


@triton.jit
def gather(X, N, Y, BLOCK: tl.constexpr):
    at = tl.load(N + tl.program_id(0)) + tl.arange(0, BLOCK)
    tl.store(Y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.load(X + at))


@triton.jit
def atomic(Y, BLOCK: tl.constexpr):
    tl.atomic_add(Y + tl.arange(0, BLOCK), 1.0)


@triton.jit
def until(X, Y, N, BLOCK: tl.constexpr):
    n = 0
    while n < N:
        tl.store(Y + n + tl.arange(0, BLOCK), tl.load(X + n + tl.arange(0, BLOCK)))
        n += BLOCK


@triton.jit
def branch(X, Y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0))
    if x > 0.0:
        tl.store(Y + at, tl.zeros([BLOCK], tl.float32))


@triton.jit
def window(X, Y, LOW, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at), mask=(at >= LOW) & (at < N))


@triton.jit
def narrow(X, Y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at))


@triton.jit
def logarithm(X, Y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.log2(tl.load(X + at)))


@triton.jit
def folded(X, Y, O_p, N: tl.constexpr, K: tl.constexpr):
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    x = tl.load(X + n[:, None] * K + k[None, :])
    y = tl.load(Y + k[:, None] * N + n[None, :])
    tl.store(O_p + n[:, None] * N + n[None, :], tl.sum(x[:, :, None] * y[None, :, :], 1))
