package storage

import "time"

// stopwatch measures how long something takes, by the monotonic clock. It tells nobody what time it is.
type stopwatch struct{ start time.Time }

func newStopwatch() stopwatch { return stopwatch{time.Now()} }

func (w stopwatch) elapsed() time.Duration { return time.Since(w.start) }
