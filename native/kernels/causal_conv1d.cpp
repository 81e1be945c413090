// y_t = f(bias + Σ_k weight_k · x_{t - width + 1 + k}) of each channel, f the identity or silu.
//
// Work: pieces of up to kChannels channels and kTokens tokens go to threads; pieces of the same channels follow each
//   other, as the filters of a piece are transposed to rows of channels first. The rows that the taps of neighbouring
//   tokens share stay in the first-level cache.
// Precision: float64 in float64, everything else in float32: a sum of width + 1 terms, and silu as in vector_math.h.
// Bytes: x once in, y once out; the state once in and out, and the filters in once for each piece.
#include "causal_conv1d.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "convert.h"
#include "over_rows.h"
#include "scratch.h"
#include "simd.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kChannels = 1024, kTokens = 64;

// The channels of a piece: their filters, tap by tap, and what is the same for all tokens
template <class T>
class Channels {
    using C = Compute<T>;

  public:
    explicit Channels(const CausalConv1d& op)
        : op_(op),
          scratch_(whole_lines((op.width + 1) * kLine) + whole_lines(op.width * kLine) + kZeros +
                   op.width * static_cast<std::int64_t>(sizeof(char*))) {
        std::memset(scratch_.at<char>(zeros_at()), 0, kZeros);
    }

    void take(std::int64_t first) {
        first_ = first;
        n_ = std::min(kChannels, op_.channels - first);
        for_dtypes(op_.x_dtype, op_.parameter_dtype, [this](auto, auto p) {
            using P = decltype(p);
            if constexpr (is_same<Compute<P>, C>) this->template take_parameters<P>();
        });
    }

    // The results of the tokens from begin to end; `width` is a constant for usual filters.
    template <class Width>
    void convolve(std::int64_t batch, std::int64_t begin, std::int64_t end, Width width) const {
        const C* const taps = scratch_.template at<C>(0);
        const C* const bias = taps + width * kChannels;
        const bool silu = op_.silu;
        for (std::int64_t t = begin; t < end; ++t) {
            auto rows = taps_of(width);
            for (std::int64_t k = 0; k < width; ++k) rows[k] = row(batch, t + k);
            T* const y = reinterpret_cast<T*>(op_.y) + (batch * op_.tokens + t) * op_.channels + first_;
            put_row<false>(y, n_, [=](std::int64_t i, std::int64_t lanes) {
                Vec<C> sum = load(bias + i);
                for (std::int64_t k = 0; k < width; ++k)
                    sum += load_some(rows[k] + i, lanes) * load(taps + k * kChannels + i);
                return silu ? sum * sigmoid(sum) : sum;
            });
        }
    }

    // The new state, the last width - 1 rows of the state and x
    void keep(std::int64_t batch) const {
        const std::int64_t kept = op_.width - 1;
        for (std::int64_t i = 0; i < kept; ++i)
            std::memcpy(reinterpret_cast<T*>(op_.new_state) + (batch * kept + i) * op_.channels + first_,
                        row(batch, op_.tokens + i), static_cast<std::size_t>(n_) * sizeof(T));
    }

  private:
    static constexpr std::int64_t kLine = kChannels * static_cast<std::int64_t>(sizeof(C));
    static constexpr std::int64_t kZeros = kChannels * static_cast<std::int64_t>(sizeof(T));

    std::int64_t widened_at() const { return whole_lines((op_.width + 1) * kLine); }
    std::int64_t zeros_at() const { return widened_at() + whole_lines(op_.width * kLine); }
    std::int64_t rows_at() const { return zeros_at() + kZeros; }

    // Room for a row of each tap; a few are held by value, and stay in registers
    template <std::int64_t kWidth>
    static std::array<const T*, kWidth> taps_of(std::integral_constant<std::int64_t, kWidth>) {
        return {};
    }
    const T** taps_of(std::int64_t) const { return scratch_.template at<const T*>(rows_at()); }

    // The row at a place in the state followed by x
    const T* row(std::int64_t batch, std::int64_t place) const {
        const std::int64_t kept = op_.width - 1;
        if (place < kept && !op_.state.data) return scratch_.template at<const T>(zeros_at());
        const char* p = place < kept ? op_.state.row(batch, place) : op_.x.row(batch, place - kept);
        return reinterpret_cast<const T*>(p) + first_;
    }

    template <class P>
    void take_parameters() {
        const std::int64_t width = op_.width;
        C* const taps = scratch_.template at<C>(0);
        C* const bias = taps + width * kChannels;
        C* const widened = scratch_.template at<C>(widened_at());
        convert(reinterpret_cast<const P*>(op_.weight) + first_ * width, widened, n_ * width);
        const auto transpose = [=, n = n_](auto constant) {
            for (std::int64_t i = 0; i < n; ++i)
                for (std::int64_t k = 0; k < constant; ++k) taps[k * kChannels + i] = widened[i * constant + k];
        };
        width == 4 ? transpose(std::integral_constant<std::int64_t, 4>{}) : transpose(width);
        if (op_.bias)
            convert(reinterpret_cast<const P*>(op_.bias) + first_, bias, n_);
        else
            std::fill(bias, bias + n_, C{0});
    }

    const CausalConv1d& op_;
    Scratch scratch_;
    std::int64_t first_ = 0, n_ = 0;
};

template <class T>
void convolve(const CausalConv1d& op) {
    const std::int64_t stretches = std::max<std::int64_t>((op.tokens + kTokens - 1) / kTokens, 1);
    const std::int64_t of_channels = op.batch * stretches;
    const std::int64_t pieces = (op.channels + kChannels - 1) / kChannels * of_channels;
    const std::int64_t rows = op.batch * (2 * op.tokens + 2 * (op.width - 1)) + op.width;
    const int threads = threads_for_rows(pieces, rows * op.channels * static_cast<std::int64_t>(sizeof(T)));
    over_shares(threads, pieces, 1, [&](Share mine) {
        Channels<T> channels(op);
        for (std::int64_t piece = mine.begin; piece < mine.end; ++piece) {
            if (piece == mine.begin || piece % of_channels == 0) channels.take(piece / of_channels * kChannels);
            const std::int64_t batch = piece % of_channels / stretches, begin = piece % stretches * kTokens;
            const std::int64_t end = std::min(begin + kTokens, op.tokens);
            if (op.width == 4)
                channels.convolve(batch, begin, end, std::integral_constant<std::int64_t, 4>{});
            else
                channels.convolve(batch, begin, end, op.width);
            if (begin == 0) channels.keep(batch);
        }
    });
}

}  // namespace

TENSOROPS_KERNEL(causal_conv1d, CausalConv1d) {
    for_dtype(op.x_dtype, [&op](auto x) { convolve<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
