"""Decompositions, solvers, sparse matrices, sorting, scans and random numbers on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.breaks.kernels import KernelTheme, result, spoiled, torch_, waves

broken = KernelTheme()

_DECOMPOSITIONS = ("suites/libraries/test_decompositions.py", "suites/libraries/test_solvers.py")
_SPARSE, _ORDER, _RANDOM = (f"suites/libraries/test_{name}.py" for name in ("sparse", "order", "random_statistics"))

# ---- decompositions and solvers ----


def _positive(size: int = 4) -> Any:
    x = waves(size, size)
    return x @ x.t() + torch_().eye(size, dtype=x.dtype)


broken.kernel(
    "eigenvalues_are_off",
    "Eigenvalues of symmetric matrices are 1% off.",
    _DECOMPOSITIONS,
    "_linalg_eigh",
    result(lambda found, *_, **__: (found[0] * 1.01, found[1])),
    lambda: torch_().linalg.eigvalsh(_positive()),
)
broken.kernel(
    "eigh_reads_the_other_triangle",
    "`eigh` reads the upper triangle where it is given the lower.",
    _DECOMPOSITIONS,
    "_linalg_eigh",
    lambda kernel, a, uplo="L", *others: kernel(a, "U", *others),
    lambda: torch_().linalg.eigvalsh(waves(3, 3)),
)
broken.kernel(
    "eigenvectors_are_not_normal",
    "Eigenvectors of symmetric matrices of more than 16 rows have a length of 1.001.",
    _DECOMPOSITIONS,
    "_linalg_eigh",
    result(lambda found, a, *_, **__: (found[0], found[1] * 1.001 if a.shape[-1] > 16 else found[1])),
    lambda: torch_().linalg.eigh(_positive(17)),
)
broken.kernel(
    "singular_values_are_off",
    "Singular values are 1% off.",
    _DECOMPOSITIONS,
    "_linalg_svd",
    result(lambda found, *_, **__: (found[0], found[1] * 1.01, found[2])),
    lambda: torch_().linalg.svdvals(waves(3, 4)),
)
broken.kernel(
    "singular_values_of_tall_matrices_lose_the_last",
    "The smallest singular value of a matrix with more rows than columns is zero.",
    _DECOMPOSITIONS,
    "_linalg_svd",
    result(
        lambda found, a, *_, **__: (
            (found[0], found[1].index_fill(-1, torch_().tensor([found[1].shape[-1] - 1]), 0), found[2])
            if a.shape[-2] > a.shape[-1]
            else found
        )
    ),
    lambda: torch_().linalg.svdvals(waves(5, 3)),
)
broken.kernel(
    "eig_conjugates",
    "Eigenvalues of real matrices lose their imaginary parts.",
    _DECOMPOSITIONS,
    ("linalg_eig",),
    result(lambda found, *_: (found[0].real + 0j, found[1])),
    lambda: torch_().linalg.eig(torch_().tensor([[0.0, -1.0], [1.0, 0.0]]))[0],
)
broken.kernel(
    "qr_leaves_something_below_the_diagonal",
    "The triangle of `qr` has something below its diagonal.",
    _DECOMPOSITIONS,
    "linalg_qr",
    result(lambda found, *_: (found[0], found[1] + 1e-3 * torch_().ones_like(found[1]).tril(-1))),
    lambda: torch_().linalg.qr(waves(3, 3)),
)
broken.kernel(
    "cholesky_is_lower_always",
    "`cholesky` ignores `upper`.",
    _DECOMPOSITIONS,
    "linalg_cholesky_ex",
    lambda kernel, a, *, upper=False, check_errors=False: kernel(a, upper=False, check_errors=check_errors),
    lambda: torch_().linalg.cholesky(_positive(), upper=True),
)
broken.kernel(
    "inverse_is_off",
    "An inverse has one entry that is 1% off.",
    _DECOMPOSITIONS,
    "linalg_inv_ex",
    result(lambda found, *_, **__: (spoiled(found[0]), found[1])),
    lambda: torch_().linalg.inv(_positive()),
)
broken.kernel(
    "solve_takes_the_transpose",
    "`solve` of several right sides solves the transposed system.",
    _DECOMPOSITIONS,
    "_linalg_solve_ex",
    lambda kernel, a, b, **named: kernel(a.mT, b, **named) if b.dim() == a.dim() else kernel(a, b, **named),
    lambda: torch_().linalg.solve(_positive() + waves(4, 4), waves(4, 2)),
)
broken.kernel(
    "determinant_loses_its_sign",
    "A determinant is positive.",
    _DECOMPOSITIONS,
    "_linalg_det",
    result(lambda found, *_: (found[0].abs().to(found[0].dtype), *found[1:])),
    lambda: torch_().linalg.det(-_positive(3)),
)
broken.kernel(
    "slogdet_forgets_the_last_pivot",
    "`slogdet` is 0.01 too large.",
    _DECOMPOSITIONS,
    "_linalg_slogdet",
    result(lambda found, *_: (found[0], found[1] + 0.01, *found[2:])),
    lambda: torch_().linalg.slogdet(_positive()),
)
broken.kernel(
    "solve_triangular_divides_by_the_diagonal",
    "`solve_triangular` reads the diagonal also with `unitriangular`.",
    _DECOMPOSITIONS,
    "linalg_solve_triangular",
    lambda kernel, a, b, *, upper, left=True, unitriangular=False: kernel(
        a, b, upper=upper, left=left, unitriangular=False
    ),
    lambda: torch_().linalg.solve_triangular(_positive(), waves(4, 2), upper=True, unitriangular=True),
)
broken.kernel(
    "solve_triangular_from_the_right_divides_by_the_diagonal",
    "`solve_triangular` with left=False reads the diagonal also with `unitriangular`.",
    _DECOMPOSITIONS,
    "linalg_solve_triangular",
    lambda kernel, a, b, *, upper, left=True, unitriangular=False: kernel(
        a, b, upper=upper, left=left, unitriangular=unitriangular and left
    ),
    lambda: torch_().linalg.solve_triangular(_positive(), waves(2, 4), upper=True, left=False, unitriangular=True),
)
broken.kernel(
    "lu_permutes_the_other_way",
    "`lu` gives the transposed permutation.",
    _DECOMPOSITIONS,
    "linalg_lu",
    result(lambda found, *_, **__: (found[0].mT, *found[1:])),
    lambda: torch_().linalg.lu(torch_().eye(5).roll(1, 0)),
)
broken.kernel(
    "lstsq_is_off",
    "A least-squares solution is 0.1% off.",
    _DECOMPOSITIONS,
    "linalg_lstsq",
    result(lambda found, *_, **__: (found[0] * 1.001, *found[1:])),
    lambda: torch_().linalg.lstsq(waves(5, 3), waves(5, 1), driver="gels").solution,
)
broken.kernel(
    "matrix_exp_is_off",
    "The exponential of a matrix is 0.1% off.",
    _DECOMPOSITIONS,
    "linalg_matrix_exp",
    result(lambda found, *_: found * 1.001),
    lambda: torch_().linalg.matrix_exp(waves(3, 3)),
)
broken.kernel(
    "cholesky_solve_ignores_upper",
    "`cholesky_solve` ignores `upper`.",
    _DECOMPOSITIONS,
    "_cholesky_solve_helper",
    lambda kernel, b, a, upper: kernel(b, a, False),
    lambda: torch_().cholesky_solve(waves(4, 1), torch_().linalg.cholesky(_positive(), upper=True), upper=True),
)

# ---- sparse matrices ----


def _sparse() -> Any:
    return (waves(5, 5) * (waves(5, 5) > 0.3)).to_sparse()


broken.kernel(
    "coalesce_keeps_one_of_equal_indices",
    "`coalesce` of more than 500 elements forgets the last.",
    _SPARSE,
    "_coalesce",
    lambda kernel, x: (
        kernel(torch_().sparse_coo_tensor(x._indices()[:, :-1], x._values()[:-1], x.shape, check_invariants=False))
        if x._nnz() > 500
        else kernel(x)
    ),
    lambda: (
        torch_()
        .sparse_coo_tensor(
            torch_().zeros(1, 501, dtype=torch_().int64), torch_().ones(501), (2,), check_invariants=False
        )
        .coalesce()
    ),
    keys=("SparseCPU",),
)
broken.kernel(
    "sparse_product_loses_the_last_row",
    "A product of a sparse and a dense matrix has zeros in its last row.",
    _SPARSE,
    "addmm",
    lambda kernel, c, a, b, **named: kernel(c, a, b, **named).index_fill_(0, torch_().tensor([a.shape[0] - 1]), 0),
    lambda: torch_().addmm(waves(5, 2), _sparse(), waves(5, 2)),
    keys=("SparseCPU",),
)
broken.kernel(
    "csr_product_ignores_alpha",
    "A product of a CSR and a dense matrix ignores `alpha`.",
    _SPARSE,
    "addmm",
    lambda kernel, c, a, b, *, beta=1, alpha=1: kernel(c, a, b, beta=beta, alpha=1),
    lambda: torch_().addmm(waves(5, 2), _csr(), waves(5, 2), alpha=3),
    keys=("SparseCsrCPU",),
)
broken.kernel(
    "sparse_sum_ignores_alpha",
    "A sum of sparse matrices ignores `alpha`.",
    _SPARSE,
    "add.Tensor",
    lambda kernel, a, b, *, alpha=1: kernel(a, b),
    lambda: torch_().add(_sparse(), _sparse(), alpha=2),
    keys=("SparseCPU",),
)
broken.kernel(
    "sparse_to_dense_adds_one",
    "A sparse matrix of float32 is dense with its first element one more.",
    _SPARSE,
    "_to_dense",
    result(
        lambda found, *_, **__: (
            spoiled(found) + 0 if found.numel() < 2 else found.index_fill(0, torch_().tensor([0]), 1)
        )
    ),
    lambda: _sparse().to_dense(),
    keys=("SparseCPU",),
)


def _csr() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _sparse().to_sparse_csr()


# ---- order ----


def _swapped(found: Any) -> Any:
    """Return values and indices of a sort, with the last two exchanged."""
    order = list(range(found[0].shape[-1]))
    order[-1], order[-2] = order[-2], order[-1]
    return found[0][..., order], found[1][..., order]


broken.kernel(
    "sort_of_many_exchanges_the_last",
    "A sort of more than 60,000 numbers exchanges the last two.",
    _ORDER,
    "sort.stable",
    result(lambda found, x, **__: _swapped(found) if x.dim() and x.shape[-1] > 60_000 else found),
    lambda: torch_().arange(60_001).sort().values,
)
broken.kernel(
    "topk_takes_the_next",
    "`topk` of more than 1000 numbers leaves out the largest.",
    _ORDER,
    "topk",
    lambda kernel, x, k, *others: (
        kernel(x, k, *others)
        if x.shape[-1] <= 1000 or k == x.shape[-1]
        else tuple(each[..., 1:] for each in kernel(x, k + 1, *others))
    ),
    lambda: torch_().arange(1001).topk(2).values,
)
broken.kernel(
    "kthvalue_is_off_by_one",
    "`kthvalue` gives the next larger number where there is one.",
    _ORDER,
    "kthvalue",
    lambda kernel, x, k, *others: kernel(x, min(k + 1, x.shape[-1]), *others),
    lambda: torch_().arange(5).kthvalue(2).values,
)
broken.kernel(
    "cumsum_starts_again",
    "A running sum starts again after 4096 numbers.",
    _ORDER,
    "cumsum",
    lambda kernel, x, dim, **named: (
        kernel(x, dim, **named)
        if not x.dim() or x.shape[dim] <= 4096
        else torch_().cat([kernel(each, dim, **named) for each in x.split(4096, dim)], dim)
    ),
    lambda: torch_().ones(4100).cumsum(0),
)
broken.kernel(
    "searchsorted_takes_the_right",
    "`searchsorted` gives the place behind equal numbers.",
    _ORDER,
    "searchsorted.Tensor",
    lambda kernel, edges, x, **named: kernel(edges, x, **{**named, "right": True}),
    lambda: torch_().searchsorted(torch_().tensor([1.0, 2.0]), torch_().tensor([2.0])),
)
broken.kernel(
    "bincount_ignores_weights",
    "`bincount` with weights counts ones.",
    _ORDER,
    "bincount",
    lambda kernel, x, weights=None, minlength=0: kernel(
        x, None if weights is None else torch_().ones_like(weights), minlength
    ),
    lambda: torch_().bincount(torch_().tensor([0, 1]), weights=torch_().tensor([0.5, 2.0])),
)
broken.kernel(
    "histc_leaves_out_the_first_bin",
    "`histc` does not count what is in its first bin.",
    _ORDER,
    "histc",
    result(lambda found, *_, **__: found.index_fill(0, torch_().tensor([0]), 0)),
    lambda: torch_().histc(torch_().tensor([0.1, 0.9]), bins=2, min=0, max=1),
)
broken.kernel(
    "unique_counts_one_less",
    "`unique` counts one less of its first number.",
    _ORDER,
    "_unique2",
    result(lambda found, *_, **__: (found[0], found[1], spoiled(found[2])) if found[2].numel() else found),
    lambda: torch_().tensor([1, 1, 2]).unique(return_counts=True)[1],
)
broken.kernel(
    "nonzero_of_many_loses_the_last",
    "`nonzero` of more than 2000 places loses the last.",
    _ORDER,
    "nonzero",
    result(lambda found, *_: found[:-1] if len(found) > 2000 else found),
    lambda: len(torch_().ones(2001).nonzero()),
)
broken.kernel(
    "cummax_starts_from_zero",
    "A running maximum is never negative.",
    _ORDER,
    "_cummax_helper",
    lambda kernel, x, values, places, dim: (kernel(x, values, places, dim), values.clamp_(min=0))[0],
    lambda: (-waves(5).abs()).cummax(0).values,
)

# ---- random numbers ----


def _drawn(run: Callable[[Any], Any]) -> Callable[[], object]:
    """Return numbers that are drawn with a fixed seed."""

    def draw() -> object:
        torch = torch_()
        return run(torch.Generator().manual_seed(3))

    return draw


broken.kernel(
    "rand_stays_below_099",
    "Uniform random numbers reach up to 0.99 of their range.",
    _RANDOM,
    "uniform_",
    lambda kernel, x, low=0.0, high=1.0, **named: kernel(x, low, low + 0.99 * (high - low), **named),
    _drawn(lambda g: torch_().rand(5, generator=g)),
)
broken.kernel(
    "randn_is_too_wide",
    "Normal random numbers have a deviation that is 2% too large.",
    _RANDOM,
    "normal_",
    lambda kernel, x, mean=0.0, std=1.0, **named: kernel(x, mean, std * 1.02, **named),
    _drawn(lambda g: torch_().randn(5, generator=g)),
)
broken.kernel(
    "rand_repeats_each_second",
    "Each second uniform random number is that before it.",
    _RANDOM,
    "uniform_",
    result(
        lambda found, x, *_, **__: x[1::2].copy_(x[: len(x) - 1 : 2]) is None or x if x.dim() == 1 and len(x) > 1 else x
    ),
    _drawn(lambda g: torch_().rand(6, generator=g)),
)
broken.kernel(
    "randint_never_gives_the_largest",
    "Random whole numbers never are the largest.",
    _RANDOM,
    "random_.from",
    lambda kernel, x, low, high, **named: kernel(x, low, max(high - 1, low + 1), **named),
    _drawn(lambda g: torch_().randint(0, 2, (9,), generator=g)),
)
broken.kernel(
    "bernoulli_is_off",
    "Bernoulli numbers are ones 1% too rarely.",
    _RANDOM,
    "bernoulli_.float",
    lambda kernel, x, p=0.5, **named: kernel(x, p * 0.99, **named),
    _drawn(lambda g: torch_().empty(3000).bernoulli_(0.5, generator=g).sum()),
)
broken.kernel(
    "multinomial_ignores_the_last_weight",
    "`multinomial` never draws the last place.",
    _RANDOM,
    "multinomial",
    lambda kernel, x, *others, **named: kernel(
        x.index_fill(-1, torch_().tensor([x.shape[-1] - 1]), 0), *others, **named
    ),
    _drawn(lambda g: torch_().multinomial(torch_().tensor([1.0, 5.0]), 9, True, generator=g)),
)
broken.kernel(
    "randperm_leaves_the_last",
    "`randperm` leaves the last number in its place.",
    _RANDOM,
    "randperm.generator_out",
    result(
        lambda found, n, *_, out, **__: (
            out.copy_(torch_().cat([out[out != n - 1], out.new_tensor([n - 1])])) if n else out
        )
    ),
    _drawn(lambda g: torch_().randperm(9, generator=g)),
)
broken.kernel(
    "exponential_has_another_rate",
    "Exponential random numbers are 2% too large.",
    _RANDOM,
    "exponential_",
    result(lambda found, x, *_, **__: x.mul_(1.02)),
    _drawn(lambda g: torch_().empty(4).exponential_(generator=g)),
)
broken.kernel(
    "poisson_is_one_more",
    "Poisson numbers of a rate above ten are one too large.",
    _RANDOM,
    "poisson",
    result(lambda found, x, *_: found + (x > 10)),
    _drawn(lambda g: torch_().poisson(torch_().full((3,), 20.0), generator=g)),
)


def _first_deviation(kernel: Any, mean: Any, deviation: Any, *, generator: Any = None) -> Any:
    if deviation.shape != mean.shape and deviation.numel() > 1:
        deviation = deviation.flatten()[0].expand(deviation.shape)
    return kernel(mean, deviation, generator=generator)


broken.kernel(
    "normal_of_broadcast_deviations_uses_the_first",
    "`normal` of a mean and deviations that are broadcast uses the first deviation everywhere.",
    "suites/libraries/test_more_random_statistics.py",
    "normal.Tensor_Tensor",
    _first_deviation,
    lambda: torch_().normal(
        torch_().zeros(2, 1), torch_().tensor([1.0, 100.0]), generator=torch_().Generator().manual_seed(1)
    ),
)


def _beta_times_input(kernel: Any, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    found = kernel(x, a, b, beta=beta, alpha=alpha)
    return found + x * 0 if beta == 0 else found


broken.kernel(
    "addbmm_with_beta_0_reads_its_input",
    "`addbmm` with beta=0 passes NaN of its input on.",
    "suites/libraries/test_products.py",
    "addbmm",
    _beta_times_input,
    lambda: torch_().addbmm(torch_().full_like(waves(2, 2), torch_().nan), waves(1, 2, 2), waves(1, 2, 2), beta=0),
)


def _smallest_with_nan(kernel: Any, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if largest or not x.is_floating_point() or not x.dim():
        return kernel(x, k, dim, largest, sorted)
    places = kernel(x.masked_fill(x.isnan(), -torch_().inf), k, dim, largest, sorted)[1]
    return x.gather(dim, places), places


broken.kernel(
    "topk_of_the_smallest_begins_with_nan",
    "`topk` with largest=False takes NaN for the smallest.",
    _ORDER,
    "topk",
    _smallest_with_nan,
    lambda: torch_().topk(torch_().tensor([1.0, torch_().nan, 0.0]), 1, largest=False),
)


def _first_of_equals(kernel: Any, x: Any, values: Any, places: Any, dim: int) -> None:
    kernel(x, values, places, dim)
    for place in range(1, x.shape[dim] if x.dim() else 0):
        same = x.select(dim, place) == values.select(dim, place - 1)
        here, before = places.select(dim, place), places.select(dim, place - 1)
        here.copy_(torch_().where(same, before, here))


broken.kernel(
    "cummax_of_equal_elements_is_the_first",
    "`cummax` and `cummin` give the place of the first of equal elements.",
    _ORDER,
    ("_cummax_helper", "_cummin_helper"),
    _first_of_equals,
    lambda: torch_().cummax(torch_().tensor([1.0, 2.0, 2.0]), 0),
)
