package main

import (
	"slices"
	"time"
)

// percentile returns the value at or below which the fraction p (0 to 1) of the sorted values lie, by the
// nearest-rank rule: it is always a value that was measured. It returns 0 for no values.
func percentile(sorted []time.Duration, p float64) time.Duration {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	rank := int(p * float64(n))
	if float64(rank) < p*float64(n) {
		rank++
	}
	return sorted[min(max(rank, 1), n)-1]
}

// quantiles sorts d in place and returns its median and 99th percentile in milliseconds.
func quantiles(d []time.Duration) (p50, p99 float64) {
	slices.Sort(d)
	return millis(percentile(d, 0.50)), millis(percentile(d, 0.99))
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// spread returns the least, the median and the most of values, which it leaves alone. The median of an even
// number of values is the mean of the two in the middle.
func spread(values []float64) (least, median, most float64) {
	if len(values) == 0 {
		return 0, 0, 0
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + mid) / 2
	}
	return v[0], mid, v[len(v)-1]
}
