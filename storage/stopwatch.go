package storage

import "time"

// stopwatch measures how long something takes, by the monotonic clock. It tells nobody what time it is.
type stopwatch struct{ start time.Time }

func newStopwatch() stopwatch { return stopwatch{time.Now()} }

func (w stopwatch) elapsed() time.Duration { return time.Since(w.start) }

// databaseClock goes on from a time that the database told. Its stopwatch was started before the database was asked, so
// it is never behind the database's clock, and ahead of it by the time of one read at most.
type databaseClock struct {
	told  time.Time
	since stopwatch
}

func (c databaseClock) now() time.Time { return c.told.Add(c.since.elapsed()) }
