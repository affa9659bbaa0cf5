// What a margin makes of the cosine between a sample and its own class, for both kinds of device.
#pragma once

#include <cmath>

#include "gpu/portable.h"
#include "ops/kernel.h"

namespace flexlegion {

// Where a cosine is 1, its angle has no slope: below this sine it is taken to be this.
constexpr float kSmallestSine = 1e-3f;

// ArcFace adds the margin m to the angle: cos(angle + m), as long as that falls; from the angle
// pi - m on, a line continues it downwards. CosFace subtracts the margin from the cosine.
struct AngularMargin {
  float scale;
  bool of_angle;
  float margin, cosine, sine;  // of the margin

  explicit AngularMargin(const Attributes& attributes)
      : scale(static_cast<float>(attributes.number("scale"))),
        of_angle(attributes.integer("of_angle") != 0),
        margin(static_cast<float>(attributes.number("margin"))),
        cosine(std::cos(margin)),
        sine(std::sin(margin)) {}

  FL_DEVICE float value(float x) const {
    if (!of_angle) return scale * (x - margin);
    if (x <= -cosine) return scale * (x - margin * sine);
    return scale * (x * cosine - sine_of(x) * sine);
  }
  FL_DEVICE float slope(float x) const {
    if (!of_angle || x <= -cosine) return scale;
    const float s = sine_of(x);
    return scale * (cosine + x * sine / (s > kSmallestSine ? s : kSmallestSine));
  }

 private:
  FL_DEVICE static float sine_of(float x) {
    const float square = 1.0f - x * x;
    return square > 0 ? std::sqrt(square) : 0.0f;
  }
};

}  // namespace flexlegion
