package health

import (
	"math"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// Thresholds say how many probes in a row change a destination's state. Zero values mean the default that is named.
type Thresholds struct {
	Failures  uint32 // to make it unhealthy; default 3
	Successes uint32 // to make it healthy; default 1
}

func (t Thresholds) withDefaults() Thresholds {
	if t.Failures == 0 {
		t.Failures = 3
	}
	if t.Successes == 0 {
		t.Successes = 1
	}
	return t
}

// Finding is what one probe found out. Class is empty where the destination is there.
type Finding struct {
	Class, Error string
	Latency      time.Duration
}

// Evaluate says what is known of a destination after one more probe, at a time that is later than the ones before.
func Evaluate(before storage.DestinationHealth, f Finding, at time.Time, t Thresholds) storage.DestinationHealth {
	t = t.withDefaults()
	after := before
	after.CheckedAt, after.Class, after.Error, after.Latency = at, f.Class, f.Error, f.Latency
	if f.Class == "" {
		after.Failures, after.Successes = 0, increase(before.Successes)
	} else {
		after.Failures, after.Successes = increase(before.Failures), 0
	}
	switch {
	case after.Failures >= t.Failures:
		after.State = storage.Unhealthy
	case after.Successes >= t.Successes:
		after.State = storage.Healthy
	case after.State == "":
		after.State = storage.HealthUnknown
	}
	if before.Since.IsZero() || after.State != before.State {
		after.Since = at
	}
	return after
}

func increase(n uint32) uint32 {
	if n == math.MaxUint32 {
		return n
	}
	return n + 1
}
