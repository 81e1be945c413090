// What the rows of a norm are divided by
#define DEVIATION 0         // sqrt(mean((x - mean)²) + eps), after the mean is subtracted
#define ROOT_MEAN_SQUARE 1  // sqrt(mean(x²) + eps)
#define LENGTH 2            // max(sqrt(sum(x²)), eps)
