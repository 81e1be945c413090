// Kernels as XLA foreign functions, for JAX on the CPU. XLA allocates the results; the interpreter is not involved.
//
// tensorops/kernels/jax_ffi registers the handlers by name. A new kernel adds its function and its name to the file of
// its family, xla_<family>.cpp.
#include "bind.h"
#include "xla_call.h"

namespace tensorops {

void bind_xla(nb::module_& m) {
    m.def(
        "xla_handlers",
        [] {
            nb::dict handlers;
            for (const auto family :
                 {xla::activation_handlers, xla::attention_handlers, xla::experts_handlers, xla::linear_handlers,
                  xla::loss_handlers, xla::normalization_handlers, xla::positional_handlers, xla::quantization_handlers,
                  xla::sampling_handlers, xla::selection_handlers})
                for (const xla::NamedHandler& h : family())
                    handlers[h.name] = nb::capsule(reinterpret_cast<void*>(h.handler));
            return handlers;
        },
        "The kernels as handlers of XLA's foreign function interface, in capsules by name.");
}

}  // namespace tensorops
