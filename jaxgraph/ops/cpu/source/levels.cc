// Chooses the level of the instruction set.

#include "levels.h"

namespace jaxgraph {
namespace {

enum class Level { kBaseline, kAvx2, kAvx512 };

Level DetectLevel() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return Level::kAvx512;
  if (__builtin_cpu_supports("x86-64-v3")) return Level::kAvx2;
#endif
  return Level::kBaseline;
}

Level CurrentLevel() {
  static const Level level = DetectLevel();
  return level;
}

}  // namespace

template <class T>
const Kernels<T>& KernelsFor() {
#if defined(__x86_64__)
  if (CurrentLevel() == Level::kAvx512) return avx512::LevelKernels<T>();
  if (CurrentLevel() == Level::kAvx2) return avx2::LevelKernels<T>();
#endif
  return baseline::LevelKernels<T>();
}

template const Kernels<float>& KernelsFor<float>();
template const Kernels<double>& KernelsFor<double>();
template const Kernels<BFloat16>& KernelsFor<BFloat16>();

const char* LevelName() {
  switch (CurrentLevel()) {
    case Level::kAvx512: return "avx512";
    case Level::kAvx2: return "avx2";
    default: return "baseline";
  }
}

}  // namespace jaxgraph
