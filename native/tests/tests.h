// The tests of one kernel or of a few that are alike, each for t.dtype and t.length.
#pragma once

#include "harness.h"

namespace tensorops::tests {

void attention(Test& t);                 // so many keys
void conversion(Test& t);                // in rows of so many
void cross_entropy(Test& t);             // so many classes
void dequantize(Test& t);                // so many groups
void grouped_linear(Test& t);            // so many inputs
void grouped_quantized_linear(Test& t);  // so many groups
void linear(Test& t);                    // so many inputs
void linear_cross_entropy(Test& t);      // so many classes
void panel_linear(Test& t);              // so many groups
void quantize(Test& t);                  // so many groups
void quantized_linear(Test& t);          // so many groups
void rope(Test& t);                      // so many features
void sample(Test& t);                    // so many candidates
void top_k(Test& t);                     // so many candidates
void weighted_sums(Test& t);             // so many features
void widened_rows(Test& t);              // so many features
void vector_math(Test& t);               // so many numbers
void vector_math_on_every_float(Test& t);

// Whether work is distributed rightly, which no kernel is needed for.
bool parallel();
// Whether the handlers of XLA's foreign functions share out work rightly.
bool xla_calls();
// Whether calls of plans are run by rows rightly.
bool plans();

}  // namespace tensorops::tests
