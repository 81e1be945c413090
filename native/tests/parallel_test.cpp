// How work is shared out: every part is done once, also by calls inside of a part and by more calls than there is room
// for.
#include "parallel.h"

#include "tests.h"

namespace tensorops::tests {

void parallel(Test& t) {
    if (t.dtype != Dtype::float32) return;
    const Expected once = Expected::exactly(std::vector<char>(static_cast<std::size_t>(t.length), 1));
    const auto count = [](char* counts, Share share) {
        for (std::int64_t i = share.begin; i < share.end; ++i) ++counts[i];
    };
    for (int parts : {1, 2, 3, 8, 100})
        t.check("parallel", {0, 0}, {}, once, [&](const Test::Call& call) {
            std::memset(call.out, 0, static_cast<std::size_t>(t.length));
            in_parallel(parts, [&](Part part) { count(call.out, part.of(t.length, 16)); });
        });
    t.check("parallel, nested", {0, 0}, {}, once, [&](const Test::Call& call) {
        std::memset(call.out, 0, static_cast<std::size_t>(t.length));
        in_parallel(3, [&](Part outer) {
            const Share share = outer.of(t.length);
            in_parallel(4, [&](Part inner) { count(call.out + share.begin, inner.of(share.end - share.begin)); });
        });
    });
}

}  // namespace tensorops::tests
